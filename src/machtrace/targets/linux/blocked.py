"""A thread that cannot be stopped, from what the kernel shows of one that waits inside it.

``/proc/PID/task/TID/syscall`` (proc(5); ``proc_pid_syscall`` in the kernel's ``fs/proc/base.c``)
has the stack pointer and the program counter of a thread in a system call. The thread does not run
meanwhile, so its stack can be copied without stopping it; its other registers are unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryReader, MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ThreadInfo, ThreadSnapshot
from machtrace.targets.shared.thread_copy import RED_ZONE

_PAGE = 4096


def waiting_registers(text: str, arch: Arch) -> RegisterSet | None:
    """Parse the registers in ``syscall``; None if the thread runs."""
    fields = text.split()
    try:
        sp, pc = (int(field, 16) for field in fields[-2:])
    except ValueError:
        return None
    return RegisterSet.of(arch, pc=pc, sp=sp)


def copy_waiting(
    info: ThreadInfo,
    arch: Arch,
    read_syscall: Callable[[], str],
    memory: MemoryReader,
    range_end: Callable[[int], int],
    stack_limit: int,
) -> ThreadSnapshot | None:
    """Copy a thread that waits in the kernel; None where it ran meanwhile.

    Args:
        info: which thread.
        arch: of the process.
        read_syscall: reads the file; called before and after, and both texts must be equal.
        memory: of the process.
        range_end: the end of the mapping that holds a stack pointer (both Avma).
        stack_limit: bytes copied at most, the red zone not counted.
    """
    before = read_syscall()
    registers = waiting_registers(before, arch)
    if registers is None or registers.sp is None:
        return None
    sp = registers.sp
    end = min(range_end(sp), sp + stack_limit)
    stack = MemoryRegion(Avma(sp), b"")
    # The red zone may lie in the guard page below the stack.
    for start in (max(0, sp - RED_ZONE), sp & -_PAGE, sp):
        try:
            stack = MemoryRegion(Avma(start), memory.read(Avma(start), end - start))
            break
        except MemoryReadError:
            continue
    if read_syscall() != before:
        return None
    return ThreadSnapshot(
        info=info, registers=registers, stack=stack, taken_at_ns=time.monotonic_ns()
    )
