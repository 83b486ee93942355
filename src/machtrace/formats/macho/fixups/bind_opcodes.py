"""Pointers to other images: the bind opcodes of LC_DYLD_INFO.

Source: ``mach-o/loader.h``, ``BIND_OPCODE_*``. For early arm64e they also start chains in which
rebases and binds alternate (``BIND_OPCODE_THREADED``), laid out as ``DYLD_CHAINED_PTR_ARM64E``.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError, MemoryReadError
from machtrace.formats.cursor import ByteCursor
from machtrace.formats.macho.columns import BindRows, RebaseRows
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.chained import walk_chains
from machtrace.formats.macho.fixups.chained_formats import POINTER_FORMATS, ChainBases
from machtrace.formats.macho.fixups.rebase_opcodes import PointerRun, places_of
from machtrace.formats.macho.segments import Segment
from machtrace.formats.macho.structs import DyldInfoCommand
from machtrace.model.address import FileOffset

_OPCODE = 0xF0
_IMMEDIATE = 0x0F
_TYPE_POINTER = 1
_ARM64E = POINTER_FORMATS[1]


class _Bind(IntEnum):
    """``BIND_OPCODE_*``."""

    DONE = 0x00
    SET_DYLIB_ORDINAL_IMM = 0x10
    SET_DYLIB_ORDINAL_ULEB = 0x20
    SET_DYLIB_SPECIAL_IMM = 0x30
    SET_SYMBOL_TRAILING_FLAGS_IMM = 0x40
    SET_TYPE_IMM = 0x50
    SET_ADDEND_SLEB = 0x60
    SET_SEGMENT_AND_OFFSET_ULEB = 0x70
    ADD_ADDR_ULEB = 0x80
    DO_BIND = 0x90
    DO_BIND_ADD_ADDR_ULEB = 0xA0
    DO_BIND_ADD_ADDR_IMM_SCALED = 0xB0
    DO_BIND_ULEB_TIMES_SKIPPING_ULEB = 0xC0
    THREADED = 0xD0
    """Chains of binds and rebases of early arm64e; the immediate is a subopcode."""


_THREADED_SET_BIND_ORDINAL_TABLE_SIZE_ULEB = 0x00
_THREADED_APPLY = 0x01


class BindTable(NamedTuple):
    """The location of bind opcodes in a file."""

    offset: FileOffset
    size: int
    """In bytes."""
    is_lazy: bool
    """Whether each bind ends with DONE, since each is run separately."""

    @classmethod
    def all_of(cls, info: DyldInfoCommand) -> Iterator[BindTable]:
        """Return the tables of LC_DYLD_INFO that are not empty."""
        for offset, size, is_lazy in (
            (info.bind_off, info.bind_size, False),
            (info.weak_bind_off, info.weak_bind_size, False),
            (info.lazy_bind_off, info.lazy_bind_size, True),
        ):
            if size:
                yield cls(FileOffset(offset), size, is_lazy)


def imported_symbols(contents: MachOFileContents) -> frozenset[str]:
    """Return an image's binds: eager, weak and lazy together.

    Raises:
        MachOError: the opcodes are malformed, or bind an address outside the file.
        MemoryReadError: a table is beyond the end of the file.
    """
    reader = BindReader(contents)
    info = contents.image.dyld_info
    for table in () if info is None else BindTable.all_of(info):
        reader.run(table)
    return frozenset(reader.names)


class BindReader:
    """Runs tables of bind opcodes and collects their binds.

    Binds before the error in a malformed table are retained.
    """

    def __init__(self, contents: MachOFileContents) -> None:
        self._contents = contents
        self._pointer = 8 if contents.image.header.is_64 else 4
        self._most = len(contents.data) // self._pointer
        self._runs: list[PointerRun] = []
        self._run_symbols: list[int] = []
        self._run_addends: list[int] = []
        self.names: dict[str, int] = {}
        """The names in tables so far, numbered in their order."""
        self._chain_rebases: list[RebaseRows] = []
        self._chain_binds: list[BindRows] = []
        self._chained = 0

    def rows(self) -> BindRows:
        """Return all binds so far; of several at one address, the first."""
        lengths = np.array([run.length for run in self._runs], np.int64)
        return BindRows.sorted(
            np.concatenate([places_of(self._runs), *(rows.places for rows in self._chain_binds)]),
            np.concatenate(
                [
                    np.repeat(np.array(self._run_symbols, np.int32), lengths),
                    *(rows.symbols for rows in self._chain_binds),
                ]
            ),
            np.concatenate(
                [
                    np.repeat(np.array(self._run_addends, np.int64), lengths),
                    *(rows.addends for rows in self._chain_binds),
                ]
            ),
            tuple(self.names),
        )

    def rebases(self) -> RebaseRows | None:
        """Return the rebases in chains; None without a chain."""
        if not self._chain_rebases:
            return None
        return RebaseRows.sorted(
            np.concatenate([rows.places for rows in self._chain_rebases]),
            np.concatenate([rows.targets for rows in self._chain_rebases]),
        )

    def run(  # noqa: C901, PLR0912, PLR0915 (an interpreter: one arm an opcode)
        self, where: BindTable
    ) -> None:
        """Run a table.

        Raises:
            MachOError: the opcodes are malformed, or bind an address outside the file.
            MemoryReadError: the table is beyond the end of the file.
        """
        table = bytes(self._contents.read_file(where.offset, where.size))
        cursor = ByteCursor(table, source=f"{self._contents.source} bind opcodes", error=MachOError)
        segments, pointer = self._contents.image.segments, self._pointer
        segment: Segment | None = None
        place, symbol, addend = 0, -1, 0
        ordinals: list[tuple[int, int]] | None = None

        def bind(count: int, skip: int) -> None:
            nonlocal place
            if ordinals is not None:  # the binds after a chain refer to names by ordinal
                ordinals.append((symbol, addend))
                return
            stride = pointer + skip
            room = 0 if segment is None else min(segment.filesize, segment.vmsize)
            if segment is None or place + (count - 1) * stride + pointer > room:
                raise cursor.fail("a pointer to bind lies outside its segment's bytes")
            self._most -= count
            if self._most < 0:
                raise cursor.fail("more pointers to bind than the file can hold")
            if count and symbol >= 0:
                run = PointerRun(segment.vmaddr + place, count, stride if count > 1 else 0)
                self._runs.append(run)
                self._run_symbols.append(symbol)
                self._run_addends.append(addend)
            place = (place + count * stride) % (1 << 64)

        size = len(table)
        while cursor.offset < size:
            byte = table[cursor.offset]
            cursor.offset += 1
            immediate = byte & _IMMEDIATE
            match byte & _OPCODE:
                case _Bind.SET_SYMBOL_TRAILING_FLAGS_IMM:
                    end = table.find(0, cursor.offset)
                    if end < 0:
                        raise cursor.fail("a symbol's name has no end")
                    name = table[cursor.offset : end].decode("utf-8", "backslashreplace")
                    cursor.offset = end + 1
                    symbol = self.names.setdefault(name, len(self.names))
                case _Bind.DONE:
                    if not where.is_lazy:
                        break
                case _Bind.SET_DYLIB_ORDINAL_IMM | _Bind.SET_DYLIB_SPECIAL_IMM:
                    pass
                case _Bind.SET_DYLIB_ORDINAL_ULEB:
                    cursor.uleb128()
                case _Bind.SET_TYPE_IMM:
                    if immediate != _TYPE_POINTER:
                        raise cursor.fail(f"binds of the type {immediate} are not followed")
                case _Bind.SET_ADDEND_SLEB:
                    addend = cursor.sleb128()
                case _Bind.SET_SEGMENT_AND_OFFSET_ULEB:
                    if immediate >= len(segments):
                        raise cursor.fail(f"there is no segment {immediate}")
                    segment, place = segments[immediate], cursor.uleb128()
                case _Bind.ADD_ADDR_ULEB:
                    place = (place + cursor.uleb128()) % (1 << 64)
                case _Bind.DO_BIND:
                    bind(1, 0)
                case _Bind.DO_BIND_ADD_ADDR_ULEB:
                    bind(1, cursor.uleb128())
                case _Bind.DO_BIND_ADD_ADDR_IMM_SCALED:
                    bind(1, immediate * pointer)
                case _Bind.DO_BIND_ULEB_TIMES_SKIPPING_ULEB:
                    count = cursor.uleb128()
                    bind(count, cursor.uleb128())
                case _Bind.THREADED if immediate == _THREADED_SET_BIND_ORDINAL_TABLE_SIZE_ULEB:
                    cursor.uleb128()
                    ordinals = []
                case _Bind.THREADED if immediate == _THREADED_APPLY:
                    if segment is None or ordinals is None:
                        raise cursor.fail("a chain starts before its segment and imports are named")
                    self._follow(cursor, segment, place, ordinals)
                case opcode:
                    raise cursor.fail(f"there is no bind opcode {opcode:#x}")

    def _follow(
        self, cursor: ByteCursor, segment: Segment, place: int, ordinals: list[tuple[int, int]]
    ) -> None:
        try:
            data = self._contents.read_file(segment.fileoff, min(segment.filesize, segment.vmsize))
        except MemoryReadError:
            raise cursor.fail("a chain starts outside the file") from None
        if place > len(data):
            raise cursor.fail("a chain starts outside its segment")
        start, end = np.array([place], np.int64), np.array([len(data)], np.int64)
        offsets, raw, is_whole = walk_chains(data, start, end, _ARM64E)
        self._chained += len(offsets)
        if not is_whole or self._chained > self._most:
            raise cursor.fail("a chain of pointers leaves its segment, or meets another")
        decoded = _ARM64E.decode(raw, ChainBases(self._contents.image.header_svma, (), None, 0))
        places = offsets.astype(np.uint64) + np.uint64(segment.vmaddr)
        self._chain_rebases.append(
            RebaseRows(places[decoded.is_rebase], decoded.targets[decoded.is_rebase])
        )
        table: npt.NDArray[np.int64] = np.array(ordinals, np.int64).reshape(-1, 2)
        known = decoded.is_bind & (decoded.ordinals < np.uint64(len(table)))
        rows = table[decoded.ordinals[known].astype(np.int64)]
        named = rows[:, 0] >= 0
        self._chain_binds.append(
            BindRows(
                places[known][named],
                rows[named, 0].astype(np.int32),
                rows[named, 1],
                (),
            )
        )
