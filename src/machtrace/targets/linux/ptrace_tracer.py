"""Stopping, copying and letting go of single threads by ptrace(2), through ctypes.

The calls of ``native/ptrace/ptrace.c`` in the same order, with the same results; a thread is
stopped for longer, because the interpreter works between them. They go through
:class:`ctypes.PyDLL`, which keeps the interpreter's lock: to let go of it while a thread stands
still would be to wait for every other thread of this process before letting it run.

System calls that fail with EINTR when their thread is stopped, though no signal came.

Most go on by themselves (signal(7), "Interruption of system calls and library functions by stop
signals", names those that do not). Where such a call has no time limit, waiting again is exactly
what the program asked for, and the kernel does it if the result says so. With a time limit it
would wait too long: there the program sees EINTR, as it would after SIGSTOP and SIGCONT.

x86-64 only: on aarch64 the result has replaced the first argument, which is not shown.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import time
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from errno import EINTR
from struct import Struct

from machtrace.formats.elf.core.registers import layout_of
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion
from machtrace.targets.linux.procfs import EXITED_STATES
from machtrace.targets.shared.signal_frame import interrupted_sp
from machtrace.targets.shared.thread_copy import (
    RED_ZONE,
    SLEEP_LIMIT_NS,
    STOP_LIMIT_NS,
    CaptureFailure,
    CopiedThread,
    ThreadCopy,
    UncopiedThread,
)

_SIZE = 216
_R10, _RAX, _RDX, _ORIG_RAX = 56, 80, 96, 120
_UNSIGNED, _SIGNED, _INT = Struct("<Q"), Struct("<q"), Struct("<i")

_ERESTARTNOHAND = 514
"""``linux/errno.h`` of the kernel: restart, unless a handler runs; then it is EINTR after all."""

_NULL_TIMEOUT = {
    128: _RDX,  # rt_sigtimedwait
    220: _R10,  # semtimedop
    441: _R10,  # epoll_pwait2
}
_NEGATIVE_TIMEOUT = {
    232: _R10,  # epoll_wait
    281: _R10,  # epoll_pwait
}
_SEMOP = 65


def mark_restart(registers: bytearray | memoryview, size: int) -> bool:
    """Make a call that failed so in ``registers`` wait again; whether anything was changed.

    Args:
        registers: ``NT_PRSTATUS``; changed in place.
        size: how many bytes of it are meant.
    """
    if size != _SIZE or _SIGNED.unpack_from(registers, _RAX)[0] != -EINTR:
        return False
    number: int = _UNSIGNED.unpack_from(registers, _ORIG_RAX)[0]
    unlimited: bool
    if number in _NULL_TIMEOUT:
        unlimited = _UNSIGNED.unpack_from(registers, _NULL_TIMEOUT[number])[0] == 0
    elif number in _NEGATIVE_TIMEOUT:
        unlimited = _INT.unpack_from(registers, _NEGATIVE_TIMEOUT[number])[0] < 0
    else:
        unlimited = number == _SEMOP
    if unlimited:
        _SIGNED.pack_into(registers, _RAX, -_ERESTARTNOHAND)
    return unlimited


_PRESENT_SIZE = 512 * 1024
"""The first bytes of the buffers for stacks, which are present before a thread is stopped; few
stacks are deeper."""

# linux/ptrace.h, elf.h, bits/waitflags.h
_PTRACE_DETACH = 17
_PTRACE_GETSIGINFO = 0x4202
_PTRACE_GETREGSET = 0x4204
_PTRACE_SETREGSET = 0x4205
_PTRACE_SEIZE = 0x4206
_PTRACE_INTERRUPT = 0x4207
_PTRACE_EVENT_STOP = 128
_NT_PRSTATUS = 1
_WALL = 0x40000000
_WAIT = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG | _WALL if os.name == "posix" else 0

_REGISTERS_MAX = 512

# A thread on another CPU stops within tens of microseconds, less than a sleep takes to end: yield
# that long, then sleep for longer and longer.
_SPIN_NS = 200_000
_FIRST_SLEEP_S = 20e-6
_LONGEST_SLEEP_S = 1e-3


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Siginfo(ctypes.Structure):
    """``siginfo_t`` of a 64-bit system, as waitid fills it in."""

    _fields_ = (
        ("signal", ctypes.c_int),
        ("errno", ctypes.c_int),
        ("code", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("pid", ctypes.c_int),
        ("uid", ctypes.c_uint),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 100),
    )


class _StopKind(Enum):
    TIMED_OUT = 0
    EXITED = 1
    TRAPPED = 2


@dataclass(frozen=True, slots=True)
class _Stop:
    kind: _StopKind
    signal: int = 0
    """To hand back on release; 0 for none."""
    by_interrupt: bool = False
    """Whether it was our own PTRACE_INTERRUPT, and nothing else, that stopped it."""


_TIMED_OUT = _Stop(_StopKind.TIMED_OUT)
_EXITED = _Stop(_StopKind.EXITED)


def _trapped(code: int) -> _Stop:
    """From a signal with, above it, a ptrace event."""
    if code >> 8 == 0:
        return _Stop(_StopKind.TRAPPED, signal=code & 0xFF)
    return _Stop(_StopKind.TRAPPED, by_interrupt=code & 0xFF == signal.SIGTRAP)


@dataclass(frozen=True, slots=True)
class StoppedThread:
    """A thread that stands still until it is let go."""

    id: int
    asked: int
    """When it was asked to stop (``CLOCK_MONOTONIC``, ns)."""
    stopped: int
    """When it was seen to have stopped."""
    stop: _Stop


@dataclass(frozen=True, slots=True)
class _Read:
    """What the buffers hold of a thread."""

    failure: int
    """An errno; 0 is none."""
    registers_size: int = 0
    stacks: tuple[tuple[int, int], ...] = ()
    """Start (Avma) and size of each."""


class Tracer:
    """Everything that is needed between stop and resume, made beforehand."""

    def __init__(self, stack_ranges: array[int], stack_limit: int) -> None:
        libc = ctypes.PyDLL(None, use_errno=True)
        self._ptrace = libc.ptrace
        self._ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        self._ptrace.restype = ctypes.c_long
        self._waitid = libc.waitid
        self._waitid.argtypes = (ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_int)
        self._read = libc.process_vm_readv
        iovec = ctypes.POINTER(_Iovec)
        self._read.argtypes = (
            *(ctypes.c_int, iovec, ctypes.c_ulong),
            *(iovec, ctypes.c_ulong, ctypes.c_ulong),
        )
        self._read.restype = ctypes.c_ssize_t
        self._yield = libc.sched_yield
        self._ranges_end = list(stack_ranges[1::2])
        self._stack_limit = stack_limit
        self._page_mask = ~(os.sysconf("SC_PAGE_SIZE") - 1)
        self._views = tuple(_buffer(RED_ZONE + stack_limit) for _ in range(2))
        self._stacks = tuple(ctypes.c_char.from_buffer(view) for view in self._views)
        self._registers = ctypes.create_string_buffer(_REGISTERS_MAX)
        self._registers_view = memoryview(self._registers).cast("B")
        self._register_iovec = _Iovec(ctypes.addressof(self._registers), _REGISTERS_MAX)
        self._register_at = ctypes.addressof(self._register_iovec)
        self._here, self._there = _Iovec(), _Iovec()
        self._event = _Siginfo()
        self._event_at = ctypes.addressof(self._event)

    def copy(self, thread: int) -> ThreadCopy:
        """Seize, stop, copy and let go of one thread."""
        asked = self.ask(thread)
        if isinstance(asked, UncopiedThread):
            return asked
        stopped = self.await_stop(thread, asked)
        if isinstance(stopped, UncopiedThread):
            return stopped
        read = self.read(stopped)
        self.let_go(stopped)
        return self.copy_of(stopped, read, time.monotonic_ns())

    def ask(self, thread: int) -> int | UncopiedThread:
        """Seize a thread and ask it to stop; when that was (``CLOCK_MONOTONIC``)."""
        if self._ptrace(_PTRACE_SEIZE, thread, None, None) == -1:
            return _uncopied(thread, CaptureFailure.REFUSED, ctypes.get_errno())
        asked = time.monotonic_ns()
        if self._ptrace(_PTRACE_INTERRUPT, thread, None, None) == -1:
            return _uncopied(thread, CaptureFailure.GONE)
        return asked

    def await_stop(self, thread: int, asked: int) -> StoppedThread | UncopiedThread:
        """Wait until a thread that was asked has stopped."""
        stop = self._wait(thread, asked)
        if stop.kind is _StopKind.TRAPPED:
            return StoppedThread(thread, asked, time.monotonic_ns(), stop)
        if stop.kind is _StopKind.EXITED:
            return _uncopied(thread, CaptureFailure.GONE)
        return UncopiedThread(
            id=thread,
            why=CaptureFailure.NOT_STOPPED,
            errno=0,
            is_uninterruptible=_state(thread) == "D",
        )

    def read(self, thread: StoppedThread, *, with_stacks: bool = True) -> _Read:
        """Read its registers and stacks into the buffers, and see that it can go on as it was."""
        self._register_iovec.size = _REGISTERS_MAX
        if self._ptrace(_PTRACE_GETREGSET, thread.id, _NT_PRSTATUS, self._register_at) == -1:
            return _Read(ctypes.get_errno())
        size = self._register_iovec.size
        stacks = self._read_stacks(thread.id, size) if with_stacks else ()
        if thread.stop.by_interrupt and mark_restart(self._registers_view, size):
            self._ptrace(_PTRACE_SETREGSET, thread.id, _NT_PRSTATUS, self._register_at)
        return _Read(0, size, stacks)

    def let_go(self, thread: StoppedThread) -> None:
        """Let it run on, with the signal that it was about to get."""
        self._ptrace(_PTRACE_DETACH, thread.id, None, thread.stop.signal)

    def copy_of(self, thread: StoppedThread, read: _Read, resumed: int) -> ThreadCopy:
        """What is in the buffers since :meth:`read`, of a thread that ran on at ``resumed``."""
        if read.failure == errno.ESRCH:
            return _uncopied(thread.id, CaptureFailure.GONE)
        if read.failure:
            return _uncopied(thread.id, CaptureFailure.FAILED, read.failure)
        return CopiedThread(
            id=thread.id,
            registers=bytes(self._registers_view[: read.registers_size]),
            stacks=tuple(
                MemoryRegion(Avma(start), bytes(view[:length]))
                for (start, length), view in zip(read.stacks, self._views, strict=False)
            ),
            taken_at_ns=thread.stopped,
            stopped_for_ns=resumed - thread.asked,
        )

    def read_memory(self, thread: int, address: int, size: int) -> bytes:
        """As many bytes as can be read there in one piece, whole pages at the far end.

        Unlike other ways to read it keeps the interpreter's lock, as all that is done here.
        """
        buffer = ctypes.create_string_buffer(size)
        self._here.base = ctypes.addressof(buffer)
        self._there.base = address
        self._here.size = self._there.size = size
        read: int = self._read(thread, self._here, 1, self._there, 1, 0)
        return buffer.raw[: max(0, read)]

    def _wait(self, thread: int, asked: int) -> _Stop:
        """Wait for the stop, and reap nothing.

        If the target is a child of this process, its exit status is for whoever started it; and
        zombies that a thread traces are the kernel's to hand on when it ends.
        """
        event, sleep = self._event, _FIRST_SLEEP_S
        awake = asked  # when it was last seen in no uninterruptible sleep
        while True:
            stop = self._look(thread)
            if stop is not None:
                return stop
            waited = time.monotonic_ns() - asked
            if waited < _SPIN_NS:
                self._yield()
                continue
            # Another thread of this process can take our event in a waitpid(-1); the stop itself
            # still shows.
            if self._ptrace(_PTRACE_GETSIGINFO, thread, None, self._event_at) == 0:
                is_event = event.code >> 8 == _PTRACE_EVENT_STOP
                return _trapped(event.code if is_event else event.signal)
            state = _state(thread)
            if state and state in EXITED_STATES:
                # Of a main thread nobody is told until all others of its process are collected,
                # and those that are traced here are when this tracer ends.
                return _EXITED
            if state != "D":
                awake = time.monotonic_ns()
            if waited >= STOP_LIMIT_NS or time.monotonic_ns() - awake >= SLEEP_LIMIT_NS:
                return _TIMED_OUT
            time.sleep(sleep)
            sleep = min(2 * sleep, _LONGEST_SLEEP_S)

    def _look(self, thread: int) -> _Stop | None:
        """What the kernel tells of a thread; None where there is nothing yet."""
        event = self._event
        event.pid = 0
        if self._waitid(os.P_PID, thread, self._event_at, _WAIT) == -1:
            return _EXITED if ctypes.get_errno() == errno.ECHILD else None
        if not event.pid:
            return None
        is_stop = event.code in (os.CLD_TRAPPED, os.CLD_STOPPED)
        return _trapped(event.status) if is_stop else _EXITED

    def _read_stacks(self, thread: int, registers_size: int) -> tuple[tuple[int, int], ...]:
        """Start (Avma) and size of what was read into each buffer."""
        layout = layout_of(registers_size)
        if layout is None:
            return ()
        words = layout.words.unpack_from(self._registers_view)
        sp, block = words[layout.sp], 0 if layout.block is None else words[layout.block]
        first = self._read_stack(thread, sp, block, 0)
        interrupted = interrupted_sp(self._views[0][: first[1]], sp, layout)
        if interrupted is None:
            return (first,)
        second = self._read_stack(thread, interrupted, block, 1)
        return (first, second) if second[1] else (first,)

    def _read_stack(self, thread: int, sp: int, block: int, index: int) -> tuple[int, int]:
        """Start (Avma) and size of what was read, up to the thread's own block above it."""
        start = max(0, sp - RED_ZONE)
        upto = bisect_right(self._ranges_end, sp)
        end = sp + self._stack_limit
        if upto < len(self._ranges_end):
            end = min(end, self._ranges_end[upto])
        if sp < block < end:
            end = block
        size = self._read_memory(thread, start, end - start, index)
        page = sp & self._page_mask
        if size <= 0 and page > start:
            # The red zone may lie in the guard page below the stack.
            start = page
            size = self._read_memory(thread, start, end - start, index)
        return (start, size) if size > 0 else (sp, 0)

    def _read_memory(self, thread: int, address: int, size: int, index: int) -> int:
        """As many bytes as can be read, whole pages at the far end; -1 for none."""
        self._here.base = ctypes.addressof(self._stacks[index])
        self._there.base = address
        self._here.size = self._there.size = size
        read: int = self._read(thread, self._here, 1, self._there, 1, 0)
        return read


def _buffer(size: int) -> memoryview:
    """Memory to copy to. The part that most stacks need is present: it takes no page faults."""
    mapped = memoryview(mmap.mmap(-1, size))
    present = min(size, _PRESENT_SIZE)
    mapped[:present] = bytes(present)
    return mapped


def _uncopied(thread: int, why: CaptureFailure, error: int = 0) -> UncopiedThread:
    if error == errno.ESRCH:
        why = CaptureFailure.GONE
    return UncopiedThread(id=thread, why=why, errno=error)


def _state(thread: int) -> str:
    """The letter of the state that the kernel shows the thread in; empty where it shows none."""
    try:
        with open(f"/proc/{thread}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - in a hurry
            text = file.read(128)
    except OSError:
        return ""
    # "tid (name) state ...": a name may itself hold a parenthesis.
    return text[text.rfind(b")") :][2:3].decode("latin-1")
