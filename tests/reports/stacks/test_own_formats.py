"""Stacks and profiles that machtrace wrote are read, and written again as they were."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import assume, given, settings

from machtrace.errors import MachtraceError
from machtrace.model.capture import Capture
from machtrace.model.profile import STATES, UNKNOWN, Profile
from machtrace.model.report import Report, ReportedThread
from machtrace.model.snapshot import ThreadState
from machtrace.render import (
    firefox,
    folded,
    json_document,
    pprof,
    profile_json,
    sample_text,
    speedscope,
    text,
)
from machtrace.reports.readers import read_source
from machtrace.reports.sample import thread_heading
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import capture_of
from machtrace.reports.stacks.profiles import profile_of
from machtrace.reports.stacks.reported import report_of_capture, report_of_profile
from machtrace.reports.writers import write_reports
from tests.support.reports.captures import captures, profiles
from tests.support.reports.models import Seen, function, profile

PROFILE = profile([Seen(0, [function("main"), function("hot", offset=0x300)], 3)])


def written(writer: Callable[..., None], value: object) -> str:
    """Return what a writer writes."""
    sink = StringIO()
    writer(value, sink)
    return sink.getvalue()


def read(data: str) -> Report:
    """Return the one report of a text."""
    (report,) = read_source(ReportSource("own", data.encode("utf-8", "surrogateescape"))).reports
    return report


def again(data: str, form: str) -> str:
    """Return a text, read and written again."""
    return write_reports([read(data)], form).decode()


@given(capture=captures())
@settings(max_examples=60, deadline=None)
def test_stacks_come_back_from_text(capture: Capture) -> None:
    """With trust, disputes, inlined calls, Python's functions, recursion, gaps and causes."""
    data = written(text.write, capture)
    assert again(data, "text") == data


@given(capture=captures())
@settings(max_examples=60, deadline=None)
def test_stacks_come_back_from_json(capture: Capture) -> None:
    data = written(json_document.write, capture)
    assert again(data, "stacks-json") == data


@given(capture=captures())
@settings(max_examples=40, deadline=None)
def test_a_report_of_stacks_has_the_stacks(capture: Capture) -> None:
    """Also after a round trip through the JSON of reports."""
    report = report_of_capture(capture)
    expected = written(json_document.write, capture)
    assert written(json_document.write, capture_of(report)) == expected
    stored = read(write_reports([report], "json").decode())
    assert written(json_document.write, capture_of(stored)) == expected


@given(recorded=profiles())
@settings(max_examples=60, deadline=None)
def test_profiles_come_back_from_json(recorded: Profile) -> None:
    """With the time of each sample."""
    known = profile_of(report_of_profile(recorded))
    data = written(profile_json.write, known)
    assert again(data, "profile-json") == data
    assert json.loads(data)["samples"]["times_ns"] == [*recorded.samples.times_ns]


@given(recorded=profiles())
@settings(max_examples=30, deadline=None)
def test_profiles_come_back_from_the_text_of_sample(recorded: Profile) -> None:
    data = write_reports([report_of_profile(recorded)], "sample").decode()
    assert again(data, "sample") == data


@pytest.mark.parametrize("form", ["lldb", "bs", "nsthread"])
@given(capture=captures(has_lines=True))
@settings(max_examples=40, deadline=None)
def test_stacks_come_back_from_formats_of_other_tools(form: str, capture: Capture) -> None:
    """Stop reasons, gaps, and numbers of many digits as well."""
    data = write_reports([report_of_capture(capture)], form).decode()
    assume("start + 4" not in data)  # lldb writes offsets behind names
    assert again(data, form) == data


@given(recorded=profiles())
@settings(max_examples=30, deadline=None)
def test_folded_stacks_come_back(recorded: Profile) -> None:
    """Equally heavy stacks are in the order in which they were seen first, in any thread."""
    data = written(folded.write, recorded)
    assume(data)
    assert sorted(again(data, "folded").splitlines()) == sorted(data.splitlines())


@given(recorded=profiles())
@settings(max_examples=30, deadline=None)
def test_profiles_come_back_from_speedscope(recorded: Profile) -> None:
    """Functions that differ by their image alone become one."""
    data = written(speedscope.write, recorded)
    once = again(data, "speedscope")
    assert stacks_of(json.loads(once)) == stacks_of(json.loads(data))
    assert again(once, "speedscope") == once


@given(recorded=profiles())
@settings(max_examples=30, deadline=None)
def test_profiles_come_back_from_pprof(recorded: Profile) -> None:
    """The stacks of each thread by name; threads without samples have no place there."""
    data = gzip.decompress(pprof.data(recorded))
    (report,) = read_source(ReportSource("own", data)).reports
    expected = written(folded.write, recorded).splitlines()
    assert sorted(written(folded.write, profile_of(report)).splitlines()) == sorted(expected)
    assert profile_of(report).run.interval_ns == recorded.run.interval_ns
    assert profile_of(report).run.duration_ns == recorded.run.duration_ns


@given(recorded=profiles())
@settings(max_examples=30, deadline=None)
def test_profiles_come_back_from_firefox(recorded: Profile) -> None:
    """The samples of each thread with their times, and the run."""
    report = read(written(firefox.write, recorded))
    known = profile_of(report)
    expected = written(folded.write, recorded).splitlines()
    assert sorted(written(folded.write, known).splitlines()) == sorted(expected)
    assert (known.run.interval_ns, known.run.duration_ns) == (
        recorded.run.interval_ns,
        recorded.run.duration_ns,
    )
    assert sorted(known.samples.times_ns) == sorted(recorded.samples.times_ns)
    states = [
        UNKNOWN if stack < 0 else state
        for stack, state in zip(recorded.samples.stacks, recorded.samples.states, strict=True)
    ]
    assert sorted(known.samples.states) == sorted(states)
    again = read(written(firefox.write, known))
    assert written(firefox.write, profile_of(again)) == written(firefox.write, known)


@given(recorded=profiles())
@settings(max_examples=30, deadline=None)
def test_states_and_processor_times_come_back_from_json(recorded: Profile) -> None:
    """Those of each sample, of threads, and what was left out or merged."""
    for profiled in (recorded, recorded.without_idle(), recorded.with_merged_threads()):
        known = profile_of(read(written(profile_json.write, profiled)))
        assert (known.samples.states, known.samples.cpu_ns) == (
            profiled.samples.states,
            profiled.samples.cpu_ns,
        )
        assert [thread.activity for thread in known.threads] == [
            thread.activity for thread in profiled.threads
        ]


@pytest.mark.parametrize(
    "change",
    [
        lambda samples: samples.update(states=["flying"] * 3),
        lambda samples: samples.update(states=["running"] * 2),
        lambda samples: samples.update(states=[["running"]] * 3),
        lambda samples: samples.update(cpu_ns=[-1, None, 2]),
        lambda samples: samples.update(cpu_ns=[1.5, None, 2]),
        lambda samples: samples.update(cpu_ns={}),
        lambda samples: samples.update(cpu_ns=[1 << 48, None, 2]),
    ],
)
def test_invalid_states_and_times_are_refused(change: Callable[[dict[str, object]], None]) -> None:
    document = profile_json.document(PROFILE)
    change(document["samples"])
    with pytest.raises(MachtraceError):
        read(json.dumps(document))


@pytest.mark.parametrize("key", ["running", "cpu_ns", "left_out", "merged"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", 1 << 70])
def test_invalid_counts_of_threads_are_refused(key: str, value: object) -> None:
    document = profile_json.document(PROFILE)
    document["threads"][0][key] = value
    with pytest.raises(MachtraceError):
        read(json.dumps(document))


def test_processor_times_that_no_thread_can_have_are_bounded() -> None:
    """A hostile file does not overflow columns, in its own format or another."""
    document = profile_json.document(ACTIVE)
    document["samples"]["cpu_ns"] = [(1 << 48) - 1] * 6
    report = read(json.dumps(document))
    for form in ("speedscope", "firefox", "pprof", "sample", "profile-json"):
        assert write_reports([report], form)
    recorded = profile([Seen(0, [function("main")], 40_000, ThreadState.RUNNING, 1 << 48)])
    assert written(speedscope.write, recorded)
    data = gzip.decompress(pprof.data(profile([Seen(0, [function("main")], 1, None, 1 << 62)])))
    (report,) = read_source(ReportSource("own", data)).reports
    assert [*profile_of(report).samples.cpu_ns] == [UNKNOWN]
    changed = json.loads(written(firefox.write, ACTIVE))
    changed["threads"][0]["samples"]["threadCPUDelta"] = [1e300, -1, "x", None, 1 << 41]
    known = profile_of(read(json.dumps(changed))).samples
    assert sorted({*known.cpu_ns}) == [UNKNOWN, 1 << 41]


ACTIVE = profile(
    [
        Seen(0, [function("main"), function("hot", offset=0x300)], 3, ThreadState.RUNNING, 7000000),
        Seen(0, [function("main"), function("cold", offset=0x400)], 2, ThreadState.SLEEPING, 500),
        Seen(1, [function("main")], 1, None),
    ],
    names=("main", "worker"),
)


def test_processor_times_come_back_from_other_formats() -> None:
    """Firefox has those of samples, speedscope and pprof those of stacks; two have states."""

    def known(data: bytes) -> tuple[list[int], list[str], int]:
        (report,) = read_source(ReportSource("own", data)).reports
        samples = profile_of(report).samples
        times = sorted(cpu_ns for cpu_ns in samples.cpu_ns if cpu_ns != UNKNOWN)
        states = {STATES[state].value for state in samples.states if state != UNKNOWN}
        return times, sorted(states), sum(samples.weights)

    states = ["running", "sleeping"]
    data = written(firefox.write, ACTIVE).encode()
    assert known(data) == ([500, 500, *[7000000] * 3], states, 6)
    assert known(written(speedscope.write, ACTIVE).encode()) == ([1000, 21000000], [], 6)
    data = gzip.decompress(pprof.data(ACTIVE))
    assert known(data) == ([0, 1000, 21000000], states, 6)


def test_headings_of_sample_s_text_have_running_samples_and_processor_times() -> None:
    """They come back, also of merged threads; Apple's headings are as they were."""
    for profiled in (ACTIVE, ACTIVE.without_idle(), ACTIVE.with_merged_threads(by_name=False)):
        data = written(sample_text.write, profiled)
        assert again(data, "sample") == data
        known = profile_of(read(data)).threads
        assert [thread.activity for thread in known] == [
            thread.activity for thread in profiled.threads
        ]
    assert "    3 Thread_259: main   (3 running, 2 idle left out, 0.021 s CPU)\n" in written(
        sample_text.write, ACTIVE.without_idle()
    )
    assert "    1 Thread_260: worker\n" in written(sample_text.write, ACTIVE)


@pytest.mark.parametrize(
    "heading",
    ["pool   (3 ran)", "pool   (running)", "pool   ()", "pool (3 running)", "a   (1 running) b"],
)
def test_other_text_in_parentheses_belongs_to_a_thread_s_name(heading: str) -> None:
    assert thread_heading(f"Thread_7: {heading}").name == heading
    assert thread_heading(f"Thread_7: {heading}").details == {}


def stacks_of(document: Any) -> list[object]:
    """Return the samples of each profile with the names and files of functions."""
    functions = document["shared"]["frames"]
    return [
        (
            profile["name"],
            profile["weights"],
            [[functions[number] for number in stack] for stack in profile["samples"]],
        )
        for profile in document["profiles"]
    ]


def test_explanations_come_back() -> None:
    """Lines below frames, and JSON's objects."""
    lines = "        → compact unwind: it claims this pc\n            cfa = sp + 16\n"
    data = (
        "Demo [7]  arm64  1 thread  1 image\n\nThread 1  id 7\n"
        f"   0  Demo  0x0000000100000104  main + 4\n{lines}"
        "   1  Demo  0x0000000100000204  start + 4  [compact]\n"
    )
    assert again(data, "text") == data
    (entry,) = (thread for thread in read(data).threads)
    assert entry.frames[0].details["explanation"] == lines.splitlines()


def test_keys_of_later_versions_are_written_again() -> None:
    document = json_document.document(capture_of(one_stack()))
    document["new"] = {"key": 1}
    document["threads"][0]["state"] = "running"
    document["threads"][0]["frames"][0]["mark"] = [None]
    data = json.dumps(document, indent=2) + "\n"
    assert again(data, "stacks-json") == data


def one_stack() -> Report:
    """Return a report of one stack."""
    report = report_of_profile(PROFILE)
    (tree,) = report.trees
    frames = tuple(node.frame for node in reversed(tree.nodes))
    return replace(report, trees=(), threads=(ReportedThread(index=0, id=7, frames=frames),))


def test_lines_of_no_kind_are_stored() -> None:
    """Nothing of a text is dropped."""
    data = (
        "$ machtrace backtrace 7\nDemo [7]  arm64  1 thread  1 image\n\nThread 1  id 7\n"
        "   0  Demo  0x0000000100000104  main + 4\nan odd line\n"
    )
    report = read(data)
    assert report.details["lines"] == ["$ machtrace backtrace 7"]
    assert report.threads[0].details["lines"] == ["an odd line"]
    assert again(data, "text") == data


def test_several_processes_are_several_reports() -> None:
    capture = capture_of(one_stack())
    data = written(text.write, capture)
    reports = read_source(ReportSource("own", f"{data}\n{data}".encode())).reports
    assert len(reports) == 2
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["stacks"]["callers"].__setitem__(0, 5),
        lambda document: document["samples"]["stacks"].__setitem__(0, 99),
        lambda document: document["samples"]["threads"].append(0),
        lambda document: document["frames"][0].__setitem__("trust", "hope"),
        lambda document: document["frames"][0].__setitem__("address", -1),
        lambda document: document["run"].__setitem__("interval_ns", 0),
        lambda document: document.__setitem__("schema", 2),
        lambda document: document.__setitem__("process", None),
    ],
)
def test_an_invalid_profile_is_refused(change: Callable[[dict[str, object]], None]) -> None:
    document = profile_json.document(PROFILE)
    change(document)
    with pytest.raises(MachtraceError):
        read(json.dumps(document))


@pytest.mark.parametrize("form", ["folded", "speedscope", "pprof"])
def test_an_architecture_that_a_format_lacks_is_unknown(form: str) -> None:
    data = write_reports([report_of_profile(PROFILE)], form)
    data = gzip.decompress(data) if form == "pprof" else data
    (report,) = read_source(ReportSource("own", data)).reports
    assert report.process.code_type is None
    assert {image.arch for image in report.images} <= {None}


@pytest.mark.parametrize("numbers", ["1–4", "   4", "  1–4"])
def test_a_folded_recursion_is_read_with_the_numbers_of_its_frames_or_its_last_one(
    numbers: str,
) -> None:
    data = "Thread 1  id 7\n   0  a  0x0000000100000104  f + 4\n"
    data += f"{numbers}  the same frame 4 more times\n   5  a  0x0000000100000204  g + 4\n"
    frames = read(data).threads[0].frames
    assert [str(frame.symbol) for frame in frames] == [*["f + 4"] * 5, "g + 4"]


def test_recursions_take_no_more_room_than_a_deep_stack() -> None:
    """A line may stand for any number of frames: there are limits."""
    data = "Thread 1  id 7\n   0  a  0x0000000100000104  f + 4\n"
    data += "9  the same frame 200000 more times\n" * 9
    report = read(data)
    assert len(report.threads[0].frames) == 200_001
    lines = report.threads[0].details["lines"]
    assert isinstance(lines, list)
    assert len(lines) == 8
