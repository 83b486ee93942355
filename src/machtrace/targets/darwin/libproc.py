"""Calls of libproc and of the kernel that need no stop: polls of a process of macOS.

Never run on a Mac; offsets and numbers are compared with Apple's headers in the tests. Without
rights over a process only those of the same user, or root, get its threads and its usage.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from errno import ENOENT, ESRCH
from struct import Struct
from typing import NamedTuple

from machtrace.errors import TargetAccessError
from machtrace.model.snapshot import ThreadState

# sys/proc_info.h
PIDTHREADINFO, PIDLISTTHREADS, PIDT_SHORTBSDINFO, PIDTHREADID64INFO = 5, 6, 13, 15
THREAD_INFO_SIZE = 112
_THREAD_TIMES, _RUN_STATE, _THREAD_NAME = Struct("<QQ"), Struct("<i"), slice(48, 112)
_RUN_STATE_AT = 24
SHORT_INFO_SIZE = 64
_SHORT_INFO = Struct("<4I16sI")
_FLAG_TRACED = 2
_STOPPED, _ZOMBIE = 4, 5
"""``SSTOP`` and ``SZOMB`` of ``sys/proc.h``."""
# sys/resource.h
RUSAGE_INFO_V4 = 4
RUSAGE_SIZE = 296
USAGE_FIELDS: Mapping[str, int] = {
    "user_time": 16,
    "system_time": 24,
    "resident_size": 64,
    "phys_footprint": 72,
    "proc_start_abstime": 80,
    "lifetime_max_phys_footprint": 240,
}
"""Offsets in ``rusage_info_v4``. Times are those of ``mach_absolute_time``."""
# mach/thread_info.h and mach/thread_status.h
_THREAD_IDENTIFIER_INFO, _IDENTIFIER_WORDS = 4, 6
_STATES = {1: ThreadState.RUNNING, 2: ThreadState.STOPPED, 3: ThreadState.SLEEPING}
_STATES |= {4: ThreadState.UNINTERRUPTIBLE}
"""By ``TH_STATE_…``."""
_LETTERS = {
    ThreadState.RUNNING: "R",
    ThreadState.STOPPED: "T",
    ThreadState.SLEEPING: "S",
    ThreadState.UNINTERRUPTIBLE: "D",
}
_MAX_THREADS = 1 << 16
_WORD = Struct("<Q")


class ThreadFacts(NamedTuple):
    """``struct proc_threadinfo``."""

    cpu_ns: int
    """User and system time, a multiple of microseconds."""
    state: ThreadState | None
    name: str

    @property
    def letter(self) -> str | None:
        """The state's letter on Linux."""
        return None if self.state is None else _LETTERS[self.state]


class ProcessState(NamedTuple):
    """``struct proc_bsdshortinfo``."""

    parent: int
    is_stopped: bool
    is_zombie: bool
    is_traced: bool


class Usage(NamedTuple):
    """``struct rusage_info_v4``, in bytes and nanoseconds."""

    cpu_ns: int
    footprint: int
    most_footprint: int
    resident: int
    started_ns: int
    """``CLOCK_MONOTONIC``."""
    program: bytes
    """The UUID of the program."""


def parse_thread(data: bytes) -> ThreadFacts:
    """Parse ``struct proc_threadinfo``."""
    name = data[_THREAD_NAME].partition(b"\0")[0].decode("utf-8", "replace")
    (state,) = _RUN_STATE.unpack_from(data, _RUN_STATE_AT)
    return ThreadFacts(sum(_THREAD_TIMES.unpack_from(data)), _STATES.get(state), name)


def parse_process(data: bytes) -> ProcessState:
    """Parse ``struct proc_bsdshortinfo``."""
    _, parent, _, status, _, flags = _SHORT_INFO.unpack_from(data)
    return ProcessState(parent, status == _STOPPED, status == _ZOMBIE, bool(flags & _FLAG_TRACED))


def parse_usage(data: bytes, timebase: tuple[int, int]) -> Usage:
    """Parse ``struct rusage_info_v4``."""
    numerator, denominator = timebase
    values = {
        name: int.from_bytes(data[at : at + 8], "little") for name, at in USAGE_FIELDS.items()
    }
    ticks = values["user_time"] + values["system_time"]
    return Usage(
        cpu_ns=ticks * numerator // denominator,
        footprint=values["phys_footprint"],
        most_footprint=values["lifetime_max_phys_footprint"],
        resident=values["resident_size"],
        started_ns=values["proc_start_abstime"] * numerator // denominator,
        program=data[:16],
    )


class Libproc:
    """The calls of this Mac's libSystem.

    Those that fail raise OSError; ``ESRCH``: the process or the thread has exited.
    """

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL("/usr/lib/libSystem.B.dylib", use_errno=True)
        library.proc_pidinfo.argtypes = [
            *(ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int)
        ]
        library.task_threads.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p]
        library.mach_vm_deallocate.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64]
        for name in ("thread_info", "thread_get_state"):
            getattr(library, name).argtypes = [
                *(ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            ]
        self._own = ctypes.c_uint32.in_dll(library, "mach_task_self_").value
        ratio = (ctypes.c_uint32 * 2)()
        library.mach_timebase_info(ratio)
        self.timebase: tuple[int, int] = (ratio[0], ratio[1])
        """Numerator and denominator of ``mach_timebase_info``."""

    def pid_info(self, pid: int, flavor: int, argument: int, size: int, /) -> bytes:
        """Return what ``proc_pidinfo`` writes."""
        buffer = ctypes.create_string_buffer(size)
        count = self._library.proc_pidinfo(pid, flavor, argument, buffer, size)
        if count <= 0:
            raise _failure()
        return buffer.raw[:count]

    def usage(self, pid: int, /) -> bytes:
        """Return the ``rusage_info_v4`` of ``proc_pid_rusage``."""
        buffer = ctypes.create_string_buffer(RUSAGE_SIZE)
        if self._library.proc_pid_rusage(pid, RUSAGE_INFO_V4, buffer):
            raise _failure()
        return buffer.raw

    def thread_ports(self, task: int, /) -> dict[int, int]:
        """Return ports of a task's threads by thread id, which the caller releases."""
        ports, count = ctypes.POINTER(ctypes.c_uint32)(), ctypes.c_uint32()
        if self._library.task_threads(task, ctypes.byref(ports), ctypes.byref(count)):
            return {}
        threads: dict[int, int] = {}
        for port in ports[: count.value]:
            identity, words = (ctypes.c_uint64 * 3)(), ctypes.c_uint32(_IDENTIFIER_WORDS)
            if self._library.thread_info(
                port, _THREAD_IDENTIFIER_INFO, identity, ctypes.byref(words)
            ):
                self.release(port)
            else:
                threads[identity[0]] = port
        address = ctypes.cast(ports, ctypes.c_void_p).value or 0
        self._library.mach_vm_deallocate(self._own, address, 4 * count.value)
        return threads

    def release(self, port: int, /) -> None:
        """Release a port."""
        self._library.mach_port_deallocate(self._own, port)

    def registers(self, port: int, flavor: int, size: int, /) -> bytes:
        """Return a thread's state (``thread_get_state``); empty if it has exited."""
        state, words = ctypes.create_string_buffer(size), ctypes.c_uint32(size // 4)
        if self._library.thread_get_state(port, flavor, state, ctypes.byref(words)):
            return b""
        return state.raw[: 4 * words.value]


def _failure() -> OSError:
    errno = ctypes.get_errno() or ENOENT
    return OSError(errno, "ESRCH" if errno == ESRCH else f"errno {errno}")


def list_handles(libproc: Libproc, pid: int) -> tuple[int, ...]:
    """Return the handles of a process's threads, which its main thread's is the first of.

    Raises:
        TargetAccessError: it is another user's.
    """
    try:
        data = libproc.pid_info(pid, PIDLISTTHREADS, 0, _WORD.size * _MAX_THREADS)
    except OSError as error:
        raise TargetAccessError(
            f"the threads of process {pid} are hidden",
            pid=pid,
            errno=error.errno or ENOENT,
            remedy="run as its user, or as root",
        ) from None
    return tuple(handle for (handle,) in _WORD.iter_unpack(data))
