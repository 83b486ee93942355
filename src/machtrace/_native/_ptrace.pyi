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
def copy_traced(
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
def unseize(thread: int, stop_limit_ns: int, /) -> int: ...
def signal_information(thread: int, /) -> bytes: ...
def await_event(waits: bool, /) -> tuple[int, int]: ...

# When the next poll is due; polls, late ones, the longest delay; when all were idle; schedstat.
IdleResult: TypeAlias = tuple[int, int, int, int, int, tuple[bytes, ...]]

def wait_idle(
    threads: tuple[tuple[int, int, bytes, bytes], ...],
    clock: int,
    cpu_ns: int,
    most_cpu_ns: int,
    interval_ns: int,
    check_ns: int,
    until_ns: int,
    due_ns: int,
    wake: int,
    is_traced: bool,
    /,
) -> IdleResult: ...

# Address; of the interpreter's lock: address (0 if unknown), holder's thread state, 1 if locked.
Interpreter: TypeAlias = tuple[int, int, int, int]

# Interpreter, thread state, native id, pthread_self(), error, its address, links, frames.
PythonThread: TypeAlias = tuple[int, int, int, int, int, int, bytes, bytes]

# Serial, first line, instructions; bytes a character and characters of the name, then of the file;
# table of lines.
Code: TypeAlias = tuple[int, int, int, int, bytes, int, bytes, bytes]

class PythonReader:
    def __new__(cls, layout: Buffer, /) -> Self: ...
    def copied(
        self,
    ) -> tuple[list[Interpreter], list[PythonThread], list[Code], bool, int, int]: ...

class FrozenProcess:
    def __new__(
        cls,
        task_folder: int,
        threads: tuple[int, ...] | None,
        mappings: Buffer,
        stack_limit: int,
        stop_limit_ns: int,
        sleep_limit_ns: int,
        reader: PythonReader | None = None,
        is_brief: bool = False,
        is_traced: bool = False,
        /,
    ) -> Self: ...
    @property
    def threads(self) -> list[int]: ...
    @property
    def is_whole(self) -> bool: ...
    def read(self, address: int, size: int, /) -> bytes: ...
    def resume(self) -> list[Row]: ...
