"""Polls of the threads of a Linux process, and copies of those that wait, without a stop.

The files are ``syscall``, ``schedstat`` and ``status`` of ``/proc/PID/task/TID`` (proc(5)), and
``cpu.stat`` and ``cgroup.events`` of its control group (``Documentation/admin-guide/cgroup-v2.rst``
of the kernel; version 1 has ``freezer.state``). They stay open: to open one takes longer than to
read it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress

from machtrace.clocks import process_clock
from machtrace.errors import TargetGoneError, ThreadGoneError
from machtrace.model.address import Avma
from machtrace.model.polls import IdleRequest, IdleWait, SystemCall, ThreadPoll
from machtrace.targets.linux.procfs import EXITED_STATES, ProcessDirectory, thread_use

_CALL, _SCHEDULE, _STATUS = range(3)
_NAMES = "syscall", "schedstat", "status"
_SIZES = 256, 128, 4096
_HIDDEN = -1
_RUNNING = b"running"
_CALL_WORDS = 9
"""The number, six arguments, sp and pc; a thread that waits elsewhere has -1, sp and pc."""
_STATUS_LINES = re.compile(
    rb"^State:\s+(\S).*?^TracerPid:\s+(\d+).*?"
    rb"^voluntary_ctxt_switches:\s+(\d+)\n^nonvoluntary_ctxt_switches:\s+(\d+)",
    re.MULTILINE | re.DOTALL,
)
_THROTTLED = re.compile(rb"^throttled_(usec|time) (\d+)", re.MULTILINE)
_FROZEN = re.compile(rb"^frozen 1$|^FROZEN|^FREEZING", re.MULTILINE)
_GROUPS = "/sys/fs/cgroup"
_NS_PER_US = 1000


class LinuxPolls:
    """Polls threads of a process.

    No right over the process is needed, except for the system calls that its threads wait in.

    Args:
        directory: the process's; its owner closes it.
        has_calls: whether system calls are read, which prove nothing without stacks.
    """

    def __init__(self, directory: ProcessDirectory, *, has_calls: bool = True) -> None:
        self._directory = directory
        self._has_calls = has_calls
        self._files: dict[int, list[int]] = {}
        self._group = _ControlGroup(directory)
        self._hidden: set[str] = set()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @property
    def missing(self) -> tuple[str, ...]:
        """The facts that cannot be determined because files are hidden; a sentence each."""
        return tuple(_MISSING[name] for name in _NAMES if name in self._hidden)

    def poll(self, thread: int, *, with_status: bool) -> ThreadPoll:
        """Poll a thread.

        Raises:
            TargetGoneError, ThreadGoneError: it has exited.
        """
        files = self._files.get(thread)
        if files is None:
            files = self._files[thread] = self._open(thread)
        at_ns, boot_ns = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        call_text = self._read(thread, files, _CALL)
        schedule = self._read(thread, files, _SCHEDULE)
        has_status = with_status or not call_text
        status = self._read(thread, files, _STATUS) if has_status else b""
        poll = parse_poll(at_ns, boot_ns, call_text, schedule, status)
        if not schedule:
            poll = poll._replace(run_ns=self._ticks(thread))
        if not has_status:
            return poll
        if poll.state is not None and poll.state in EXITED_STATES:
            raise ThreadGoneError(f"thread {thread} has exited", thread=thread)
        if poll.tracer and _is_own(poll.tracer):
            poll = poll._replace(tracer=0, is_own_stop=poll.state == "t")
        throttled_ns, is_frozen = self._group.read()
        return poll._replace(throttled_ns=throttled_ns, is_frozen=is_frozen)

    def wait_idle(
        self, idle: dict[int, ThreadPoll], request: IdleRequest
    ) -> tuple[IdleWait, dict[int, ThreadPoll]] | None:
        """Poll threads without Python until one is elsewhere; None if that is not possible.

        Args:
            idle: the last poll of each thread, in its root wait.
            request: see :class:`IdleRequest`.

        Returns:
            The outcome, and the last poll of each thread at which all were idle.
        """
        from machtrace._native import _ptrace  # parse_poll() is for targets of other systems, too

        threads: list[tuple[int, int, bytes, bytes]] = []
        for thread, poll in idle.items():
            files = self._files.get(thread)
            if files is None or files[_CALL] < 0 or poll.call is None:
                return None
            call = poll.call
            start = b"%d " % call.number + b"".join(
                b"0x%x " % argument for argument in call.arguments[:1]
            )
            ends = start, b" 0x%x 0x%x\n" % (call.sp, call.pc)
            threads.append((files[_CALL], files[_SCHEDULE], *ends))
        *counts, at_ns, texts = _ptrace.wait_idle(
            tuple(threads),
            process_clock(self._directory.pid),
            request.cpu_ns,
            request.most_cpu_ns,
            request.interval_ns,
            request.check_ns,
            request.until_ns,
            request.due_ns,
            self._wake,
            request.is_traced,
        )
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        polls: dict[int, ThreadPoll] = {}
        if at_ns:
            for (thread, poll), text in zip(idle.items(), texts, strict=True):
                run_ns, delay_ns, *_ = (*map(int, text.split()), None, None)
                polls[thread] = poll._replace(
                    at_ns=at_ns,
                    boot_ns=poll.boot_ns + at_ns - poll.at_ns,
                    run_ns=run_ns,
                    delay_ns=delay_ns,
                    late_ns=0,
                )
        return IdleWait(*counts), polls

    def wake(self) -> None:
        """End :meth:`wait_idle`; for other threads."""
        os.eventfd_write(self._wake, 1)

    def forget(self, thread: int) -> None:
        """Close the files of a thread."""
        for descriptor in self._files.pop(thread, ()):
            if descriptor >= 0:
                os.close(descriptor)

    def close(self) -> None:
        """Close all files but the directory; a second call does nothing."""
        for thread in [*self._files]:
            self.forget(thread)
        self._group.close()
        if self._wake >= 0:
            os.close(self._wake)
        self._wake = -1

    def _open(self, thread: int) -> list[int]:
        files: list[int] = []
        for name in _NAMES:
            try:
                files.append(self._directory.open(f"task/{thread}/{name}"))
            except PermissionError:
                self._hidden.add(name)
                files.append(_HIDDEN)
            except FileNotFoundError:
                if self._directory.state(thread) in EXITED_STATES:
                    raise ThreadGoneError(f"thread {thread} has exited", thread=thread) from None
                self._hidden.add(name)
                files.append(_HIDDEN)
        if not self._has_calls and files[_CALL] >= 0:
            self._hide(files, _CALL)
        return files

    def _ticks(self, thread: int) -> int | None:
        """Return the time that a thread ran by its ``stat``; None if that is hidden, too."""
        try:
            return thread_use(os.fsencode(self._directory.read(f"task/{thread}/stat")), b"").cpu_ns
        except (OSError, ValueError, IndexError):
            return None

    def _read(self, thread: int, files: list[int], index: int) -> bytes:
        """Return a file's text; empty if the kernel hides it."""
        if files[index] < 0:
            return b""
        try:
            text = os.pread(files[index], _SIZES[index], 0)
        except PermissionError:
            text = b""
        except ProcessLookupError:
            self.forget(thread)
            self._directory.live_thread()  # raises if the process has exited
            raise ThreadGoneError(f"thread {thread} has exited", thread=thread) from None
        if not text:  # denied, or a container has mounted an empty file there
            self._hide(files, index)
        return text

    def _hide(self, files: list[int], index: int) -> None:
        self._hidden.add(_NAMES[index])
        os.close(files[index])
        files[index] = _HIDDEN


_MISSING = {
    "syscall": "the system calls of the process are hidden: an idle wait and a blocked thread "
    "cannot be distinguished, so blocked threads are not reported",
    "schedstat": "schedstat is hidden or missing: the threads' times are multiples of 10 ms, and "
    "how long they wait for a processor is unknown",
    "status": "the states of threads are hidden: stopped threads are not recognised",
}


def parse_poll(
    at_ns: int, boot_ns: int, call_text: bytes, schedule: bytes, status: bytes = b""
) -> ThreadPoll:
    """Parse a thread's ``syscall``, ``schedstat`` and ``status``; an empty one is hidden."""
    is_running: bool | None = None
    call = None
    if call_text:
        is_running = call_text.startswith(_RUNNING)
        call = None if is_running else _parse_call(call_text)
    times = schedule.split()
    run_ns, delay_ns = (int(times[0]), int(times[1])) if times else (None, None)
    if (match := _STATUS_LINES.search(status)) is None:
        return ThreadPoll(at_ns, boot_ns, is_running, call, run_ns, delay_ns)
    state = match[1].decode()
    return ThreadPoll(
        at_ns,
        boot_ns,
        state == "R" if is_running is None else is_running,
        call,
        run_ns,
        delay_ns,
        switches=(int(match[3]), int(match[4])),
        state=state,
        tracer=int(match[2]),
    )


def _parse_call(text: bytes) -> SystemCall | None:
    words = text.split()
    try:
        number, *arguments, sp, pc = (int(word, 0) for word in words)
    except ValueError:
        return None
    return SystemCall(number, tuple(arguments), Avma(sp), Avma(pc))


def _is_own(thread: int) -> bool:
    """Whether a thread is one of this process: ``TracerPid`` is the thread that traces."""
    return os.path.exists(f"/proc/self/task/{thread}")  # noqa: PTH110 - at each poll


class _ControlGroup:
    """The quota and the freezer of a process's control group and of those around it."""

    def __init__(self, directory: ProcessDirectory) -> None:
        self._directory = directory
        self._text = ""
        self._quotas: list[int] = []
        self._freezers: list[int] = []

    def _update(self) -> None:
        """Open the files of the current group: processes are moved to others."""
        try:
            text = self._directory.read("cgroup")
        except (OSError, TargetGoneError):
            return
        if text == self._text:
            return
        self.close()
        self._text = text
        for line in text.splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            named = controllers.split(",")
            if not controllers:
                unified = f"{_GROUPS}/unified"
                folder = unified if os.path.isdir(unified) else _GROUPS  # noqa: PTH112 - as below
                if not os.path.isdir(folder + path):  # noqa: PTH112 - once for each process
                    path = "/"  # a container's own group is the root of its namespace
                # Quotas of outer groups count in their own files alone.
                parts = path.strip("/").split("/") if path.strip("/") else []
                for depth in range(len(parts), -1, -1):
                    outer = "/".join((folder, *parts[:depth]))
                    self._quotas += _opened(f"{outer}/cpu.stat") if depth or not parts else []
                    if depth == len(parts):
                        self._freezers += _opened(f"{outer}/cgroup.events")
            elif "cpu" in named:
                self._quotas += _opened(f"{_GROUPS}/{controllers}{path}/cpu.stat")
            elif "freezer" in named:
                self._freezers += _opened(f"{_GROUPS}/freezer{path}/freezer.state")

    def read(self) -> tuple[int | None, bool]:
        """Return the nanoseconds that quotas took, and whether the group is frozen."""
        self._update()
        throttled: int | None = None
        for text in _texts(self._quotas):
            if match := _THROTTLED.search(text):
                scale = _NS_PER_US if match[1] == b"usec" else 1
                throttled = (throttled or 0) + int(match[2]) * scale
        return throttled, any(_FROZEN.search(text) for text in _texts(self._freezers))

    def close(self) -> None:
        for descriptor in (*self._quotas, *self._freezers):
            os.close(descriptor)
        self._quotas, self._freezers = [], []


def _opened(path: str) -> list[int]:
    try:
        return [os.open(path, os.O_RDONLY | os.O_CLOEXEC)]
    except OSError:
        return []


def _texts(descriptors: Sequence[int]) -> list[bytes]:
    texts: list[bytes] = []
    for descriptor in descriptors:
        with suppress(OSError):
            texts.append(os.pread(descriptor, _SIZES[_STATUS], 0))
    return texts
