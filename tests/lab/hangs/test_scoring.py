"""The comparison of incidents with the truth, on values."""

import json

import pytest

from tests.support.hangs.incidents import incidents_of, parse_line
from tests.support.hangs.page import GOALS, page
from tests.support.hangs.peers import RULES, Recording
from tests.support.hangs.runner import Run
from tests.support.hangs.scenarios import MODES, Scenario, Step, create_scenario
from tests.support.hangs.scoring import Score, percentile
from tests.support.hangs.sections import Figure, Section, load_section
from tests.support.hangs.truth import MS, Class, Event, events_of

SCENARIO = Scenario(
    "c",
    "epoll",
    "1",
    (
        Step(0, "sleep", 200),
        Step(1, "burn", 50),
        Step(2, "short", 5, 40),
        Step(3, "sleep", 60),
        Step(4, "modal", 250),
        Step(5, "burn", 200),
    ),
)


def truth(number, action, began, ended, cpu=0):
    return {
        "id": number,
        "action": action,
        "began": began * MS,
        "ended": ended * MS,
        "cpu": cpu * MS,
    }


def line(number, began, seen, ended=None, verdict="blocked", **values):
    return parse_line(
        seen * MS,
        json.dumps(
            {
                "schema": 1,
                "id": number,
                "phase": "seen" if ended is None else "ended",
                "kind": "hang",
                "verdict": verdict,
                "certainty": "certain",
                "began_ns": began * MS,
                "seen_ns": seen * MS,
                "ended_ns": None if ended is None else ended * MS,
                **values,
            }
        ),
    )


def kinds(*lines, acts=()):
    return [event.kind for event in events_of(SCENARIO, lines, acts)]


def test_a_long_wait_is_a_hang_and_a_short_one_is_none():
    assert kinds(truth(0, "sleep", 0, 200), truth(3, "sleep", 300, 361)) == [
        Class.HANG,
        Class.QUIET,
    ]


def test_a_short_task_that_had_no_processor_is_no_hang():
    assert kinds(truth(1, "burn", 0, 400, cpu=50)) == [Class.QUIET]


def test_a_short_wait_that_ended_late_does_not_count():
    assert kinds(truth(3, "sleep", 0, 130)) == [Class.UNSCORED]


def test_a_starved_hang_needs_its_processor_time():
    assert kinds(truth(5, "burn", 0, 300, cpu=90)) == [Class.UNSCORED]
    assert kinds(truth(5, "burn", 0, 300, cpu=200)) == [Class.HANG]


def test_a_disturbed_task_is_no_hang():
    stop = Event(9, "@stop", 10 * MS, 300 * MS, kind=Class.QUIET)
    assert kinds(truth(1, "burn", 0, 310, cpu=50), acts=[stop]) == [Class.QUIET, Class.QUIET]


def test_short_tasks_in_a_row_are_one_event():
    rows = [truth(2, "short", 5 * n, 5 * n + 5, cpu=5) for n in range(40)]
    (event,) = events_of(SCENARIO, rows, ())
    assert (event.action, event.kind, event.duration) == ("short-tasks", Class.QUIET, 200 * MS)


def test_an_incident_is_counted_with_the_event_that_it_shares_most_time_with():
    events = events_of(
        SCENARIO, [truth(0, "sleep", 100, 300), truth(1, "burn", 310, 360, cpu=50)], ()
    )
    lines = [
        line("a", 110, 210),
        line(
            "a",
            110,
            210,
            320,
            culprit={"function": "sleep_in_callback", "share": 1.0},
            waits_for={"what": "sleep 3"},
        ),
    ]
    score = Score()
    score.add("c epoll", events, incidents_of(lines))
    (match,) = score.matches
    assert match.latency == 110 * MS
    assert match.duration_error == 10 * MS
    assert match.is_culprit
    assert score.groups["c sleep"] == {("sleep_in_callback", "sleep")}
    assert (score.false, score.missed) == ([], [])


def test_an_incident_without_a_hang_is_false_unless_it_blames_nobody():
    events = events_of(SCENARIO, [truth(1, "burn", 0, 400, cpu=50)], ())
    score = Score()
    score.add("c epoll", events, incidents_of([line("a", 0, 100, verdict="starved")]))
    assert score.false_events == 0
    assert score.other_verdicts == {("burn", "starved"): 1}
    score.add("c epoll", events, incidents_of([line("b", 0, 100), line("c", 900, 1000)]))
    assert score.false_events == 2


def test_a_nested_loop_may_be_reported_as_one():
    events = events_of(SCENARIO, [truth(4, "modal", 0, 250)], ())
    score = Score()
    score.add("c", events, incidents_of([line("a", 0, 100, rules=[{"name": "nested-loop"}])]))
    assert (score.false_events, len(score.named_as_loops)) == (0, 1)


def test_a_hang_without_an_incident_is_missed():
    events = events_of(SCENARIO, [truth(0, "sleep", 0, 200)], ())
    score = Score()
    score.add("c", events, [])
    assert [event.action for _, event in score.missed] == ["sleep"]


@pytest.mark.parametrize(("percent", "expected"), [(50, 2), (99, 4), (100, 4), (1, 1)])
def test_percentiles_are_values_that_occurred(percent, expected):
    assert percentile([4, 2, 1, 3], percent) == expected


@pytest.mark.parametrize("program", MODES)
def test_a_seed_determines_a_scenario(program):
    first, again, other = (
        create_scenario(program, "epoll", seed, hangs=20, quiet=40) for seed in ("1", "1", "2")
    )
    assert first == again
    assert first.steps != other.steps
    assert sum(step.is_hang for step in first.steps) == 20
    assert len(first.steps) == 60


def test_the_page_has_all_goals_and_what_was_reached(tmp_path):
    figures = {"1": Figure("90 ms", is_reached=True), "4": Figure("98 %", is_reached=False)}
    Section("idle", "Idle", "run idle", figures, ["A line."], stamp="today").save(tmp_path)
    text = page(tmp_path)
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    assert len(rows) == 1 + len(GOALS)
    assert "idle: 90 ms<br>12 burners: not measured yet" in text
    assert "| yes<br>–" in rows[1]
    assert "| **no**<br>–" in rows[4]
    assert "`run idle`: today." in text


def test_sections_of_an_older_lab_are_not_shown(tmp_path):
    (tmp_path / "idle.json").write_text(json.dumps({"name": "idle", "figures": {"1": "90 ms"}}))
    assert load_section(tmp_path, "idle") is None


def test_a_rule_of_another_monitor_chooses_among_the_watchers_stacks():
    times = [number * 20 * MS for number in range(1, 6)]
    stacks = [("leaf_1", "f"), ("leaf_2", "f"), ("leaf_2", "f"), ("leaf_3", "f"), ("leaf_4", "g")]
    run = Run(SCENARIO, events_of(SCENARIO, [truth(0, "sleep", 0, 200)], ()))
    recording = Recording(run, times, stacks, frozenset({"f", "g"}))
    found = {name: rule(recording) for name, rule in RULES.items()}
    assert [one.culprit for one in found["point stack (matrix)"]] == ["g"]
    assert [(one.culprit, one.seen) for one in found["last stack at T"]] == [("g", 100 * MS)]
    assert len(found["ping"]) == 1
