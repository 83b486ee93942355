"""The text of an incident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from machtrace.model.address import Avma
from machtrace.model.incident.facts import (
    Culprit,
    LockOwner,
    TimeRange,
    Verdict,
    VerdictCertainty,
    WaitsFor,
    WatchedThread,
)
from machtrace.model.incident.stack_text import condensed, short_name, stack_lines
from machtrace.model.incident.text import (
    ended_lines,
    evidence_text,
    facts_of,
    headline,
    incident_lines,
    shown_bytes,
    shown_duration,
)
from machtrace.model.symbol import Frame
from machtrace.model.text import COLOUR, PLAIN
from tests.support.reports.incidents import (
    APP,
    DEADLOCK,
    ENDED,
    HANG,
    MEMORY,
    PID,
    SECOND,
    WORKER,
    frame,
    python_frame,
    stack,
)

EXPECTED = """\
Hang (blocked): server 4711 in handle (handle.c:41), 260.0 ms so far
  certain    no context switch, did not run, same call
  when       began 2026-11-23 04:30:12.080 +0000 ± 10.0 ms, threshold 250ms
  culprit    handle (handle.c:41), 98 % of the time
  waits for  mutex 0x550000200040, held by thread 4712
  rule       launch-grace: the first 5 s after the start do not count
  missing    the registers of thread 4712: it exited

   0  __futex_wait  libc.so.6
   1  handle        handle.c:41
   2  serve         serve.c:41
   3  main          main.c:41"""


def test_an_incident_is_on_one_screen() -> None:
    assert str(HANG) == EXPECTED


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
    cycle = next(text for name, text in facts_of(DEADLOCK) if name == "cycle")
    assert cycle == "server 4711 → worker 4712 → server 4711"
    many = tuple(WatchedThread(number) for number in range(20))
    assert "→ …" in dict(facts_of(replace(DEADLOCK, cycle=many)))["cycle"]


def test_a_deadlock_names_the_function_of_each_thread() -> None:
    waits = (
        WaitsFor("mutex", Avma(0x10), LockOwner(PID, WORKER, recorded=True)),
        WaitsFor("mutex", Avma(0x20), LockOwner(PID, PID, recorded=True)),
    )
    cycle = (WatchedThread(PID, "server"), WatchedThread(WORKER, "worker"))
    lines = list(incident_lines(replace(DEADLOCK, cycle=cycle, cycle_waits=waits)))
    assert [line[13:] for line in lines[3:5]] == [
        "server 4711 in handle (handle.c:41) waits for mutex 0x10, held by thread 4712",
        "worker 4712 in main (main.c:41) waits for mutex 0x20, held by thread 4711",
    ]
    many = tuple(WatchedThread(number) for number in range(20))
    assert "             … 12 more threads" in incident_lines(replace(DEADLOCK, cycle=many))


def test_an_end_names_the_report() -> None:
    assert list(ended_lines(ENDED, PLAIN, "incidents/1.json")) == [
        "Hang (blocked) ended: server 4711 in handle (handle.c:41), 3.21 s",
        "  report     incidents/1.json",
    ]


def test_what_the_program_did_not_do_is_no_hang() -> None:
    assert headline(replace(HANG, verdict=Verdict.STOPPED)).startswith("No hang (stopped): server")


def _shown(frames: Sequence[Frame], culprit: Culprit) -> list[str]:
    timed = HANG.stacks[0]._replace(stack=replace(stack(("handle",)), frames=tuple(frames)))
    lines = incident_lines(replace(HANG, stacks=(timed,), culprit=culprit), PLAIN, "1.json")
    return [" ".join(line.split()) for line in lines]


def test_a_python_program_shows_its_functions() -> None:
    library = python_frame("Popen.wait", "/usr/lib/python3.11/subprocess.py", 9)
    own = python_frame("backup", "/srv/backup.py", 3)
    lines = _shown(
        [frame("__futex_wait"), frame("lex"), frame("parse"), library, frame("serve"), own],
        Culprit("Popen.wait", None, "/usr/lib/python3.11/subprocess.py", 9, 1.0, "lex"),
    )
    assert (
        "culprit Popen.wait (subprocess.py:9), 100 % of the time, in native code lex, "
        "called by backup (backup.py:3)"
    ) in lines
    assert lines[lines.index("") + 1 :] == [
        "0 __futex_wait libc.so.6",
        "1 lex lex.c:41",
        "2 Popen.wait subprocess.py:9",
        "3 backup backup.py:3",
    ]


def test_a_long_stack_shows_its_inner_end_and_the_culprit() -> None:
    frames = [*[frame("lex")] * 30, frame("handle"), *[frame("serve")] * 30]
    lines = _shown(frames, Culprit("handle", "server", "/src/handle.c", 41))
    assert lines[lines.index("") + 1 :] == [
        *[f"{at} lex lex.c:41" for at in range(3)],
        "… 26 frames",
        "29 lex lex.c:41",
        "30 handle handle.c:41",
        *[f"{at} serve serve.c:41" for at in range(31, 36)],
        "… 25 more frames, in the report",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("parse(int)", "parse(int)"),
        (f"v8::(anonymous namespace)::Invoke({'int, ' * 30})", "v8::(anonymous)::Invoke(…)"),
        (f"Map<{'int, ' * 30}Less<int>>::at(Key const&)", "Map<…>::at(…)"),
        ("f" * 100, f"{'f' * 71}…"),
    ],
)
def test_long_names_lose_their_parameters(name: str, text: str) -> None:
    assert short_name(name) == text


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
    assert str(owner) == text


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
    lines = list(stack_lines(replace(whole, frames=frames), PLAIN))
    assert lines[-1] == "   …  3 frames of the interpreter omitted"


def test_a_stack_without_python_functions_is_whole() -> None:
    whole = stack(("__futex_wait", "handle", "main"))
    assert condensed(whole) == (whole, 0)


def test_a_terminal_gets_emphasis() -> None:
    assert next(HANG.text_lines(COLOUR)).startswith("\x1b[1mHang")
