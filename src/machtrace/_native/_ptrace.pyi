# Stop, copy, resume: threads of other Linux processes. See native/ptrace.

from typing import Self, TypeAlias

from typing_extensions import Buffer

# Id, outcome, errno, uninterruptible, registers, stacks; when the stop was requested,
# when stopped and resumed; 0.
Row: TypeAlias = tuple[int, int, int, int, bytes, tuple[tuple[int, bytes], ...], int, int, int, int]

def copy_threads(
    threads: tuple[int, ...],
    mappings: Buffer,
    stack_limit: int,
    stop_limit_ns: int,
    sleep_limit_ns: int,
    /,
) -> list[Row]: ...
def copy_stopped(
    threads: tuple[int, ...],
    mappings: Buffer,
    stack_limit: int,
    stop_limit_ns: int,
    sleep_limit_ns: int,
    /,
) -> list[Row]: ...
def trace_me() -> None: ...
def seize(thread: int, options: int, /) -> None: ...
def interrupt(thread: int, /) -> None: ...
def listen(thread: int, /) -> None: ...
def resume(thread: int, signal: int, /) -> None: ...
def detach(thread: int, signal: int, /) -> None: ...
def signal_information(thread: int, /) -> bytes: ...
def await_event(waits: bool, /) -> tuple[int, int]: ...

class FrozenProcess:
    def __new__(
        cls,
        task_folder: int,
        threads: tuple[int, ...] | None,
        mappings: Buffer,
        stack_limit: int,
        stop_limit_ns: int,
        sleep_limit_ns: int,
        /,
    ) -> Self: ...
    @property
    def threads(self) -> list[int]: ...
    @property
    def is_whole(self) -> bool: ...
    def read(self, address: int, size: int, /) -> bytes: ...
    def resume(self) -> list[Row]: ...
