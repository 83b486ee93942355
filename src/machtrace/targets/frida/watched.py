"""A process that is watched through the script in it; nothing is stopped while nothing is wrong.

On Linux the script reads the process's own files in ``/proc``. On Darwin an observer of the main
run loop writes when the loop woke (``CFRunLoopObserver``), which the script reads.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from machtrace.clocks import boot_ns
from machtrace.cpython.runs import PythonRuns
from machtrace.errors import MachtraceError, ThreadGoneError
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.polls import IdleRequest, MemoryLimit, ProcessPoll, ThreadCount, ThreadPoll
from machtrace.model.snapshot import Snapshot, ThreadId, ThreadInfo
from machtrace.targets.frida.agent import Fields, FridaAgent
from machtrace.targets.frida.copies import MAX_THREADS
from machtrace.targets.frida.linux import FridaLinux
from machtrace.targets.frida.process import FridaTarget
from machtrace.targets.linux.polls import parse_poll
from machtrace.targets.linux.procfs import thread_use

_MAX_VALUE = (1 << 53) - 1
_RUNNING = 1
"""``TH_STATE_RUNNING`` (``mach/thread_info.h``)."""
_STATM = re.compile(r"(\d{1,16}) (\d{1,16}) ")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_USER, _SYSTEM = 11, 12
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class _Usage(NamedTuple):
    resident: int | None
    virtual: int | None
    cpu_ns: int | None
    counts: dict[int, ThreadCount]


class WatchedFrida(FridaTarget):
    """A process that Frida reaches, to be watched.

    Args:
        place: see :class:`~machtrace.targets.frida.process.FridaTarget`.

    Raises:
        Same as :class:`~machtrace.targets.frida.process.FridaTarget`.
    """

    has_python = False
    is_local = False
    least_poll_ns = 0

    def __init__(self, place: str | FridaAgent) -> None:
        super().__init__(place)
        try:
            self._has_observer = self._ask("watch") is True
            self._infos = {info.id: info for info in self.threads()}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """See :meth:`~machtrace.targets.base.Target.close`."""
        with suppress(MachtraceError):
            if self._agent is not None:
                self._agent.ask("unwatch")
        super().close()

    @property
    def is_linux(self) -> bool:
        """Whether the process is one of Linux."""
        return isinstance(self._system, FridaLinux)

    @property
    def missing(self) -> tuple[str, ...]:
        """The facts that polls cannot determine, and why; a sentence each."""
        unread = "deadlocks and crashes are not watched: they cannot be read through Frida"
        if self.is_linux or self._has_observer:
            return (unread,)
        return (unread, "hangs are not watched: the process has no CFRunLoop to observe")

    # --- polls ---

    def poll_thread(self, thread: int, *, with_status: bool) -> ThreadPoll:
        """Poll a thread without a stop; see :class:`~machtrace.model.polls.PolledTarget`."""
        fields = Fields(self._ask("poll", thread, with_status), "poll")
        at_ns, now_ns = time.monotonic_ns(), boot_ns()
        if self.is_linux:
            call, schedule = fields.text("call"), fields.text("schedule")
            if not schedule and not call:
                self.forget(thread)
                raise ThreadGoneError(f"thread {thread} has exited", thread=thread)
            status = fields.text("status") if with_status else ""
            return parse_poll(at_ns, now_ns, call.encode(), schedule.encode(), status.encode())
        if not self._has_observer or not self.thread_info(thread).is_main:
            return ThreadPoll(at_ns, now_ns)
        since_ns = fields.number("since", _MAX_VALUE)
        is_busy = fields.flag("isBusy")
        used = 1000 * fields.number("used", _MAX_VALUE)
        state = fields.number("state", _MAX_VALUE)
        return ThreadPoll(
            at_ns,
            now_ns,
            is_running=is_busy and state == _RUNNING,
            run_ns=used if is_busy else None,
            busy_since_ns=at_ns - since_ns if is_busy else 0,
            task=fields.number("tasks", _MAX_VALUE),
        )

    def wait_idle(self, idle: dict[int, ThreadPoll], request: IdleRequest) -> None:
        """Return None: there is no wait of this kind."""

    def wake(self) -> None:
        """Do nothing: nothing waits."""

    def forget(self, thread: int) -> None:
        """Drop what is known of a thread that has exited."""
        self._infos.pop(ThreadId(thread), None)

    def process_polls(self) -> FridaPolls:
        """Return polls of the whole process."""
        return FridaPolls(self)

    def usage(self, *, with_threads: bool) -> _Usage:
        """Return what the process has used so far.

        Raises:
            TargetGoneError: it has exited.
            ConnectionLostError, RemoteProtocolError: the script does not answer.
        """
        fields = Fields(self._ask("usage", with_threads), "usage")
        rows = fields.rows("threads", MAX_THREADS)
        counts: dict[int, ThreadCount] = {}
        if not self.is_linux:
            for row in rows:
                used = row.number("used", _MAX_VALUE)
                counts[row.number("id", _MAX_VALUE)] = ThreadCount(1000 * used, None)
            footprint = fields.number("footprint", _MAX_VALUE)
            return _Usage(footprint or None, None, 1000 * fields.number("used", _MAX_VALUE), counts)
        for row in rows:
            stat, schedule = row.text("stat").encode(), row.text("schedule").encode()
            with suppress(ValueError, IndexError):  # it exits
                words = stat[stat.rindex(b")") + 2 :].split()
                faults = int(words[7]) + int(words[9])
                used = thread_use(stat, schedule).cpu_ns
                counts[row.number("id", _MAX_VALUE)] = ThreadCount(used, faults)
        cpu_ns = None
        with suppress(ValueError, IndexError):
            words_of_process = fields.text("stat").rpartition(")")[2].split()
            ticks = int(words_of_process[_USER]) + int(words_of_process[_SYSTEM])
            cpu_ns = ticks * _NS_PER_TICK
        match = _STATM.match(fields.text("statm"))
        if match is None:
            return _Usage(None, None, cpu_ns, counts)
        return _Usage(int(match[2]) * _PAGE, int(match[1]) * _PAGE, cpu_ns, counts)

    def _ask(self, call: str, *arguments: object) -> object:
        self._check_open()
        assert self._agent is not None  # noqa: S101 - it was checked
        return self._agent.ask(call, *arguments).value

    # --- threads and copies ---

    def thread_ids(self) -> tuple[int, ...]:
        """Return the ids of its threads, the main thread's first."""
        self._infos = {info.id: info for info in self.threads()}
        return tuple(sorted(self._infos, key=lambda thread: not self._infos[thread].is_main))

    def thread_info(self, thread: int) -> ThreadInfo:
        """Describe a thread."""
        if thread not in self._infos:
            self._infos = {info.id: info for info in self.threads()}
        return self._infos.get(ThreadId(thread)) or ThreadInfo(id=ThreadId(thread), index=0)

    def copy_waiting(
        self, threads: Iterable[int], /
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """Copy those of ``threads`` that wait, without a stop: on Linux; none on Darwin."""
        if isinstance(self._system, FridaLinux):
            return self._system.snapshot_waiting(set(threads), DEFAULT_STACK_LIMIT), {}
        return self._system.snapshot((), 0), {}

    def copy_stopped(
        self,
        threads: Collection[ThreadId],
        /,
        *,
        is_traced: bool = False,  # noqa: ARG002 - no OS thread does
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """Copy ``threads``, which are suspended for that time."""
        return self.snapshot(threads), {}

    def program_start(self) -> bytes:
        """Return what changes when the process executes another program: the script ends then."""
        return b""

    def started_ns(self) -> int:
        """Return when the process was started: now, as that is unknown."""
        return time.monotonic_ns()

    def locks(self) -> None:
        """Return no source of lock surveys."""


class FridaPolls:
    """Polls of a process as a whole, by the script in it.

    Args:
        target: the process; its owner closes it.
    """

    def __init__(self, target: WatchedFrida) -> None:
        self._target = target

    def poll(self, *, with_threads: bool) -> ProcessPoll:
        """Poll it, and its threads' counts if they are requested.

        Raises:
            TargetGoneError: it has exited.
            ConnectionLostError, RemoteProtocolError: the script does not answer.
        """
        usage = self._target.usage(with_threads=with_threads)
        poll = ProcessPoll(
            time.monotonic_ns(), boot_ns(), usage.resident, usage.virtual, usage.cpu_ns
        )
        return poll._replace(threads=usage.counts) if with_threads else poll

    def counts(self, threads: Iterable[int]) -> dict[int, ThreadCount]:
        """Return the counts of those of ``threads`` that have not exited."""
        counts = self._target.usage(with_threads=True).counts
        return {thread: counts[thread] for thread in threads if thread in counts}

    def limit(self) -> MemoryLimit | None:
        """Return no limit: the script does not know one."""
        return None

    def oom_kills(self) -> int | None:
        """Return None: they are not known."""
        return None

    def memory_details(self) -> dict[str, int]:
        """Return nothing: kinds of memory are not known."""
        return {}

    def close(self) -> None:
        """Do nothing."""
