# Other processes of macOS, by their task ports. See darwin_task/module.c and darwin_task/task.h.

from typing import TypeAlias

# Parent; user ids: effective, real, saved; flags, status, name, path; CPU type and subtype, 0 if
# unknown; code signing flags, 0 if unknown.
ProcessRow: TypeAlias = tuple[int, tuple[int, int, int], int, int, bytes, bytes, int, int, int]

# User, integrity (-1 unknown), whether it may debug, whether it is translated, bits of an address
# (0 unknown), CPU type.
RightsRow: TypeAlias = tuple[int, int, bool, bool, int, int]

# Port (0: none), its kind; errno of task_read_for_pid, results of task_for_pid, task_name_for_pid.
PortRow: TypeAlias = tuple[int, int, int, int, int]

# Id, handle, where its queue's address is, run state (0 unknown), suspend count, name; user and
# system time in nanoseconds.
ThreadRow: TypeAlias = tuple[int, int, int, int, int, bytes, int]

# Id, outcome, result, 0, registers, stacks; when the stop was requested, when stopped and
# resumed; the queue.
CopyRow: TypeAlias = tuple[
    int, int, int, int, bytes, tuple[tuple[int, bytes], ...], int, int, int, int
]

def process(pid: int, /) -> tuple[int, ProcessRow | None]: ...
def rights() -> RightsRow: ...
def open_task(pid: int, /) -> PortRow: ...
def close_task(port: int, /) -> None: ...
def find_region(port: int, address: int, /) -> tuple[int, int, int, int, int]: ...
def read_memory(port: int, ranges: list[tuple[int, int]], /) -> list[bytes]: ...
def dyld_info(port: int, /) -> tuple[int, int, int, int]: ...
def label_offset() -> tuple[int, int] | None: ...
def list_threads(port: int, /) -> tuple[int, list[ThreadRow]]: ...
def copy_threads(
    port: int, threads: tuple[int, ...], stack_limit: int, address_mask: int, together: bool, /
) -> tuple[int, int, list[CopyRow]]: ...
