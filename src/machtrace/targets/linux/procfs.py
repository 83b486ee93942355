"""``/proc/PID`` as an open directory (proc(5))."""

from __future__ import annotations

import os
import resource
import weakref
from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from errno import ENOENT, ESRCH
from types import MappingProxyType
from typing import NamedTuple, Self

from machtrace.errors import TargetError, TargetGoneError
from machtrace.model.snapshot import ThreadState

PF_KTHREAD = 0x00200000
"""``include/linux/sched.h`` of the kernel."""

_READ_SIZE = 1 << 16

EXITED_STATES = "ZXx"
"""Letters of threads that have exited, collected or not."""


class ProcessDirectory:
    """Reads the kernel's files about one process.

    The directory is held open, so a later process that is given the same id is never taken for
    this one: every method then raises TargetGoneError.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            self._directory = os.open(f"/proc/{pid}", flags)
            self._close = weakref.finalize(self, os.close, self._directory)
        except FileNotFoundError:
            raise TargetGoneError(f"process {pid} does not exist", pid=pid) from None
        except OSError as error:
            raise TargetError(
                f"cannot open /proc/{pid} ({error.strerror})",
                remedy="mount the proc file system on /proc",
            ) from error

    def open(self, name: str) -> int:
        """Return a read-only descriptor of a file, which the caller closes.

        Raises:
            TargetGoneError: the process has exited.
            OSError: the file cannot be opened.
        """
        self._check_open()
        try:
            return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        except OSError as error:
            raise self._gone_or(error) from None

    def read(self, name: str) -> str:
        """Return the text of a file; bytes that are not UTF-8 as :func:`os.fsdecode` converts them.

        Raises:
            TargetGoneError: the process has exited.
            OSError: the file cannot be read.
        """
        # By descriptor: a file object takes longer to make than most of these take to read, and
        # samples read one for every thread.
        descriptor = self.open(name)
        try:
            parts = []
            while part := os.read(descriptor, _READ_SIZE):
                parts.append(part)
        except OSError as error:
            raise self._gone_or(error) from None
        finally:
            os.close(descriptor)
        return os.fsdecode(b"".join(parts))

    def link(self, name: str) -> str:
        """Return the target of a symbolic link.

        Raises:
            TargetGoneError: the process has exited.
            OSError: the link cannot be read.
        """
        self._check_open()
        try:
            return os.readlink(name, dir_fd=self._directory)
        except OSError as error:
            raise self._gone_or(error) from None

    def owner(self, name: str) -> int:
        """Return the user id that owns a file. Raises as :meth:`link` does."""
        self._check_open()
        try:
            return os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_uid
        except OSError as error:
            raise self._gone_or(error) from None

    def thread_ids(self) -> tuple[int, ...]:
        """Return the main thread's id, then the others in the order of their start.

        Raises:
            TargetGoneError: the process has exited.
        """
        try:
            listing = self.open("task")
            try:
                names = os.listdir(listing)  # noqa: PTH208 - a directory held open has no path
            finally:
                os.close(listing)
        except TargetGoneError:
            raise
        except OSError as error:
            raise self._gone_or(error) from None
        if not names:
            raise self.gone()
        # The kernel lists them so; sorting is stable.
        return tuple(sorted((int(name) for name in names), key=lambda thread: thread != self.pid))

    def state(self, thread: int) -> str:
        """Return the letter of a thread's state, as ps shows it; ``X`` if it has exited."""
        return self.stat(thread)[0] or "X"

    def stat(self, thread: int) -> tuple[str, int]:
        """Return a thread's state letter and kernel flags; the letter is empty if it has exited."""
        try:
            text = self.read(f"task/{thread}/stat")
        except (OSError, TargetGoneError):
            return "", 0
        # "tid (name) state ppid pgrp session tty tpgid flags ...": a name may hold a parenthesis.
        fields = text[text.rfind(")") + 1 :].split()
        if not fields:  # a container hides it: an empty file is mounted there
            return self.status(thread).get("State", "?")[:1], 0
        return fields[0], int(fields[6])

    def is_kernel_thread(self) -> bool:
        """Whether it is a thread of the kernel, with no memory of its own."""
        return bool(self.stat(self.pid)[1] & PF_KTHREAD)

    def live_thread(self) -> int:
        """Return a thread that has not exited; the main thread may exit before others.

        Raises:
            TargetGoneError: there is none.
        """
        if self.state(self.pid) not in EXITED_STATES:
            return self.pid  # nearly always, and all threads need not be listed
        for thread in self.thread_ids():
            if self.state(thread) not in EXITED_STATES:
                return thread
        raise TargetGoneError(
            f"process {self.pid} has exited; process "
            f"{self.status().get('PPid', '?')} has not collected its exit status yet",
            pid=self.pid,
        )

    def open_live(self, name: str) -> int:
        """Return a descriptor of a file of a thread that has not exited; see :meth:`open`.

        What threads share, their memory and its files, is shown only through such a one.
        """
        while True:
            thread = self.live_thread()
            try:
                return self.open(f"task/{thread}/{name}")
            except TargetGoneError:
                raise
            except OSError:
                if self.state(thread) not in EXITED_STATES:
                    raise

    def status(self, thread: int | None = None) -> MappingType[str, str]:
        """Parse ``/proc/PID/status``, or a thread's, into names and values.

        Raises:
            TargetGoneError: the process has exited.
        """
        try:
            text = self.read("status" if thread is None else f"task/{thread}/status")
        except TargetGoneError:
            raise
        except OSError as error:
            raise self._gone_or(error) from None
        return parse_status(text)

    def namespace_ids(self, thread: int) -> list[int]:
        """Return a thread's ids in its PID namespaces (``NSpid``), from that of ``/proc`` inwards.

        The last one is the id that the thread itself has. Only ``thread`` if the kernel states
        none, or the thread has exited.
        """
        try:
            words = self.status(thread).get("NSpid", "").split()
        except (OSError, TargetGoneError):
            words = []
        return [int(word) for word in words if word.isdecimal()] or [thread]

    def gone(self) -> TargetGoneError:
        """Return the error for a process that has exited."""
        return TargetGoneError(f"process {self.pid} has exited", pid=self.pid)

    def close(self) -> None:
        """Close the directory; a second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._close.alive:
            raise TargetError(f"the target is closed: process {self.pid}", remedy="open it again")

    def _gone_or(self, error: OSError) -> TargetGoneError | OSError:
        # A missing name is ENOENT for a live process and for an exited one.
        if error.errno == ESRCH or (error.errno == ENOENT and not self._exists()):
            return self.gone()
        return error

    def _exists(self) -> bool:
        try:
            os.stat("stat", dir_fd=self._directory)
        except OSError:
            return False
        return True


def parse_status(text: str) -> MappingType[str, str]:
    """Parse ``/proc/PID/status``: a name, a colon and a value on each line."""
    lines = (line.partition(":") for line in text.split("\n"))
    return MappingProxyType({name: value.strip() for name, _, value in lines if name})


_STATES = {
    ord("R"): ThreadState.RUNNING,
    ord("S"): ThreadState.SLEEPING,
    ord("I"): ThreadState.SLEEPING,
    ord("P"): ThreadState.SLEEPING,
    ord("W"): ThreadState.SLEEPING,
    ord("D"): ThreadState.UNINTERRUPTIBLE,
    ord("K"): ThreadState.UNINTERRUPTIBLE,
    ord("T"): ThreadState.STOPPED,
    ord("t"): ThreadState.STOPPED,
}
"""By letter: ``task_state_array`` in ``fs/proc/array.c`` of the kernel. Exited ones are absent."""

_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MAX_OPEN = 256
"""Threads whose files stay open; fewer if that is more than a quarter of the files allowed."""
_FILES = "stat", "schedstat"
_STAT, _SCHEDSTAT = range(2)
_RUNS = ord("R")
_EXITED = b"0 () X", b""
_FILE_SIZE = 1024

_STOP_SLICES = 2
"""Times that a capture has a sleeping thread run: until it stops, and when it is resumed."""
_STOP_COST_NS = 1_000_000
"""Maximum processor time that is attributed to a capture."""


class ThreadUse(NamedTuple):
    """The state and the processor time of a thread at a capture."""

    state: ThreadState | None
    """None if it has exited."""
    cpu_ns: int
    """The processor time up to its last turn on a processor, or a later clock tick."""
    slices: int | None
    """The number of times that it was given a processor; None if unknown."""


def stat_name(stat: bytes) -> str:
    """Return the name in a thread's ``stat``: ``tid (name) state …`` (proc(5))."""
    return os.fsdecode(stat[stat.index(b"(") + 1 : stat.rindex(b")")])


def thread_use(stat: bytes, schedstat: bytes) -> ThreadUse:
    """Parse a thread's ``stat`` and ``schedstat``: time on a processor, time in queues, slices.

    The kernel adds up a running thread's time at each clock tick, and when the thread stops
    running. Kernels without ``CONFIG_SCHED_INFO`` have no second file: processor times are
    multiples of 10 ms then.

    Raises:
        ValueError, IndexError: a field is missing.
    """
    end = stat.rindex(b")") + 2  # a name may hold a parenthesis
    state = _STATES.get(stat[end])
    if schedstat:
        cpu_ns, _, slices = schedstat.split()
        if slices != b"0":
            return ThreadUse(state, int(cpu_ns), int(slices))
    fields = stat[end:].split(None, 13)
    return ThreadUse(state, (int(fields[11]) + int(fields[12])) * _NS_PER_TICK, None)


class ActivityReader:
    """Reads what threads do between captures.

    Files of threads stay open from their second capture on: to open them takes longer than to read
    them.
    """

    def __init__(self, directory: ProcessDirectory) -> None:
        self._directory = directory
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_limited = allowed != resource.RLIM_INFINITY
        self._most_open = min(_MAX_OPEN, allowed // 8) if is_limited else _MAX_OPEN
        self._files: dict[int, tuple[int, ...]] = {}
        """Descriptors of :data:`_FILES`; -1 for one that does not exist."""
        self._before: dict[int, tuple[bytes, bytes]] = {}
        """The files that :meth:`begin` read; the second is empty if it is read later."""
        self._last: dict[int, ThreadUse] = {}
        """At the last capture."""
        self._capture_ns: dict[int, int] = {}
        """The processor time that captures cost a thread while it slept."""

    def begin(self, threads: Sequence[int], *, are_all: bool) -> None:
        """Read about threads that are about to be captured.

        Args:
            threads: the threads.
            are_all: whether others exist no more, or are not captured.
        """
        if are_all:
            self._before.clear()
            if len(self._last) > len(threads):
                for thread in self._last.keys() - set(threads):
                    self._forget(thread)
        for thread in threads:
            try:
                stat = self._read(thread, _STAT)
                # The time of a running thread is read later, and that of a new one, which may exit.
                is_later = stat[stat.rindex(b")") + 2] == _RUNS or thread not in self._last
                self._before[thread] = stat, b"" if is_later else self._read(thread, _SCHEDSTAT)
            except (OSError, TargetGoneError, ValueError, IndexError):
                self._forget(thread)
                self._before[thread] = _EXITED

    def name(self, thread: int) -> str | None:
        """Return the name of a thread that is being captured: empty if it exited; else None."""
        before = self._before.get(thread)
        return None if before is None else stat_name(before[0])

    def end(self, thread: int) -> tuple[ThreadState | None, int | None]:
        """Return a thread's state before its capture, and its processor time; None if unknown.

        To be called when it was captured: the time of a thread that ran is known only then.
        """
        before = self._before.pop(thread, None)
        if before is None:
            return None, None
        try:
            use = thread_use(before[0], before[1] or self._read(thread, _SCHEDSTAT))
        except (OSError, TargetGoneError, ValueError, IndexError):
            return None, None
        if use.state is ThreadState.RUNNING:
            use = self._up_to_now(thread, use)
        last, captures = self._last.get(thread), 0
        if last is not None and last.cpu_ns <= use.cpu_ns:  # else its id is another thread's now
            captures = self._capture_ns.get(thread, 0)
            if was_only_captured(last, use):
                captures += use.cpu_ns - last.cpu_ns
                use = use._replace(state=ThreadState.SLEEPING)
            self._capture_ns[thread] = captures
        self._last[thread] = use
        return use.state, use.cpu_ns - captures

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        for thread in [*self._files]:
            self._forget(thread)

    def _up_to_now(self, _thread: int, use: ThreadUse) -> ThreadUse:
        """Return ``use`` of a thread that ran, with its processor time up to now."""
        return use  # the kernel added it up when the capture stopped the thread

    def _forget(self, thread: int) -> None:
        for descriptor in self._files.pop(thread, ()):
            if descriptor >= 0:
                os.close(descriptor)
        self._before.pop(thread, None)
        self._last.pop(thread, None)
        self._capture_ns.pop(thread, None)

    def _read(self, thread: int, file: int) -> bytes:
        """Return a file's text; empty if the kernel has no such file."""
        files = self._files.get(thread)
        if files is None:
            if thread not in self._last or len(self._files) >= self._most_open:
                return self._read_once(thread, file)  # many a thread exits before the next capture
            files = self._files[thread] = self._open(thread, _STAT), self._open(thread, _SCHEDSTAT)
        return os.pread(files[file], _FILE_SIZE, 0) if files[file] >= 0 else b""

    def _read_once(self, thread: int, file: int) -> bytes:
        descriptor = self._open(thread, file)
        if descriptor < 0:
            return b""
        try:
            return os.pread(descriptor, _FILE_SIZE, 0)
        finally:
            os.close(descriptor)

    def _open(self, thread: int, file: int) -> int:
        """Open one of a thread's files; -1 if it does not exist."""
        try:
            return self._directory.open(f"task/{thread}/{_FILES[file]}")
        except FileNotFoundError:
            return -1


def was_only_captured(before: ThreadUse, now: ThreadUse) -> bool:
    """Return whether a thread that slept at one capture did nothing else up to the next.

    It had no more turns on a processor than it needed to stop and to sleep again. It may still wait
    for the second one, as a running thread.
    """
    if before.slices is None or now.slices is None:
        return False
    is_idle = before.state is ThreadState.SLEEPING and now.state in (
        ThreadState.SLEEPING,
        ThreadState.RUNNING,
    )
    is_short = 0 <= now.cpu_ns - before.cpu_ns <= _STOP_COST_NS
    return is_idle and is_short and 0 <= now.slices - before.slices <= _STOP_SLICES
