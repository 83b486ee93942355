"""The short form of the lab of hangs. Nothing here depends on the time that anything takes.

Each hang lasts until ``machtrace watch`` has reported it. A loaded machine may prolong what is no
hang, so that only reports of times that the program itself states as short, or as without any task
are failures.
"""

import pytest

from tests.support.hangs.programs import build, missing_reason
from tests.support.hangs.runner import run_until_reported
from tests.support.hangs.scenarios import THRESHOLD_MS, UNTIL_RELEASED, Scenario, Step, action_of
from tests.support.hangs.scoring import Score
from tests.support.hangs.soak import soak
from tests.support.hangs.truth import MS

HANGS = {
    ("c", "epoll"): ("read", "mutex", "flock", "child", "burn", "leaves"),
    ("c", "epoll-30ms"): ("condition", "burn", "recv"),
    ("c", "select"): ("join", "rwlock"),
    ("python", "asyncio"): ("sleep", "lock", "recv", "child", "burn"),
    ("python", "selector-timeout"): ("read", "rlock", "join"),
}
QUIET = (("short", 3, 12), ("nothing", 1, 100), ("sleep", 20, 1), ("worker", 150, 1))


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    reason = missing_reason("c")
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hangs")
    build(folder)
    return folder


@pytest.mark.parametrize(("program", "mode"), HANGS, ids=[" ".join(key) for key in HANGS])
def test_each_hang_is_reported_with_its_culprit(program, mode, programs):
    planned = [(name, UNTIL_RELEASED, 1) for name in HANGS[program, mode]]
    mixed = [step for hang in planned for step in (hang, *QUIET)]
    steps = tuple(Step(number, *step, gap_ms=60) for number, step in enumerate(mixed))
    run = run_until_reported(Scenario(program, mode, "fixed", steps), programs)
    score = Score()
    score.add(f"{program} {mode}", run.events, run.incidents)
    assert score.missed == []
    assert run.status == 1
    waits = [match for match in score.matches if action_of(program, match.event.action).waits]
    wrong = {(match.event.action, match.incident.culprit) for match in waits if not match.is_inside}
    assert wrong == set()
    assert {match.incident.verdict for match in waits} <= {"blocked"}
    assert all(match.incident.duration <= match.incident.ended for match in score.matches)
    short = [
        (event.action, incident.culprit)
        for _, event, incident in score.false
        if event is not None and event.duration < THRESHOLD_MS * MS / 2
    ]
    assert short == []


def test_a_killed_watcher_leaves_no_thread_stopped_and_a_live_one_keeps_its_size(programs):
    course = soak(programs, 0, "1", lambda _: None)
    assert course.kills == {"watchers": 1, "stopped": 0, "stuck": 0}
    assert course.hangs
    assert {size.threads for size in course.program} == {course.program[0].threads}
