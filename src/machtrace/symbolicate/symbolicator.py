"""Names for the addresses of a backtrace."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

from machtrace.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.errors import FormatError, MemoryReadError
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage
from machtrace.model.memory import MemoryReader
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import AddressChain, Backtrace, FrameAddress
from machtrace.model.symbol import (
    CallStack,
    Frame,
    FrameChain,
    FrameStatus,
    InlineFrame,
    Symbol,
)
from machtrace.symbolicate.debug_information import DebugInformation
from machtrace.symbolicate.elf_symbols import elf_symbol_table
from machtrace.symbolicate.image_source import Found, ImageSource, in_memory
from machtrace.symbolicate.macho_symbols import macho_symbol_table
from machtrace.symbolicate.symbol_table import SymbolTable

_Answer = tuple[FrameStatus, BinaryImage | None, Symbol | None, tuple[InlineFrame, ...]]
"""What an address is; the calls there end with the function that they are inlined into."""

_REMEMBERED = 1 << 16
"""Addresses of one snapshot whose answers are kept; at the limit all are forgotten."""


class Symbolicator:
    """Names any number of backtraces; opens each image once.

    An image's symbols are read from the files in ``search``, else from the file where the target
    had it, else from the snapshot's memory. A file whose UUID is not the image's is never used.
    """

    __slots__ = ("_debug", "_files", "_found", "_here", "_snapshot", "_tables")

    def __init__(self, search: Sequence[str | Path] = (), *, lines: bool = True) -> None:
        """Open nothing yet.

        Args:
            search: files and folders to look for images and debug files in.
            lines: whether source lines and inlined calls are wanted. Where an image has debug
                information, that is read as a whole once, which can take seconds, and kept.
        """
        self._files = ImageSource.of(search)
        self._debug = DebugInformation(self._files) if lines else None
        self._tables: dict[tuple[Hashable, Arch], SymbolTable] = {}
        self._here: dict[Avma, SymbolTable | FrameStatus] = {}
        self._snapshot: Snapshot | None = None
        self._found: dict[tuple[Avma, bool], _Answer] = {}

    def symbolicate(self, backtrace: Backtrace) -> CallStack:
        """``backtrace`` with names: as many frames as it has addresses."""
        return self._stack(backtrace, named=True)

    def locate(self, backtrace: Backtrace) -> CallStack:
        """``backtrace`` with images and without names: no file is opened."""
        return self._stack(backtrace, named=False)

    def _stack(self, backtrace: Backtrace, *, named: bool) -> CallStack:
        def frames(chain: AddressChain) -> tuple[Frame, ...]:
            return tuple(self.frame(one, snapshot, named=named) for one in chain.addresses)

        snapshot, rest = backtrace.snapshot, backtrace.physical_remainder
        return CallStack(
            thread=backtrace.thread.info,
            frames=frames(backtrace),
            stop=backtrace.stop,
            gap=backtrace.gap,
            stopped_for_ns=backtrace.thread.stopped_for_ns,
            physical_remainder=None
            if rest is None
            else FrameChain(frames=frames(rest), stop=rest.stop, gap=rest.gap),
        )

    def frame(self, address: FrameAddress, snapshot: Snapshot, *, named: bool = True) -> Frame:
        """An address of a snapshot's process with its image and, unless not wanted, its name."""
        if self._snapshot is not snapshot or len(self._found) >= _REMEMBERED:
            self._snapshot, self._found, self._here = snapshot, {}, {}
        key = (address.lookup, named)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._find(address.lookup, snapshot, named=named)
        status, image, symbol, calls = found
        return Frame(
            address=address,
            status=status,
            image=image,
            symbol=symbol,
            location=calls[-1].location if calls else None,
            inlined=calls[:-1],
        )

    def _find(self, lookup: Avma, snapshot: Snapshot, *, named: bool) -> _Answer:
        image = snapshot.images.find(lookup)
        if image is None:
            return FrameStatus.UNKNOWN_IMAGE, None, None, ()
        if not named:
            return FrameStatus.NOT_ASKED, image, None, ()
        status, symbol = self._name(image, image.offset_of(lookup), snapshot.memory)
        if self._debug is None:
            return status, image, symbol, ()
        offset = image.offset_of(lookup)
        calls = self._debug.frames(image, offset)
        if calls and (symbol is None or not symbol.is_named):
            better = self._debug.symbol(image, offset, calls[-1])
            if better is not None:
                status, symbol = FrameStatus.SYMBOLICATED, better
        return status, image, symbol, calls

    def _name(
        self, image: BinaryImage, offset: ImageOffset, memory: MemoryReader
    ) -> tuple[FrameStatus, Symbol | None]:
        table = self._table(image, memory)
        if isinstance(table, FrameStatus):
            return table, None
        symbol = table.find(offset)
        if symbol is None or not symbol.is_named:
            malformed = any(isinstance(problem, FormatError) for problem in table.problems)
            status = FrameStatus.MALFORMED_FILE if malformed else FrameStatus.MISSING_SYMBOL
            return status, symbol
        return FrameStatus.SYMBOLICATED, symbol

    def _table(self, image: BinaryImage, memory: MemoryReader) -> SymbolTable | FrameStatus:
        found = self._tables.get((image.uuid, image.arch)) or self._here.get(image.load_address)
        if found is None:
            found = self._open(image, memory)
            if image.uuid is None or isinstance(found, FrameStatus):
                self._here[image.load_address] = found
            else:
                self._tables[image.uuid, image.arch] = found
        return found

    def _open(self, image: BinaryImage, memory: MemoryReader) -> SymbolTable | FrameStatus:
        first = _table_of(self._files.file(image))
        if not isinstance(first, FrameStatus):
            return first
        second = _table_of(in_memory(image, memory))
        # A file that would not do says more than memory that was not captured.
        return first if isinstance(second, FrameStatus) else second


def _table_of(found: Found) -> SymbolTable | FrameStatus:
    if isinstance(found, FrameStatus):
        return found
    try:
        if isinstance(found, ElfFileContents | ElfMemoryContents):
            return elf_symbol_table(found)
        return macho_symbol_table(found)
    except (FormatError, MemoryReadError):
        return FrameStatus.MALFORMED_FILE
