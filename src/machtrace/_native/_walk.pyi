# The loop of the stack walk. See walk/objects.h and walk/stack_walk.h.

from collections.abc import Callable
from typing import TypeAlias

from typing_extensions import Buffer

from machtrace.model.stack import FrameAddress

# Number, location, other register, bytes in memory, offset.
Recovery: TypeAlias = tuple[int, int, int, int, int]

# Why a walk paused.
ROOT: int
NO_RULE: int
DECLINED: int

# What became of a frame.
PUSHED: int
PASSED: int
TOO_DEEP: int
DOES_NOT_FIT: int

# Places of a recovery.
AT_CFA: int
CFA_PLUS: int
IN_REGISTER: int
LOST: int

class RuleTable:
    def __init__(
        self,
        *,
        sp: int,
        fp: int,
        pointer_size: int,
        register_count: int,
        code_bits: int,
        preserved: bytes,
    ) -> None: ...
    def __len__(self) -> int: ...
    def define(
        self,
        cfa_register: int,
        cfa_offset: int,
        return_address: Recovery,
        registers: tuple[Recovery, ...],
        code: int,
        must_rise: bool,
        /,
    ) -> int: ...
    def add(self, lookup: int, interrupted: bool, rule: int, /) -> None: ...
    def clear(self) -> None: ...

class StackWalker:
    def __init__(
        self, rules: RuleTable, mask: int, make: Callable[[int, int], FrameAddress]
    ) -> None: ...
    def __len__(self) -> int: ...
    def start(
        self,
        pc: int,
        values: tuple[int | None, ...],
        code: int,
        stack_start: int,
        stack: Buffer,
        head: int,
        outer: int,
        /,
    ) -> int: ...
    def resume(self) -> int: ...
    def push(
        self,
        pc: int,
        values: tuple[int | None, ...],
        code: int,
        interrupted: bool,
        is_regular: bool,
        /,
    ) -> int: ...
    def part(self) -> int: ...
    def place(self) -> tuple[int, bool]: ...
    def values(self) -> tuple[int | None, ...]: ...
    def finish(self) -> int: ...
    def frames(self, first: int, end: int, /) -> tuple[bytes, bytes]: ...
    def objects(self, first: int, end: int, /) -> tuple[FrameAddress, ...]: ...
    def append(self, address: int, code: int, /) -> None: ...
    def drop(self, end: int, /) -> None: ...
