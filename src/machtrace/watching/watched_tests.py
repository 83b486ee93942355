"""The process beside pytest that prints the stacks of tests that hang.

It reads a line of JSON when a test begins and when it ends; see :mod:`machtrace.pytest_plugin`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from machtrace.cpython.runs import PythonRuns
from machtrace.errors import MachtraceError
from machtrace.model.capture import Capture
from machtrace.model.incident.facts import (
    IncidentKind,
    TimedStack,
    TimeRange,
    Verdict,
    VerdictCertainty,
    WatchedThread,
    WatchIncident,
)
from machtrace.model.incident.stack_text import stack_lines
from machtrace.model.options import NameOptions, WalkOptions
from machtrace.model.snapshot import Snapshot, ThreadId
from machtrace.model.symbol import CallStack, Frame
from machtrace.model.text import PLAIN, counted, printable
from machtrace.pipeline.backtraces import build_capture, snapshot_with_python
from machtrace.reports.analysis.waits.graph import WaitGraph, wait_graph
from machtrace.reports.stacks.incidents import report_of_incident
from machtrace.targets.base import Target
from machtrace.targets.open import open_target
from machtrace.watching.hangs.representative import representative
from machtrace.watching.locks.owners import OwnedWait
from machtrace.watching.locks.waits import LockSurveyor

_FIRST, _STEP = 0.6, 0.1
"""Parts of the limit after which the main thread's stack is taken, before the limit itself."""
_IDLE = 5.0
"""Seconds between two checks whether pytest still exists."""
_GRACE = 2.0
"""Seconds between ``SIGTERM`` and ``SIGKILL``."""
_BUSY, _BLOCKED = 0.5, 0.05
"""Shares of the time in which a thread ran."""
_MAX_RETURN_NS = 100_000_000
"""Longest wait until stopped threads are in their waits again."""
_PIECE = 1 << 16
_RUNNERS = frozenset({"pytest_pyfunc_call", "call_fixture_func", "_teardown_yield_fixture"})
"""pytest's functions that call a test or a fixture."""
_WALK, _NAMES = WalkOptions(), NameOptions(python=True)


class _Copy(NamedTuple):
    at_ns: int
    snapshot: Snapshot
    python: Mapping[ThreadId, PythonRuns]

    def capture(self) -> Capture:
        return build_capture(self.snapshot, _WALK, _NAMES, python=self.python)


class _Tested:
    """The process that runs tests; it stays open, as the first copy takes long."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._target: Target | None = None

    def copy(self, threads: str) -> _Copy:
        """Copy threads.

        Raises:
            MachtraceError: they cannot be copied.
        """
        if self._target is None:
            self._target = open_target(self.pid)
        copied = snapshot_with_python(self._target, threads=threads)
        return _Copy(time.monotonic_ns(), *copied)

    def prepare(self) -> None:
        """Open the process before the first test hangs."""
        with suppress(MachtraceError):
            self.copy("main")


class _Test:
    """The test that runs."""

    def __init__(self, tested: _Tested, message: Mapping[str, object]) -> None:
        self.name = printable(str(message["test"]))
        self.action = str(message["action"])
        self.seconds = float(str(message["seconds"]))
        self.is_printed = False
        # pytest's clock leaves out system sleep, as a limit does.
        self.began_ns = int(str(message["at_ns"]))
        self._tested = tested
        self._pid = pid = tested.pid
        self._run_ns = _run_ns(pid)
        self._copies: list[_Copy] = []
        self._part = _FIRST

    @property
    def due_ns(self) -> int:
        """The time of the next stack."""
        return self.began_ns + round(min(self._part, 1.0) * self.seconds * 1e9)

    def take(self) -> Callable[[], str] | None:
        """Take the stack that is due; after the last one return what describes the hang."""
        is_last = self._part >= 1
        self._part += _STEP
        try:
            copy = self._tested.copy("all" if is_last else "main")
        except MachtraceError as error:
            failure = self._failure(error)
            return (lambda: failure) if is_last else None
        if _is_readable(0):  # the test has ended
            return None
        if not is_last:
            self._copies.append(copy)
            return None
        return partial(self._text, copy, _waits(self._pid, copy.snapshot))

    def _text(self, copy: _Copy, waits: Mapping[int, OwnedWait]) -> str:
        try:
            return "\n".join(self._lines(copy, waits))
        except MachtraceError as error:
            return self._failure(error)

    def _failure(self, error: MachtraceError) -> str:
        remedy = f"\n  hint: {error.remedy}" if error.remedy else ""
        return f"its stacks cannot be taken: {error}{remedy}"

    def _lines(self, copy: _Copy, waits: Mapping[int, OwnedWait]) -> Iterator[str]:
        capture = copy.capture()
        incident = self._incident(copy, capture)
        if self._pid in waits:
            incident = replace(incident, waits_for=waits[self._pid].waits_for)
        yield from incident.lines()
        yield from _owner_lines(capture, waits)
        if not waits:  # what stacks alone show, elsewhere than on Linux
            yield from _wait_lines(wait_graph(report_of_incident(incident)))
        for stack in sorted(capture.stacks, key=lambda stack: stack.thread.id != self._pid):
            shown, left_out = without_runner(stack)
            yield ""
            yield from stack_lines(shown, PLAIN)
            if left_out:
                yield f"   …  {counted(left_out, 'frame')} of pytest"
        yield from (f"missing: {printable(str(problem.error))}" for problem in capture.problems)

    def _incident(self, copy: _Copy, capture: Capture) -> WatchIncident:
        stacks: list[TimedStack] = []
        before_ns = self.began_ns
        for taken in (*self._copies, copy):
            named = capture if taken is copy else taken.capture()
            main = next((stack for stack in named.stacks if stack.thread.id == self._pid), None)
            if main is not None:
                stacks.append(TimedStack(taken.at_ns, taken.at_ns - before_ns, main))
                before_ns = taken.at_ns
        chosen = representative(stacks)
        lasted = copy.at_ns - self.began_ns
        sleep_ns = _boot_ns() - time.monotonic_ns()
        evidence: dict[str, int | float | str | bool | None] = {"wall_ns": lasted}
        verdict = None
        run_ns = _run_ns(self._pid)
        if run_ns is not None and self._run_ns is not None:
            evidence = {"run_ns": run_ns - self._run_ns, **evidence}
            share = (run_ns - self._run_ns) / lasted
            verdict = Verdict.BUSY if share >= _BUSY else None
            verdict = Verdict.BLOCKED if share <= _BLOCKED else verdict
        return WatchIncident(
            id=self.name,
            kind=IncidentKind.HANG,
            certainty=VerdictCertainty.LIKELY,
            verdict=verdict,
            began=TimeRange(self.began_ns + sleep_ns, self.began_ns + sleep_ns),
            seen_ns=copy.at_ns + sleep_ns,
            pid=self._pid,
            threshold=f"{self.seconds:g}s",
            thread=WatchedThread(self._pid, _name(capture, self._pid), is_main=True),
            duration_ns=lasted,
            evidence=evidence,
            culprit=None if chosen is None else chosen.culprit,
            stacks=tuple(stacks),
            representative=None if chosen is None else chosen.stack,
            capture=capture,
        )


def without_runner(stack: CallStack) -> tuple[CallStack, int]:
    """Return a stack without pytest's frames outside of the test, and their number."""
    for position, frame in enumerate(stack.frames):
        for index, function in enumerate(frame.python):
            if function.name.rpartition(".")[2] in _RUNNERS and "_pytest" in function.location.path:
                inner: tuple[Frame, ...] = stack.frames[:position]
                if index:
                    inner += (replace(frame, python=frame.python[:index]),)
                return replace(stack, frames=inner), len(stack.frames) - position
    return stack, 0


def _waits(pid: int, copied: Snapshot) -> Mapping[int, OwnedWait]:
    """Return what the threads of a Linux process wait for, where the kernel permits to know."""
    if sys.platform != "linux":
        return {}
    from machtrace.targets.linux.locks import LinuxLocks

    pcs = {int(thread.info.id): thread.registers.pc for thread in copied.threads}
    with suppress(MachtraceError), closing(LinuxLocks()) as source:
        source.await_return(pid, pcs, _MAX_RETURN_NS)
        return LockSurveyor(pid, source).waits()
    return {}


def _owner_lines(capture: Capture, waits: Mapping[int, OwnedWait]) -> Iterator[str]:
    labels = {stack.thread.id: stack.thread.label for stack in capture.stacks}
    for thread, wait in waits.items():
        owner = wait.waits_for.owner
        name = None if owner is None or owner.thread is None else labels.get(ThreadId(owner.thread))
        held = f": {name}" if name else ""
        label = labels.get(ThreadId(thread), f"thread [{thread}]")
        yield f"  waits      {label} for {wait.waits_for}{held}"


def _wait_lines(graph: WaitGraph) -> Iterator[str]:
    threads = graph.threads
    for deadlock in graph.deadlocks:
        names = " → ".join(threads[index].thread.label for index in deadlock.threads)
        sure = "" if deadlock.is_certain else " (partly a guess)"
        yield f"  deadlock   {names}{sure}"
    for edge in graph.edges:
        sure = "" if edge.source.is_certain else "perhaps "
        owner = edge.owner_label or "an unknown thread"
        yield f"  waits      {threads[edge.waiter].thread.label} for {sure}{owner}: {edge.text}"


def _name(capture: Capture, thread: int) -> str | None:
    return next((stack.thread.name for stack in capture.stacks if stack.thread.id == thread), None)


def _is_readable(timeout: float) -> bool:
    """Wait until pytest has announced something, or has exited."""
    return bool(select.select([0], [], [], timeout)[0])


def _boot_ns() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _run_ns(pid: int) -> int | None:
    """Return the time that the main thread of a Linux process ran."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat", "rb") as file:  # noqa: PTH123
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None


class _Watch:
    """Reads what pytest announces, and prints."""

    def __init__(self, pid: int, number: int) -> None:
        self._pid, self._signal = pid, number
        self._tested = _Tested(pid)
        self._test: _Test | None = None
        self._rest = b""

    def run(self) -> None:
        """Watch until pytest closes the pipe, or is gone."""
        self._tested.prepare()
        while os.getppid() == self._pid:
            timeout = _IDLE
            if self._test is not None and not self._test.is_printed:
                timeout = min(_IDLE, max(0.0, (self._test.due_ns - time.monotonic_ns()) / 1e9))
            if _is_readable(timeout):
                data = os.read(0, _PIECE)
                if not data:
                    return
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._read(json.loads(line))
            elif self._test is not None and time.monotonic_ns() >= self._test.due_ns:
                self._take(self._test)

    def _read(self, message: Mapping[str, object]) -> None:
        test, self._test = self._test, None
        if message["test"] is not None:
            self._test = _Test(self._tested, message)
        elif test is not None:
            lasted = (int(str(message["at_ns"])) - test.began_ns) / 1e9
            ended = f"+++ machtrace: {test.name} ended after {lasted:.1f} s"
            if test.is_printed:
                _print(f"{ended} +++")
            elif lasted > test.seconds:
                _print(f"{ended}, more than {test.seconds:g} s: too early for its stacks +++")

    def _take(self, test: _Test) -> None:
        if test.is_printed:
            return
        describe = test.take()
        if describe is None:
            return
        test.is_printed = True
        fails = test.action == "fail" and not _is_readable(0)
        if fails:  # at once: names may take longer than the test
            self._kill(self._signal)
        text = describe()
        ends = test.action == "exit" and not _is_readable(0)
        outcome = "the run ends" if ends else "the test fails" if fails else "the test continues"
        if test.action != "print" and not (fails or ends):
            outcome = "the test has ended meanwhile"
        _print(
            f"\n+++ machtrace: {test.name} hangs: more than {test.seconds:g} s +++\n{text}\n"
            f"+++ machtrace: {outcome} +++"
        )
        if ends:
            self._end()

    def _kill(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _end(self) -> None:
        self._kill(signal.SIGTERM)
        if not _is_readable(_GRACE) and os.getppid() == self._pid:
            self._kill(signal.SIGKILL)


def _print(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
        sys.stderr.flush()


def main() -> None:
    """Watch the process of the first argument; the second is the signal that fails a test."""
    with suppress(BrokenPipeError):  # pytest has ended already
        os.write(1, b"\n")  # ready
    _Watch(int(sys.argv[1]), int(sys.argv[2])).run()
