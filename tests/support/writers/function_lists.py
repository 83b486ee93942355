"""Filling ``LC_FUNCTION_STARTS`` of an executable, which the linker of ziglang leaves empty.

Apple's linkers write it into all images, and lldb reads no instructions of a program
where it is empty. Source: ``mach-o/loader.h``, ``struct linkedit_data_command``; the table is
ULEB128 differences, from the header on.

The exports trie, as linkers write it (``mach-o/loader.h``: ``dyld_info_command``).

Opening a Mach-O file with a list of functions of our choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from os.path import commonprefix
from struct import pack_into, unpack_from

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.image import LinkeditData
from machtrace.formats.macho.load_commands import LC_FUNCTION_STARTS, LC_SEGMENT_64
from machtrace.model.address import FileOffset

_HEADER_SIZE, _COUNT_OFFSET = 32, 16
"""Size of ``mach_header_64``, and offset of its ``ncmds``."""
_DATA_OFFSET = 8
"""Offset of ``dataoff`` and ``datasize`` in ``linkedit_data_command``."""
_MEMORY_SIZE, _FILE_OFFSET, _FILE_SIZE = 32, 40, 48
"""In ``segment_command_64``."""
_PAGE = 0x4000


def with_function_starts(data: bytes, starts: Iterable[int]) -> bytes:
    """``data``, a 64-bit executable, with the table of functions that start at ``starts`` (Svmas).

    A program that has such a table with anything in it is left as it is.

    Raises:
        AssertionError: it has no command for one.
    """
    contents = MachOFileContents(data, "program")
    present = contents.image.function_starts
    if present is not None and present.size:
        return data
    assert present is not None, "no LC_FUNCTION_STARTS"
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
    deltas = (start - before for before, start in pairwise([header, *starts]))
    table = b"".join(map(uleb, deltas)) + b"\0"
    return table + bytes(-len(table) % 8)


_OFFSET_SIZE = 3
"""Bytes of each distance to a node: LEB128 may have more than it needs."""


def write_exports_trie(symbols: Mapping[str, int]) -> bytes:
    """Write a trie of names with their offsets from the header; empty without any."""
    return bytes(_Writer(symbols).nodes) if symbols else b""


class _Writer:
    """Appends nodes; a node follows its parent, which gets its offset."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self.nodes = bytearray()
        self._add(dict(symbols))

    def _add(self, symbols: dict[str, int]) -> int:
        at = len(self.nodes)
        offset = symbols.pop("", None)
        terminal = b"" if offset is None else b"\0" + uleb(offset)  # a regular symbol
        self.nodes += uleb(len(terminal)) + terminal
        edges = _edges(symbols)
        self.nodes.append(len(edges))
        places: list[tuple[int, dict[str, int]]] = []
        for edge, names in edges.items():
            self.nodes += edge.encode() + b"\0"
            places.append((len(self.nodes), {n.removeprefix(edge): v for n, v in names.items()}))
            self.nodes += bytes(_OFFSET_SIZE)
        for place, names in places:
            child = self._add(names)
            self.nodes[place : place + _OFFSET_SIZE] = _padded(child)
        return at


def _edges(symbols: dict[str, int]) -> dict[str, dict[str, int]]:
    """Group names by the common prefix of those with the same first letter."""
    by_letter: dict[str, dict[str, int]] = {}
    for name in sorted(symbols):
        by_letter.setdefault(name[0], {})[name] = symbols[name]
    # Names, not paths: the prefix ends at any letter.
    return {commonprefix(list(names)): names for names in by_letter.values()}  # noqa: RUF071


def uleb(value: int) -> bytes:
    """Encode an unsigned LEB128."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _padded(value: int) -> bytes:
    parts = [value >> 7 * i & 0x7F for i in range(_OFFSET_SIZE)]
    return bytes([part | 0x80 for part in parts[:-1]] + parts[-1:])


def with_listed_functions(data: bytes, starts: Iterable[int]) -> MachOFileContents:
    """Replace the starts (ImageOffset) in the file's LC_FUNCTION_STARTS.

    Behind ``data`` there is the table; load commands stay as they are.
    """
    deltas = (after - before for before, after in pairwise([0, *sorted(set(starts))]))
    table = b"".join(map(uleb, deltas)) + b"\0"
    contents = MachOFileContents(data + table, "with listed functions")
    place = LinkeditData(FileOffset(len(data)), len(table))
    contents.image = replace(contents.image, function_starts=place)
    return contents
