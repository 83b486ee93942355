"""What the files of one image say of addresses in it: functions, source lines, inlined calls.

For few addresses or for many; each source location and each function is put into words once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.elf.contents import ElfFileContents
from machtrace.errors import MachtraceError
from machtrace.macho.contents import FileContents
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import FrameStatus, InlineFrame, Symbol
from machtrace.symbolicate.image_source import ImageFiles
from machtrace.symbolicate.symbol_table import SymbolTable

if TYPE_CHECKING:  # imported where there is debug information
    from machtrace.symbolicate.debug_index import DebugIndex
    from machtrace.symbolicate.debug_map_index import DebugMapIndex

Offsets = npt.NDArray[np.uint64]


class Named(NamedTuple):
    """What is known of many offsets: one entry an offset in each column."""

    functions: npt.NDArray[np.int32]
    """The function that holds it, for :meth:`ImageNames.function`; -1 where there is none."""
    locations: npt.NDArray[np.int32]
    """The source location, of which equal ones have equal calls; -1 where none is known."""


class ImageNames:
    """Names of one image, from its binary, its dSYM and its debug information."""

    __slots__ = ("_debug", "_functions", "_table", "_twin", "problems")

    def __init__(self, files: ImageFiles) -> None:
        """Read the symbol tables; debug information is opened, or an index of it made."""
        self.problems: list[MachtraceError] = []
        """Why names or lines may be missing."""
        binary = files.binary
        symbols = None if files.symbols is None else files.symbols.contents
        self._table = None if isinstance(binary, FrameStatus) else self._read(binary)
        self._twin = None if symbols is None else self._read(symbols)
        if self._table is None:
            self._table, self._twin = self._twin, None
        self._debug = self._index(files)
        self._functions: dict[int, Symbol | None] = {}

    def find(self, offsets: Offsets) -> Named:
        """The function and the source location of each offset."""
        none = np.full(len(offsets), -1, np.int32)
        functions = none if self._table is None else self._table.ids(offsets)
        locations = none
        if self._debug is not None:
            try:
                locations = self._debug.columns(offsets).location
            except MachtraceError as error:
                self.problems.append(error)
                self._debug = None
        return Named(functions, locations)

    def function(self, number: int) -> Symbol | None:
        """The function whose number is ``number``, named by the best of the image's files."""
        if number not in self._functions:
            self._functions[number] = self._function(number)
        return self._functions[number]

    def calls(self, offset: ImageOffset) -> tuple[InlineFrame, ...]:
        """The calls at ``offset`` as the debug information has them, innermost first."""
        return () if self._debug is None else self._debug.inlined(offset)

    def _function(self, number: int) -> Symbol | None:
        if self._table is None or number < 0:
            return None
        own = self._table.symbol(number)
        if own.is_named or self._twin is None:
            return own
        other = self._twin.find(own.offset)
        # What begins before it is another function, which the twin does not bound.
        return other if other is not None and other.offset == own.offset else own

    def _read(self, contents: FileContents | ElfFileContents) -> SymbolTable | None:
        try:
            if isinstance(contents, FileContents):
                from machtrace.symbolicate.macho_symbols import macho_symbol_table

                return macho_symbol_table(contents)
            from machtrace.symbolicate.elf_symbols import elf_symbol_table

            return elf_symbol_table(contents)
        except MachtraceError as error:
            self.problems.append(error)
            return None

    def _index(self, files: ImageFiles) -> DebugIndex | DebugMapIndex | None:
        lines = files.lines
        if isinstance(lines, FrameStatus):
            return None
        from machtrace.symbolicate.debug_file import DebugFile
        from machtrace.symbolicate.index_cache import IndexCache
        from machtrace.symbolicate.index_folder import IndexFolder, default_index_folder

        try:
            if isinstance(lines, DebugFile):
                return IndexCache.of_user().index(lines)
            from machtrace.symbolicate.debug_map_building import ObjectIndices
            from machtrace.symbolicate.debug_map_index import DebugMapIndex

            return DebugMapIndex(lines, ObjectIndices(IndexFolder(default_index_folder())))
        except MachtraceError as error:
            self.problems.append(error)
            return None
