"""The watcher of its own process: a thread of C polls and copies, Python names what it recorded."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count

from machtrace.errors import ThreadGoneError
from machtrace.model.incident import WatchedThread, WatcherCost, WatchIncident
from machtrace.model.polls import CallPlace
from machtrace.targets.base import ClosedWhenLeft, select_threads
from machtrace.targets.inprocess.linux import SelfTarget
from machtrace.targets.inprocess.watchdog import OwnWatchdog
from machtrace.targets.inprocess.watchdog_records import WatchdogCapture
from machtrace.targets.linux.process_polls import host_load
from machtrace.watching.naming import Namer, RawCopy
from machtrace.watching.own_cases import Case, Cases, NumberedPoll
from machtrace.watching.own_loops import LoopBeacons, await_chain
from machtrace.watching.watcher import WatchOptions

_POLLS_OF_HANG = 5
"""Polls in the time of a hang, at least."""
_WAIT_NS = 200_000_000
"""Time until new records are taken while something lasts; else news end the wait."""
_IDLE_WAIT_NS = 1_000_000_000
_OWN_NAMES = "machtrace"
"""The beginning of the names of machtrace's own threads, which are not watched."""


class OwnWatcher(ClosedWhenLeft):
    """Watches threads of this process until it is closed or its time is over.

    Threads that wait are copied without a signal; those that run copy themselves in the handler of
    one. A thread that keeps the interpreter's lock in C is seen, too; of that, and of every scope
    of :func:`machtrace.deadline`, incidents are reported as soon as Python runs again.

    Args:
        options: what is watched.
        on_incident: called for each incident when it is seen and when it ended, by the thread that
            runs :meth:`run`.
        record: the path of a file that stays readable if this process is killed; see
            :func:`machtrace.watching.own_record.read_record`.

    Raises:
        TargetError: this process cannot be watched.
        FileAccessError: the record cannot be created.
    """

    def __init__(
        self,
        options: WatchOptions,
        on_incident: Callable[[WatchIncident], None] = lambda _: None,
        *,
        record: str | None = None,
    ) -> None:
        self.options = options
        self.pid = os.getpid()
        self.has_ended = False
        """Always False: this process runs."""
        self.has_failed = False
        self._on_incident = on_incident
        self._incidents: dict[str, WatchIncident] = {}
        self._numbers = count(1)
        self._ids: dict[int, str] = {}
        self._loops = LoopBeacons()
        self._lock = threading.Lock()
        self._is_closed = False
        self._began_ns = time.monotonic_ns()
        self._target = SelfTarget()
        try:
            self._namer = Namer(options.search, lines=options.lines, scan=True)
            hang_ns = options.hang_ns or 0
            interval = options.poll_ns
            if hang_ns:
                interval = min(interval, hang_ns // _POLLS_OF_HANG)
            self._watchdog = self._target.watchdog(hang_ns, interval, record=record)
        except BaseException:
            self._target.close()
            raise
        source = _Source(self._target, self._watchdog)
        self._cases = Cases(
            source, self._namer, self._target.process.arch, interval, self._set_idle
        )
        if hang_ns:
            self._choose_threads()
        with suppress(RuntimeError):
            self.watch_loop(asyncio.get_running_loop())

    @property
    def incidents(self) -> tuple[WatchIncident, ...]:
        """All incidents so far, as they were reported last."""
        return tuple(self._incidents.values())

    @property
    def missing(self) -> tuple[str, ...]:
        """The facts that cannot be determined, and why; a sentence each."""
        if self._watchdog.layout is None:
            return ("Python functions and the interpreter's lock cannot be read",)
        return ()

    @property
    def states(self) -> dict[WatchedThread, str | None]:
        """The state of each thread that is away."""
        return {
            described(self._target, thread): state for thread, state in self._cases.states.items()
        }

    @property
    def cost(self) -> WatcherCost:
        """The cost so far, of the thread that polls."""
        counts = self._watchdog.counts
        return WatcherCost(
            polls=counts.rounds,
            late_polls=counts.late,
            latest_ns=counts.latest_ns,
            cpu_ns=counts.cpu_ns,
            stops=counts.stops,
            stopped_ns=counts.longest_stop_ns,
        )

    def watch_thread(self, thread: int | None = None) -> None:
        """Watch one more thread; None is the calling one.

        Raises:
            ThreadGoneError: it does not exist.
            ArgumentError: too many are watched.
        """
        self._watchdog.watch(threading.get_native_id() if thread is None else thread)

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """State the idle waits of an event loop, to know when each task began.

        The loop that runs in the calling thread when the watcher starts is stated already. Other
        loops are watched as well, by where their threads wait. To be called by the loop's thread.

        Returns:
            Whether the loop has a selector; uvloop's have none.
        """
        return self._loops.attach(loop)

    def run(
        self,
        duration_ns: int,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Report incidents until the time is over or ``should_stop`` returns True."""
        end = time.monotonic_ns() + duration_ns
        while not should_stop() and not self._is_closed:
            left = end - time.monotonic_ns()
            if left <= 0:
                break
            self._watchdog.wait(min(left, _WAIT_NS if self._cases.states else _IDLE_WAIT_NS))
            self._loops.check()
            self.report()
            on_tick()

    def wake(self) -> None:
        """Let :meth:`run` check whether it should stop."""
        self._watchdog.wake()

    def report(self) -> None:
        """Report what was recorded since."""
        with self._lock:
            for case in self._cases.take(self._watchdog.take()):
                self._report(case)

    def close(self) -> None:
        """Finish the incidents and close everything; a second call does nothing."""
        if self._is_closed or self.pid != os.getpid():
            return
        self._is_closed = True
        self._loops.detach_all()
        self._watchdog.close()
        self.report()
        self._namer.close()
        self._target.close()

    def _choose_threads(self) -> None:
        choice = self.options.threads
        if choice == "main":
            self._watchdog.watch(self.pid)
            return
        infos = [
            info for info in self._target.threads() if not (info.name or "").startswith(_OWN_NAMES)
        ]
        for thread in select_threads(infos, choice) or [info.id for info in infos]:
            with suppress(ThreadGoneError):
                self._watchdog.watch(thread)

    def _set_idle(self, thread: int, places: Sequence[CallPlace]) -> None:
        self._watchdog.set_idle(thread, places)

    def _report(self, case: Case) -> None:
        grace = self.options.launch_grace_ns or 0
        if case.event.began_ns - self._began_ns < grace:
            return
        self._cases.name(case)
        if not case.facts and case.stacks:
            self._add_task(case)
        number = self._ids.get(case.event.incident)
        if number is None:
            if len(self._ids) >= self.options.daily_limit:
                return
            number = self._ids[case.event.incident] = f"{self.pid}-{next(self._numbers)}"
        incident = self._cases.incident(
            case,
            number=number,
            pid=self.pid,
            cost=self.cost,
            host=host_load(),
            wall_offset=time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        )
        self._incidents[number] = incident
        self._on_incident(incident)

    def _add_task(self, case: Case) -> None:
        chain = next((chain for _, stack in case.stacks if (chain := await_chain(stack))), "")
        if chain:
            case.facts["await_chain"] = chain
        if case.ended is None:  # later another task runs
            case.facts |= self._loops.current_task(case.event.thread)


class _Source:
    """The facts of cases of this process."""

    def __init__(self, target: SelfTarget, watchdog: OwnWatchdog) -> None:
        self._target = target
        self._watchdog = watchdog

    def copy_of(self, capture: WatchdogCapture) -> RawCopy:
        return RawCopy(*self._watchdog.copy_of(capture))

    def polls(self, first: int) -> Iterable[NumberedPoll]:
        return self._watchdog.polls(first)

    def thread(self, thread: int) -> WatchedThread:
        return described(self._target, thread)


def described(target: SelfTarget, thread: int) -> WatchedThread:
    """Describe a thread of this process; it may be gone."""
    return WatchedThread(thread, target.name_of(thread), thread == target.process.pid)
