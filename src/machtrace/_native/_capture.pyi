"""Stop, copy, resume: threads of other Linux processes."""

from typing_extensions import Buffer

def copy_threads(
    threads: tuple[int, ...],
    mappings: Buffer,
    stack_limit: int,
    stop_limit_ns: int,
    sleep_limit_ns: int,
    /,
) -> list[
    tuple[int, int, int, int, bytes, tuple[tuple[int, bytes], ...], int, int, int]
]: ...
