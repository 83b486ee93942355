"""The text of an incident."""

from __future__ import annotations

from dataclasses import replace

import pytest

from machtrace.model.incident import (
    Culprit,
    LockOwner,
    TimeRange,
    VerdictCertainty,
    WaitsFor,
    WatchedThread,
)
from machtrace.model.incident_text import (
    condensed,
    evidence_text,
    headline,
    owner_text,
    shown_bytes,
    shown_duration,
)
from machtrace.model.text import COLOUR
from tests.support.reports.incidents import (
    APP,
    DEADLOCK,
    ENDED,
    HANG,
    MEMORY,
    SECOND,
    frame,
    python_frame,
    stack,
)

EXPECTED = """\
Hang (blocked): server 4711 in handle (handle.c:41), 260.0 ms so far
  certain    no context switch, did not run, same call
  when       began 2026-11-23 04:30:12.080 +0000 ± 10.0 ms, seen 260.0 ms later, threshold 250ms, \
not ended
  culprit    handle (handle.c:41), 98 % of the time
  waits for  mutex 0x550000200040, held by thread 4712 of process 4711
  rule       launch-grace: the first 5 s after the start do not count
  missing    the registers of thread 4712: it exited
  host       2 processors, load 1.25, tasks waited for: processor 3 %, memory 0 % of 10 s
  watcher    4,500 polls, 2 late (at most 31.0 ms), 13.0 ms of processor time, no stops

Thread 1  “server”  id 4711
"""


def test_an_incident_is_on_one_screen() -> None:
    text = str(HANG)
    assert text.startswith(EXPECTED)
    assert len(text.splitlines()) == 10 + 1 + 4


def test_the_end_is_told_by_its_time() -> None:
    lines = str(ENDED).splitlines()
    assert lines[0].endswith(", 3.21 s")
    assert lines[2].endswith("ended 2.95 s after that ± 10.0 ms")


def test_a_time_without_a_calendar_is_relative() -> None:
    relative = str(
        replace(HANG, seen_wall_ns=None, began=TimeRange(SECOND, SECOND), seen_ns=SECOND)
    )
    assert "began 0.0 µs before it was seen" in relative


def test_the_cycle_of_a_deadlock_ends_where_it_began() -> None:
    assert "  cycle      server 4711 → worker 4712 → server 4711" in str(DEADLOCK).splitlines()
    many = tuple(WatchedThread(number) for number in range(20))
    assert "→ …" in str(replace(DEADLOCK, cycle=many))


def test_memory_is_shown_in_units() -> None:
    text = str(MEMORY)
    assert "resident 400 MiB, jump 300 MiB, over 1.00 s" in text


def test_names_cannot_control_a_terminal() -> None:
    hostile = replace(
        HANG,
        thread=WatchedThread(1, "\x1b[2J"),
        culprit=Culprit("f\x1b", "i\n", "/a\x07/b\x1b.py", 1),
        waits_for=WaitsFor("\x1b]0;x\x07", None, None),
        missing=("\x1b",),
        evidence={"\x1b": "\x1b"},
        stacks=(),
        capture=None,
    )
    assert all(line.isprintable() for line in str(hostile).splitlines())


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        (LockOwner(1, 2, recorded=True), "held by thread 2 of process 1"),
        (LockOwner(None, 2, recorded=True), "held by thread 2"),
        (LockOwner(7, None, recorded=True), "held by process 7"),
        (LockOwner(None, None, recorded=False), "owner not recorded"),
        (LockOwner(None, None, recorded=True), "owner unknown"),
    ],
)
def test_an_owner_is_named_or_stated_to_be_unrecorded(owner: LockOwner, text: str) -> None:
    assert owner_text(owner) == text


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ({"switches": 3}, "3 context switches"),
        ({"delay_ns": 5 * SECOND}, "was ready without a processor for 5.00 s"),
        ({"is_frozen": False, "tracer": 12, "state": "T", "unread": None}, None),
        ({}, "another verdict is possible"),
        ({"voluntary_switches": True}, "voluntary switches"),
    ],
)
def test_evidence_is_in_words(evidence: dict[str, object], text: str | None) -> None:
    facts = replace(HANG, certainty=VerdictCertainty.LIKELY, evidence=evidence)
    assert evidence_text(facts) == (text or "not is frozen, tracer 12, state T")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0.0 µs"),
        (999_000_000, "999.0 ms"),
        (59 * SECOND, "59.00 s"),
        (60 * SECOND, "1 min"),
        (125 * SECOND, "2 min 5 s"),
        (7_380 * SECOND, "2 h 3 min"),
    ],
)
def test_durations_of_any_length(nanoseconds: int, text: str) -> None:
    assert shown_duration(nanoseconds) == text


def test_bytes_of_any_number() -> None:
    shown = [shown_bytes(size) for size in (12, 5 << 10, 300 << 20, 3 << 30)]
    assert shown == ["12 B", "5 KiB", "300 MiB", "3.00 GiB"]


def test_a_process_is_named_where_no_thread_is() -> None:
    assert headline(replace(HANG, thread=None, culprit=None, duration_ns=0)) == (
        "Hang (blocked): process 4711"
    )


def test_the_interpreter_is_left_out_between_python_functions() -> None:
    python = python_frame("handle", "/srv/handle.py", 3)
    interpreter = replace(APP, path="/usr/lib/libpython3.11.so.1.0")
    glue = replace(frame("serve"), image=interpreter)
    outer = python_frame("main", "/srv/main.py", 9)
    whole = stack(("__futex_wait", "handle", "main"))
    frames = (whole.frames[0], glue, python, glue, whole.frames[1], outer, glue, whole.frames[2])
    shown, omitted = condensed(replace(whole, frames=frames))
    names = [one.python[0].name if one.python else one.symbol.name for one in shown.frames]
    assert names == ["__futex_wait", "serve", "handle", "handle", "main"]
    assert omitted == 3
    assert "   …  3 frames of the interpreter omitted" in str(
        replace(HANG, stacks=(HANG.stacks[0]._replace(stack=replace(whole, frames=frames)),))
    )


def test_a_stack_without_python_functions_is_whole() -> None:
    whole = stack(("__futex_wait", "handle", "main"))
    assert condensed(whole) == (whole, 0)


def test_a_terminal_gets_emphasis() -> None:
    assert next(HANG.text_lines(COLOUR)).startswith("\x1b[1mHang")
