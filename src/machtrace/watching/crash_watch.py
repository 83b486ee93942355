"""Watching a process for crashes: it is traced, and its last moment is an incident."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from machtrace.clocks import boot_ns
from machtrace.errors import MachtraceError, TargetError, TargetGoneError
from machtrace.model.capture import Capture
from machtrace.model.cause import Cause, linux_cause
from machtrace.model.incident.facts import (
    IncidentKind,
    TimedStack,
    TimeRange,
    VerdictCertainty,
    WatchedThread,
    WatchIncident,
)
from machtrace.watching.hangs.representative import representative
from machtrace.watching.naming import RawCopy
from machtrace.watching.target import PolledProcess

if TYPE_CHECKING:  # their extension is Linux's
    from machtrace.targets.gdbremote.watched import WatchedStub
    from machtrace.targets.linux.crash import CrashTracer
    from machtrace.targets.linux.crashed_process import CrashedProcess
    from machtrace.targets.linux.process_polls import ProcessEnd

_LAST_NS = 1_000_000_000
"""The longest wait for the exit status of a process that has ended."""


class Crash(NamedTuple):
    """A crash, or an end that is one."""

    at_ns: int
    """``CLOCK_BOOTTIME``."""
    cause: Cause | None
    copy: RawCopy | None = None
    """All threads, stopped at the crash; None if that was not seen."""
    exit: str | None = None
    """How the process ended; None if it has not."""
    killed_for_memory: bool = False


class CrashWatch:
    """Traces a process for crashes; all calls are made by one OS thread, from :meth:`begin` on.

    Args:
        pid: the process.
        polls: the process's, for its control group; closed with this object.
        end: the status of an untraced process; closed with this object. None if it is hidden.
        is_wanted: whether to trace it. Its end is seen either way.
    """

    def __init__(
        self, pid: int, polls: PolledProcess, *, end: ProcessEnd | None = None, is_wanted: bool
    ) -> None:
        self._pid = pid
        self._polls, self._end = polls, end
        self._is_wanted = is_wanted
        self._tracer: CrashTracer | None = None
        self._has_begun = False
        self._kills: int | None = None
        self._crash: Crash | None = None
        self.tracer_id = 0
        """The id of the OS thread that traces; 0 if none does."""
        self.status: int | None = None
        """The process's wait status, once it has ended; None if it is unknown."""
        self.killed_for_memory = False
        """Whether the kernel killed a process of its control group for memory, before it ended."""

    @property
    def stopped(self) -> Collection[int]:
        """The traced threads that job control has stopped; the kernel shows a tracing stop."""
        return () if self._tracer is None else self._tracer.job_stopped

    def begin(self) -> None:
        """Trace the process; a second call does nothing.

        Raises:
            TargetError: that was requested, and it cannot be traced.
        """
        if self._has_begun:
            return
        self._has_begun = True
        self._kills = self._polls.oom_kills()
        if not self._is_wanted:
            return
        from machtrace.targets.linux.crash import CrashTracer

        tracer = CrashTracer(self._pid)
        try:
            tracer.begin()
        except TargetError:
            tracer.close()
            raise
        self._tracer, self.tracer_id = tracer, threading.get_native_id()

    def sleep(self, time_ns: int) -> None:
        """Wait for that time, or until something happened to a traced thread."""
        if self._tracer is None:
            time.sleep(max(0, time_ns) / 1e9)
        elif self._tracer.status is None:
            self._tracer.wait(time_ns)

    def poll(self) -> Crash | None:
        """Return a crash that was not seen before, with its stacks; the process ends then.

        Raises:
            TargetGoneError: it has ended.
        """
        tracer = self._tracer
        if tracer is None:
            return None
        tracer.poll()
        if tracer.has_crashed:
            at_ns = boot_ns()
            self._crash = tracer.capture(lambda target: _crash(target, at_ns))
            return self._crash
        if tracer.status is not None:
            raise TargetGoneError(f"process {self._pid} has exited", pid=self._pid)
        return None

    def pass_on(self, copied: Collection[int]) -> None:
        """Handle what happened to threads while some were copied."""
        if self._tracer is not None:
            self._tracer.pass_on(copied)

    def end(self) -> Crash | None:
        """Return how the process ended, if that was a crash; for a process that has exited."""
        tracer = self._tracer
        kills = self._polls.oom_kills()
        self.killed_for_memory = None is not kills != self._kills
        if tracer is None:
            self.status = None if self._end is None else self._end.status()
            return None
        deadline = time.monotonic_ns() + _LAST_NS
        while tracer.status is None and time.monotonic_ns() < deadline:
            try:
                tracer.wait(_LAST_NS // 100)
            except TargetError:
                break
            if tracer.has_crashed:
                self._crash = self.poll()
        self.status = tracer.status
        at_ns = boot_ns()
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None if self._crash is None else self._crash._replace(exit="")
        number = os.WTERMSIG(self.status)
        cause = linux_cause(number)
        text = f"killed by {cause.name}" + (", core written" if os.WCOREDUMP(self.status) else "")
        if self._crash is not None:
            return self._crash._replace(exit=text)
        kills = self._polls.oom_kills()
        is_kill = number == signal.SIGKILL and None not in (kills, self._kills)
        is_oom = self.killed_for_memory = is_kill and kills != self._kills
        if is_oom or cause.is_fatal:
            return Crash(at_ns, cause, exit=text, killed_for_memory=is_oom)
        return None

    def close(self) -> None:
        """Release the process; a second call does nothing."""
        if self._tracer is not None:
            self._tracer.close()
            self._tracer, self.tracer_id = None, 0
        if self._end is not None:
            self._end.close()
        self._polls.close()


class StubCrashes:
    """The crashes of a process that a stub has: they stop it, and are passed on when it is left.

    It has the methods of :class:`CrashWatch`.

    Args:
        stub: the process.
        is_wanted: False to report none.
    """

    tracer_id = 0
    stopped: Collection[int] = ()
    status: int | None = None
    killed_for_memory = False

    def __init__(self, stub: WatchedStub, *, is_wanted: bool | None) -> None:
        self._stub = stub
        self._is_wanted = is_wanted is not False
        self._crash: Crash | None = None

    def begin(self) -> None:
        """Do nothing: the stub traces the process."""

    def sleep(self, time_ns: int) -> None:
        """Wait for that time."""
        time.sleep(max(0, time_ns) / 1e9)

    def poll(self) -> Crash | None:
        """Return a crash with its stacks; a second call ends watching.

        Raises:
            TargetGoneError: it has ended, or the crash was returned before.
        """
        self._stub.service()
        cause = self._stub.crash
        if cause is None:
            return None
        if self._crash is not None or not self._is_wanted:
            raise TargetGoneError("the process has crashed", pid=self._stub.process.pid or 0)
        at_ns = boot_ns()
        self._crash = Crash(at_ns, cause, RawCopy(self._stub.snapshot(), {}))
        return self._crash

    def pass_on(self, copied: Collection[int]) -> None:
        """Do nothing."""

    def end(self) -> Crash | None:
        """Return the crash that ended watching, if any."""
        return None if self._crash is None else self._crash._replace(exit="")

    def close(self) -> None:
        """Do nothing: the target is closed by its owner."""


def _crash(target: CrashedProcess, at_ns: int) -> Crash:
    try:
        copy = RawCopy(*target.snapshot_with_python())
    except MachtraceError:
        return Crash(at_ns, target.cause)
    return Crash(at_ns, target.cause, copy)


def crash_incident(
    crash: Crash, pid: int, name: str | None, capture: Capture | None
) -> WatchIncident:
    """Return a crash as an incident.

    Args:
        crash: the crash.
        pid: the process.
        name: its name.
        capture: all threads at the crash; None if they were not captured.
    """
    stacks = () if capture is None else capture.stacks
    stack = next((each for each in stacks if each.thread.crashed), None)
    timed = () if stack is None else (TimedStack(crash.at_ns, 0, stack),)
    chosen = representative(timed)
    thread = WatchedThread(pid, name, is_main=True)
    if stack is not None:
        info = stack.thread
        thread = WatchedThread(info.id, info.name, info.is_main)
    cause = crash.cause if stack is None else stack.thread.cause or crash.cause
    evidence: dict[str, str | int | None] = {}
    if cause is not None:
        evidence = {
            "signal": cause.signal,
            "code": cause.code_name,
            "address": None if cause.address is None else f"{cause.address:#x}",
            "reason": cause.meaning,
            "region": cause.region,
        }
    evidence["exit"] = crash.exit or None
    evidence["out_of_memory"] = crash.killed_for_memory or None
    missing: tuple[str, ...] = ()
    if stack is None:
        missing = ("the process ended before its threads could be captured",)
    instant = TimeRange(crash.at_ns, crash.at_ns)
    is_sure = not crash.killed_for_memory
    return WatchIncident(
        id=f"{pid}-crash",
        kind=IncidentKind.CRASH,
        certainty=VerdictCertainty.CERTAIN if is_sure else VerdictCertainty.LIKELY,
        began=instant,
        seen_ns=crash.at_ns,
        ended=None if crash.exit is None else instant,
        pid=pid,
        thread=thread,
        evidence=MappingProxyType({key: value for key, value in evidence.items() if value}),
        culprit=None if chosen is None else chosen.culprit,
        stacks=timed,
        representative=None if chosen is None else chosen.stack,
        capture=capture,
        missing=missing,
    )
