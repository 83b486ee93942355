"""The system calls that the emulated process makes, with Darwin's numbers and arguments.

Sources: xnu, ``bsd/kern/syscalls.master`` (positive numbers), ``osfmk/mach/syscall_sw.h`` (mach
traps, negative), ``osfmk/arm64/sleh.c`` (the time) and ``bsd/sys/proc_info.h``; libpthread,
``kern/kern_support.c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Protocol

from machtrace.errors import TargetError
from machtrace.model.address import Avma

_SUCCESS = 0
_FAILURE = 5
"""KERN_FAILURE, and EIO."""
_MACH_RCV_MSG = 2
_SETCONTROL = 5
_SET_THREAD_NAME = 2
_LONGEST_THREAD_NAME = 64
_LARGEST_ALLOCATION = 1 << 24
_FIRST_PORT = 0x103
_PORT_STEP = 0x100


class SystemCall(IntEnum):
    """System call numbers in x16 at ``svc #0x80``."""

    MACH_WAIT_UNTIL_TRAP = -90
    MACH_MSG_TRAP = -31
    TASK_SELF_TRAP = -28
    MACH_REPLY_PORT = -26
    MACH_VM_ALLOCATE_TRAP = -10
    MACH_ABSOLUTE_TIME = -3
    EXIT = 1
    PROC_INFO = 336
    BSDTHREAD_CREATE = 360
    BSDTHREAD_TERMINATE = 361
    BSDTHREAD_REGISTER = 366


class Leave(Enum):
    """Why a call does not come back."""

    WAITING = "waiting"
    """It waits for a time."""
    BLOCKED = "blocked"
    """It waits for what nobody will send."""
    ENDED = "ended"
    """The thread is over."""


class CallingProcess(Protocol):
    """The process that calls, by the thread that runs."""

    def read(self, address: Avma, size: int, /) -> bytes:
        """Read bytes of its memory."""
        ...

    def write(self, address: Avma, data: bytes, /) -> None:
        """Change its memory."""
        ...

    def allocate(self, size: int, /) -> Avma:
        """New memory, zeroed."""
        ...

    def start_thread(self, entry: Avma, stack_size: int, arguments: Sequence[int], /) -> None:
        """Make another thread, to run later, with ``arguments`` in x0 and on."""
        ...

    def name_thread(self, name: str, /) -> None:
        """Give the thread that runs a name."""
        ...

    @property
    def now_ns(self) -> int:
        """The time of its clock."""
        ...

    def wait_until(self, time_ns: int, /) -> None:
        """Let the thread that runs continue at a time."""
        ...


class Kernel:
    """As much of a kernel as one process needs."""

    def __init__(self, process: CallingProcess) -> None:
        self._process = process
        self._task_port = _FIRST_PORT
        self._last_port = _FIRST_PORT
        self._thread_start: Avma | None = None

    def call(  # noqa: C901, PLR0911 (one answer a call)
        self, number: int, arguments: Sequence[int]
    ) -> int | Leave:
        """Answer a system call.

        Args:
            number: what x16 holds, signed.
            arguments: x0 to x7.

        Returns:
            What x0 is to hold, or why the call does not come back.

        Raises:
            TargetError: there is no such call here.
        """
        match number:
            case SystemCall.MACH_MSG_TRAP if arguments[1] & _MACH_RCV_MSG:
                return Leave.BLOCKED
            case SystemCall.MACH_WAIT_UNTIL_TRAP:
                self._process.wait_until(arguments[0])
                return Leave.WAITING
            case SystemCall.MACH_ABSOLUTE_TIME:
                return self._process.now_ns
            case SystemCall.TASK_SELF_TRAP:
                return self._task_port
            case SystemCall.MACH_REPLY_PORT:
                return self._new_port()
            case SystemCall.MACH_VM_ALLOCATE_TRAP:
                return self._allocate(Avma(arguments[1]), arguments[2])
            case SystemCall.EXIT | SystemCall.BSDTHREAD_TERMINATE:
                return Leave.ENDED
            case SystemCall.PROC_INFO if (arguments[0], arguments[2]) == (
                _SETCONTROL,
                _SET_THREAD_NAME,
            ):
                return self._name_thread(Avma(arguments[4]), arguments[5])
            case SystemCall.BSDTHREAD_REGISTER:
                self._thread_start = Avma(arguments[0])
                return _SUCCESS
            case SystemCall.BSDTHREAD_CREATE if self._thread_start is not None:
                return self._create_thread(self._thread_start, arguments)
            case _:
                raise TargetError(
                    f"the emulated kernel has no system call {number} for these arguments"
                )

    def _new_port(self) -> int:
        self._last_port += _PORT_STEP
        return self._last_port

    def _allocate(self, place: Avma, size: int) -> int:
        if not 0 < size <= _LARGEST_ALLOCATION:
            return _FAILURE
        self._process.write(place, self._process.allocate(size).to_bytes(8, "little"))
        return _SUCCESS

    def _name_thread(self, name: Avma, length: int) -> int:
        if length >= _LONGEST_THREAD_NAME:
            return _FAILURE
        self._process.name_thread(self._process.read(name, length).decode("utf-8", "replace"))
        return _SUCCESS

    def _create_thread(self, thread_start: Avma, arguments: Sequence[int]) -> int:
        function, argument, stack_size, thread, flags = arguments[:5]
        if not 0 < stack_size <= _LARGEST_ALLOCATION:
            return _FAILURE
        # As _pthread_start wants them; the stack is ours to give (no PTHREAD_START_CUSTOM).
        self._process.start_thread(
            thread_start,
            stack_size,
            (thread, self._new_port(), function, argument, stack_size, flags),
        )
        return thread
