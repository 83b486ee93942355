"""Equal stacks once, with the threads that have them: ``--unique``."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

import machtrace as mt
from machtrace.model.capture import Capture
from machtrace.model.cause import linux_cause
from machtrace.model.snapshot import ThreadId, ThreadInfo
from machtrace.model.stack import Stop, StopReason
from machtrace.model.symbol import CallStack, PythonFrame, SourceLocation
from machtrace.render import json_document, lldb, text
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import capture_of
from machtrace.reports.writers import write_reports
from tests.render.test_formats import NAMED, NAMELESS, REPORT, STACK
from tests.support.command_line import run_command as machtrace
from tests.support.reports.captures import captures

IDLE = (NAMED, NAMELESS)


def stack(index: int, frames=IDLE, *, name: str | None = "worker", **changes) -> CallStack:
    """Return the stack of a thread."""
    info = ThreadInfo(id=ThreadId(100 + index), index=index, name=name, **changes)
    return CallStack(thread=info, frames=frames, stop=Stop(StopReason.ROOT))


def written(stacks, write=text.write) -> str:
    """Return what a writer writes of merged stacks."""
    sink = io.StringIO()
    write(replace(REPORT, stacks=tuple(stacks)).unique, sink)
    return sink.getvalue()


def read(data: str) -> Capture:
    """Return the stacks that a text or JSON has."""
    (report,) = read_source(ReportSource("own", data.encode("utf-8", "surrogateescape"))).reports
    return capture_of(report)


def test_the_stack_of_most_threads_comes_first_and_a_crash_before_it():
    """A crashed thread shows its cause and registers: it is not merged with threads like it."""
    stacks = [stack(1, (NAMED,)), stack(2), stack(3), stack(4, crashed=True), stack(5)]
    merged = mt.unique_stacks(stacks)

    assert [one.thread.index for one in merged] == [4, 2, 1]
    assert [[other.index for other in one.others] for one in merged] == [[], [3, 5], []]


def test_threads_that_a_signal_stopped_are_merged_with_their_like_and_come_first():
    trap = {"cause": linux_cause(5, 0, None)}
    stop = {"cause": linux_cause(19, 0, None)}
    stacks = [stack(1), stack(2), stack(3), stack(4, **trap), stack(5, **trap), stack(6, **stop)]
    merged = mt.unique_stacks([*stacks, stack(7, crashed=True, **trap)])

    assert [one.thread.index for one in merged] == [7, 4, 1]
    assert [[other.index for other in one.others] for one in merged] == [[], [5], [2, 3, 6]]


def test_what_distinguishes_stacks_is_what_they_show():
    """Where memory ended differs between threads, why it ended does not."""
    python = PythonFrame("work", SourceLocation("job.py", 3))
    ended = [replace(stack(n), stop=Stop(StopReason.UNREADABLE, n * 4096)) for n in (1, 2)]
    other = [stack(3), stack(4, (replace(NAMED, python=(python,)), NAMELESS)), stack(5, (NAMED,))]

    assert [len(one.others) for one in mt.unique_stacks([*ended, *other])] == [1, 0, 0, 0]
    assert mt.unique_stacks(mt.unique_stacks(ended)) == mt.unique_stacks(ended)
    assert mt.unique_stacks([]) == []


def test_a_thousand_equal_threads_are_one_stack_with_a_line():
    lines = written(stack(index) for index in range(1, 1001)).splitlines()

    assert lines[0].endswith("1,000 threads  1 image  1 distinct stack")
    assert lines[2:4] == [
        "Thread 1  “worker”  id 101",
        "  and 999 threads: 2–1000  id 102–1100  “worker”",
    ]
    assert len(lines) == 6


def test_names_with_numbers_share_a_line():
    """Other names have lines of their own, those of most threads first."""
    stacks = [stack(index, name=f"pool-{index}") for index in (1, 2, 3, 5)]
    stacks += [stack(6, name="pool-"), stack(7, name=None), stack(8, name="007")]

    assert written(stacks).splitlines()[3:7] == [
        "  and 3 threads: 2–3, 5  id 102–103, 105  “pool-” 2–3, 5",
        "  and 1 thread: 6  id 106  “pool-”",
        "  and 1 thread: 7  id 107",
        "  and 1 thread: 8  id 108  “007”",
    ]
    assert [one.thread.name for one in read(written(stacks)).stacks] == [
        *("pool-1", "pool-2", "pool-3", "pool-5", "pool-", None, "007")
    ]


def test_a_line_does_not_grow_with_any_number_of_names_and_numbers():
    """JSON has them all."""
    scattered = [stack(index) for index in range(1, 400, 2)]
    named = [stack(index, name=f"{index}x") for index in range(1, 200)]
    assert written(scattered).splitlines()[3].count(", …") == 2
    assert written(named).splitlines()[3 + 8] == "  and 190 threads of 190 other names"
    entry = json.loads(written(named, json_document.write))["threads"][0]
    assert [other["name"] for other in entry["others"]] == [f"{n}x" for n in range(2, 200)]
    assert {other["index"] for other in entry["others"]} == set(range(2, 200))


def test_lldb_lists_numbers_above_each_stack():
    """Its selected thread has no mark there."""
    shown = written([stack(1, (NAMED,)), stack(2), stack(3)], lldb.write_unique).splitlines()

    assert [line for line in shown if "frame" not in line] == [
        *("2 thread(s) #2 #3 ", "1 thread(s) #1 ")
    ]
    assert shown[1].startswith("    frame #0: 0x")


def doubled(capture: Capture) -> Capture:
    """Return the capture with every stack twice, under other ids."""
    count = len(capture.stacks)
    ids = max((one.thread.id for one in capture.stacks), default=0) + 1
    copies = [
        replace(
            first,
            thread=replace(
                first.thread, id=ThreadId(ids + number), index=number + count + 1, crashed=False
            ),
        )
        for number, first in enumerate(capture.stacks)
    ]
    numbered = [
        replace(first, thread=replace(first.thread, index=number))
        for number, first in enumerate(capture.stacks, 1)
    ]
    return replace(capture, stacks=(*numbered, *copies))


@given(capture=captures())
@settings(max_examples=40, deadline=None)
def test_merged_stacks_are_those_of_all_threads(capture: Capture) -> None:
    capture = doubled(capture)
    again = capture.unique.of_each_thread

    assert len(capture.unique.stacks) <= len(capture.stacks)
    assert [one.thread for one in again.stacks] == [one.thread for one in capture.stacks]
    assert [str(one.frames) for one in again.stacks] == [str(one.frames) for one in capture.stacks]


@given(capture=captures())
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("write", [text.write, json_document.write])
def test_merged_stacks_are_read_with_all_their_threads(write, capture: Capture) -> None:
    """Stacks of each thread come back, merged again they are as they were written."""
    sink = io.StringIO()
    write(doubled(capture).unique, sink)
    again = read(sink.getvalue())
    assert {one.thread.id for one in again.stacks} == {
        one.thread.id for one in doubled(capture).stacks
    }
    if write is json_document.write:
        assert len(again.unique.stacks) == len(doubled(capture).unique.stacks)
        assert shown_causes(again) == shown_causes(doubled(capture))


def shown_causes(capture: Capture) -> dict[int, str]:
    """Return the causes of threads, by their ids."""
    causes = {one.thread.id: one.thread.cause for one in capture.stacks}
    return {key: str(cause) for key, cause in causes.items() if cause and cause.is_shown}


def test_threads_of_a_text_share_the_cause_above_their_stack():
    trap = {"cause": linux_cause(5, 1, None)}
    again = read(written([stack(1), stack(2, **trap), stack(3, **trap)]))
    assert shown_causes(again) == {102: "SIGTRAP (TRAP_BRKPT): breakpoint", 103: str(trap["cause"])}


def test_lldb_s_unique_stacks_are_read_with_all_their_threads():
    shown = written([stack(1, (NAMED,)), stack(2), stack(3)], lldb.write_unique)
    assert [(one.thread.index, len(one.frames)) for one in read(shown).stacks] == [
        *((1, 1), (2, 2), (3, 2))
    ]


@pytest.mark.parametrize(
    "line",
    [
        "  and 2 threads: 2–4  id 102–103",
        "  and 3 threads: 2–4  id 102–103",
        "  and 999,999,999 threads: 2–1000000000  id 2–1000000000",
        "  and 2 threads: 2, 4, …  id 102, 104, …",
        "  and 190 threads of 190 other names",
        "  and 2 threads: 4–2  id 4–2",
        "  and 200,000 threads: 2–200001  id 2–200001",
    ],
)
def test_lines_that_list_no_threads_stay_lines(line):
    """Contradictions, what was left out, and more than a process has."""
    report = f"Thread 1  id 7\n{line}\n   0  a  0x0000000100000104  f + 4\n" + (
        "   1  a  0x0000000100000204  g + 4\n" * 2
    )
    (read_report,) = read_source(ReportSource("own", report.encode())).reports
    assert len(read_report.threads) == 1
    assert line in write_reports([read_report], "text").decode().splitlines()


def test_other_formats_have_each_thread(tmp_path):
    """A merged stack stands for each of its threads."""
    mt.write_report(mt.unique_stacks([stack(1), stack(2), STACK]), "bs", tmp_path / "all.txt")
    assert (tmp_path / "all.txt").read_text().startswith("Call Backtrace of 3 threads:")
    mt.write_report(mt.unique_stacks([stack(1), stack(2)]), "apple", tmp_path / "all.crash")
    assert (tmp_path / "all.crash").read_text().count("\nThread ") == 4  # headings and names


@pytest.fixture
def file(tmp_path):
    """Return a text of three threads, two of them with one stack."""
    path = tmp_path / "stacks.txt"
    capture = replace(REPORT, stacks=(stack(1, (NAMED,)), stack(2), stack(3)))
    path.write_text(f"{capture}\n")
    return path


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ((), "  and 1 thread: 3  id 103  “worker”\n"),
        (("-f", "lldb"), "2 thread(s) #2 #3 \n"),
        (("-f", "stacks-json"), '"others": [\n        {\n          "id": 103,'),
    ],
)
def test_reports_are_converted_with_equal_stacks_merged(file, words, shown):
    done = machtrace("convert", file, "--unique", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


def test_formats_without_a_place_for_it_are_refused(file):
    """So are registers of threads that are merged."""
    done = machtrace("convert", file, "--unique", "-f", "apple")
    assert done.returncode == 2
    assert "--unique requires --format text, stacks-json, lldb, not apple" in done.stderr
    done = machtrace("backtrace", "emulated:demo", "-u", "-f", "nsthread")
    assert done.returncode == 2
    assert "--unique requires --format text, lldb, json, not nsthread" in done.stderr
    done = machtrace("backtrace", "emulated:demo", "-u", "--registers")
    assert done.returncode == 2
    assert "omit one" in done.stderr
