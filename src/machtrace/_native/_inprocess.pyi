# Stop, copy, resume: threads of this process. See inprocess/module.c, inprocess/stacks.c and
# inprocess/core/capture.h.

from collections.abc import Callable
from types import CodeType, FrameType
from typing import TypeAlias

from typing_extensions import Buffer

from machtrace._native._walk import RuleTable

# Id, outcome, error, uninterruptible, registers, stacks; when the stop was requested,
# when stopped and resumed; its pthread_self().
Row: TypeAlias = tuple[int, int, int, int, bytes, tuple[tuple[int, bytes], ...], int, int, int, int]

# Code, line or 0, and whether the frame began a run of the interpreter's loop: 1, 0, or -1 unknown.
PythonRow: TypeAlias = tuple[CodeType, int, int]

def copy_threads(
    threads: tuple[int, ...],
    ranges: Buffer,
    stack_limit: int,
    answer_limit_ns: int,
    sleep_limit_ns: int,
    signal: int,
    together: bool,
    current_frames: Callable[[], dict[int, FrameType]] | None,
    /,
) -> tuple[list[Row], dict[int, list[PythonRow]]]: ...
def copy_here(ranges: Buffer, stack_limit: int, /) -> Row: ...
def list_threads() -> tuple[int, ...]: ...
def read_file(path: str, /) -> bytes: ...
def read_memory(address: int, size: int, /) -> bytes: ...
def own_image() -> tuple[int, int]: ...

# Load address, slide, size of __TEXT, CPU type and subtype, UUID, path.
ImageRow: TypeAlias = tuple[int, int, int, int, int, bytes | None, bytes]

def own_images() -> list[ImageRow]: ...  # on Darwin only
def image_changes() -> int: ...
def signal_in_use() -> int: ...

class Series:
    def __init__(
        self,
        interval_ns: int,
        stack_limit: int,
        answer_limit_ns: int,
        sleep_limit_ns: int,
        signal: int,
        together: bool,
        room: int,
    ) -> None: ...
    def take(self, most: int, /) -> bytes: ...
    # Captures that were stored, late, lost and refused; and the last errno of those.
    def counts(self) -> tuple[int, int, int, int, int]: ...
    def stop(self) -> None: ...

class OwnStacks:
    def __init__(self, rules: RuleTable, mask: int, code: int, image_changes: int) -> None: ...
    def __len__(self) -> int: ...
    # Where nothing is remembered: depth and addresses, 8 bytes each. Where a rule is missing: twice
    # its address, and one if the frame was interrupted. None: a matter for the exact walker.
    def find(
        self, head: int, outer: int, variant: int, /
    ) -> tuple[str | int, ...] | list[int | bytes] | int | None: ...
    def remember(
        self, depth: int, addresses: Buffer, variant: int, value: tuple[str | int, ...], /
    ) -> None: ...
    def is_current(self) -> bool: ...
