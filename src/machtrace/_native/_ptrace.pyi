# Stop, copy, resume: threads of other Linux processes. See ptrace/module.c and ptrace/ptrace.h.

from typing import TypeAlias

from typing_extensions import Buffer

# Id, outcome, errno, uninterruptible, registers, stacks, and when it was asked, stopped, resumed.
Row: TypeAlias = tuple[int, int, int, int, bytes, tuple[tuple[int, bytes], ...], int, int, int]

def copy_threads(
    threads: tuple[int, ...],
    mappings: Buffer,
    stack_limit: int,
    stop_limit_ns: int,
    sleep_limit_ns: int,
    /,
) -> list[Row]: ...
