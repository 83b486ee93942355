"""Filling ``LC_FUNCTION_STARTS`` of an executable, which the linker of ziglang leaves empty.

Apple's linkers write it into all that they make, and lldb looks at no instructions of a program
where it is empty. Source: ``mach-o/loader.h``, ``struct linkedit_data_command``; the table is
ULEB128 differences, from the header on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import pack_into, unpack_from

from machtrace.formats.macho.command_numbers import LC_FUNCTION_STARTS, LC_SEGMENT_64
from machtrace.formats.macho.contents import FileContents

_HEADER_SIZE, _COUNT_OFFSET = 32, 16
"""Of ``mach_header_64``, and of ``ncmds`` in it."""
_DATA_OFFSET = 8
"""Of ``dataoff`` and ``datasize`` in ``linkedit_data_command``."""
_MEMORY_SIZE, _FILE_OFFSET, _FILE_SIZE = 32, 40, 48
"""In ``segment_command_64``."""
_PAGE = 0x4000


def with_function_starts(data: bytes, starts: Iterable[int]) -> bytes:
    """``data``, a 64-bit executable, with the table of functions that start at ``starts`` (Svmas).

    A program that has such a table with anything in it is left as it is.

    Raises:
        AssertionError: it has no command for one.
    """
    contents = FileContents(data, "program")
    present = contents.image.function_starts
    if present is not None and present.size:
        return data
    assert present is not None, "no LC_FUNCTION_STARTS"  # noqa: S101
    table = _table(contents.image.header_svma, sorted(set(starts)))
    changed = bytearray(data + bytes(-len(data) % 8))
    place = len(changed)
    changed += table
    for at, kind in _commands(data):
        if kind == LC_FUNCTION_STARTS:
            pack_into("<II", changed, at + _DATA_OFFSET, place, len(table))
        elif kind == LC_SEGMENT_64 and data[at + 8 : at + 24].rstrip(b"\0") == b"__LINKEDIT":
            (start,) = unpack_from("<Q", data, at + _FILE_OFFSET)
            size = len(changed) - start
            pack_into("<Q", changed, at + _FILE_SIZE, size)
            pack_into("<Q", changed, at + _MEMORY_SIZE, -(-size // _PAGE) * _PAGE)
    return bytes(changed)


def _commands(data: bytes) -> Iterator[tuple[int, int]]:
    """File offset and kind of each load command."""
    (count,) = unpack_from("<I", data, _COUNT_OFFSET)
    at = _HEADER_SIZE
    for _ in range(count):
        kind, size = unpack_from("<II", data, at)
        yield at, kind
        at += size


def _table(header: int, starts: list[int]) -> bytes:
    table = bytearray()
    before = header
    for start in starts:
        delta, before = start - before, start
        while delta > 0x7F:  # noqa: PLR2004 - unsigned LEB128
            table.append(delta & 0x7F | 0x80)
            delta >>= 7
        table.append(delta)
    table.append(0)
    return bytes(table) + bytes(-len(table) % 8)
