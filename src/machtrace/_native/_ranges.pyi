# Which range holds an offset, and one name from a file's tables. See ranges/module.c.

from typing import final

from typing_extensions import Buffer

# Columns are C-contiguous and aligned: 64-bit starts and offsets, 32-bit values and answers.
@final
class RangeIndex:
    def __new__(cls, starts: Buffer, values: Buffer | None = None) -> RangeIndex: ...
    @property
    def nbytes(self) -> int: ...
    def find(self, offsets: Buffer, answers: Buffer, back: int, /) -> None: ...

# 8 bytes each, in native byte order; None if the table is malformed.
def function_starts(table: Buffer, /) -> bytearray | None: ...
def function_holding(
    table: Buffer, base: int, is_arm: bool, address: int, /
) -> tuple[int, int] | None: ...
def symbols_at(
    table: Buffer,
    strings: Buffer,
    is_64: bool,
    sections: Buffer,
    base: int,
    low: int,
    high: int,
    address: int,
    /,
) -> tuple[int, int, list[int]] | None: ...

# The last starts up to the address (0 if none) of all functions and of those with a size, the next
# ones (high if none), and the last end of those that start up to the address.
def elf_symbols_around(
    table: Buffer, strings: Buffer, is_64: bool, low: int, high: int, address: int, /
) -> tuple[int, int, int, int, int]: ...
def elf_symbols_starting(
    table: Buffer, strings: Buffer, is_64: bool, low: int, high: int, start: int, /
) -> list[int]: ...
