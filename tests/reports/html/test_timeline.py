"""The timeline of an incident, and its display in a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from machtrace.errors import FormatError
from machtrace.model.incident.facts import Culprit, SeriesPoint, TimedStack, WatchedThread
from machtrace.reports.html.page import write
from machtrace.reports.html.timeline import timeline
from machtrace.reports.machtrace_json import reports_json
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import SAMPLES
from machtrace.reports.stacks.incidents import report_of_incident
from tests.support.peers.chromium import chromium_page, chromium_program
from tests.support.reports.incidents import (
    DEADLOCK,
    ENDED,
    EVERY_KIND,
    HANG,
    MILLISECOND,
    SECOND,
    SEEN,
    stack,
)


def test_states_are_runs_with_their_time() -> None:
    page = timeline(report_of_incident(ENDED))
    assert "<title>idle for 58.00 s</title>" in page
    assert "<title>blocked for 2.00 s</title>" in page
    assert page.count('class="state idle"') == 2, "a box and its key"


def test_processor_and_memory_are_steps_without_what_is_unknown() -> None:
    page = timeline(report_of_incident(ENDED))
    assert page.count('class="level"') == 59 + 60
    assert "at most 2 % of one processor" in page
    assert "100 MiB to 159 MiB" in page


def test_consecutive_equal_stacks_are_one_block() -> None:
    taken = stack(("lex", "parse", "main"))
    stacks = tuple(
        TimedStack(SEEN + at * 50 * MILLISECOND, 50 * MILLISECOND, taken) for at in range(5)
    )
    page = timeline(report_of_incident(replace(HANG, stacks=stacks)))
    assert page.count("<title>lex ← parse ← main</title>") == 1
    assert "for 250.0 ms" in page


def test_a_deep_wait_shows_the_culprit() -> None:
    taken = stack(("__futex_wait", "clock_nanosleep", "lex", "handle", "serve", "main"))
    incident = replace(HANG, stacks=(TimedStack(SEEN, SECOND, taken),), representative=0)
    page = timeline(report_of_incident(incident))
    assert "<title>__futex_wait ← … ← handle ← serve</title>" in page


def test_a_timeline_is_before_the_stacks_with_one_flame_graph() -> None:
    page = write([report_of_incident(HANG)])
    assert page.index(">Timeline<") < page.index(">Flame graph<") < page.index(">Stacks</h2>")
    assert page.count('class="flame"') == 1


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_page_loads_nothing(kind: str) -> None:
    page = write([report_of_incident(EVERY_KIND[kind])])
    assert not re.search(r"(?:src|href)=[\"']?(?!#)", page)
    assert " style=" not in page


def test_reports_without_times_have_no_timeline() -> None:
    assert timeline(report_of_incident(replace(DEADLOCK, series=()))) == ""
    assert timeline(replace(report_of_incident(HANG), watch=None)) == ""


def test_hostile_names_are_text() -> None:
    evil = '"><script>document.title="owned"</script>'
    incident = replace(
        HANG,
        thread=WatchedThread(4711, evil),
        culprit=Culprit(evil, evil),
        series=(SeriesPoint(SEEN, 0.5, 1 << 20, evil), SeriesPoint(SEEN, None, None, None)),
        missing=(evil,),
    )
    assert "<script>document" not in write([report_of_incident(incident)])


def test_samples_that_another_program_changed_are_drawn_or_left_out() -> None:
    report = report_of_incident(HANG)
    columns = report.details[SAMPLES]
    assert isinstance(columns, dict)
    for changed in (
        {"boot_ns": [1, 2]},
        {"boot_ns": None},
        {"boot_ns": [True, "1", 1 << 80]},
        {"weights_ns": [-1, 1, 1]},
        {"frames": [99, 99, 99]},
    ):
        broken = replace(report, details={**report.details, SAMPLES: columns | changed})
        assert write([broken])


@pytest.mark.parametrize("number", [str(1 << 80), str(-(1 << 80))])
def test_numbers_out_of_range_are_refused(number: str) -> None:
    document = json.loads(reports_json([report_of_incident(HANG)]))
    document["reports"][0]["watch"]["evidence"] = {"run_ns": "NUMBER"}
    text = json.dumps(document).replace('"NUMBER"', number)
    with pytest.raises(FormatError):
        read_source(ReportSource("hang.json", text.encode()))


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1 << 62])
def test_facts_have_numbers_that_can_be_shown(number: float) -> None:
    with pytest.raises(ValueError, match="out of range"):
        replace(HANG, evidence={"run_ns": number})
    with pytest.raises(ValueError, match="out of range"):
        replace(HANG, series=(SeriesPoint(SEEN, number, None, None),))


def test_a_time_after_all_calendars_is_refused() -> None:
    with pytest.raises(ValueError, match="out of range"):
        replace(HANG, seen_wall_ns=1 << 70)


def test_a_long_series_is_cut() -> None:
    series = tuple(SeriesPoint(at * SECOND, 0.5, None, "busy") for at in range(5_000))
    page = timeline(report_of_incident(replace(HANG, series=series)))
    assert page.count('class="level"') == 1_200


@pytest.mark.peer
@pytest.mark.skipif(chromium_program() is None, reason="no Chromium")
def test_a_browser_shows_it_wide_and_narrow_light_and_dark(tmp_path: Path) -> None:
    (tmp_path / "hang.html").write_text(write([report_of_incident(ENDED)]), encoding="utf-8")
    widths: list[bool] = []
    colours = set()
    with chromium_page(tmp_path) as page:
        for width in (360, 1600):
            page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=900,
                deviceScaleFactor=1,
                mobile=False,
            )
            for scheme in ("light", "dark"):
                page.media(**{"prefers-color-scheme": scheme})
                page.open(tmp_path / "hang.html")
                page.value("document.querySelector('.flame').scrollIntoView()")
                page.wait_for("document.querySelector('.flame .status').textContent")
                overflow = (
                    "document.documentElement.scrollWidth > document.documentElement.clientWidth"
                )
                assert page.value(overflow) is False, (width, scheme)
                colours.add(
                    page.value("getComputedStyle(document.querySelector('rect.idle')).fill")
                )
            sections = "[...document.querySelectorAll('.beside > section')]"
            tops = f"{sections}.map(section => section.getBoundingClientRect().top)"
            first, second = page.value(tops)
            widths.append(first == second)
        assert widths == [False, True], "one below the other, then side by side"
        assert len(colours) == 2
        assert page.complaints == []
        assert [address for address in page.requests if not address.startswith("file:")] == []
