"""The names in a Mach-O image, put together: the best first, each bounded by function starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from machtrace.errors import MachtraceError
from machtrace.macho.contents import MachOContents
from machtrace.macho.symtab import SymbolRows, parse_symbols
from machtrace.symbolicate.macho_code_sections import function_sections, named_sections
from machtrace.symbolicate.macho_exports import exported_functions
from machtrace.symbolicate.macho_function_starts import function_starts
from machtrace.symbolicate.macho_metadata import MetadataNames
from machtrace.symbolicate.macho_stub_names import stub_names
from machtrace.symbolicate.macho_symtab import symtab_functions, symtab_stubs
from machtrace.symbolicate.named_ranges import NamedRanges, Offsets
from machtrace.symbolicate.symbol_table import CodeBounds, SymbolTable

_LAST = np.uint64(2**64 - 1)


def macho_symbol_table(
    contents: MachOContents, others: Sequence[MachOContents] = ()
) -> SymbolTable:
    """The names in a Mach-O image, in a file or in memory.

    They are those of the symbol table and of the exports trie; what the metadata of runtimes says
    of functions that these leave without a name; and of stubs, what they call. A part that cannot
    be read is among the table's ``problems``.

    Args:
        contents: the image.
        others: files of the same image that may have more symbols: its dSYM, an unstripped twin.

    Raises:
        MachOError: a table is malformed, or points outside the image, and no other gave a name.
        MemoryReadError: the same of a table in memory that cannot be read.
    """
    return _Assembly(contents).table(others)


class _Assembly:
    """The parts of one table, and what was wrong with others."""

    def __init__(self, contents: MachOContents) -> None:
        self._contents = contents
        self._image = contents.image
        self._problems: list[MachtraceError] = []
        self._found: list[NamedRanges] = []
        functions = function_sections(self._image)
        self._starts, self._certain = function_starts(contents, functions, self._problems)

    def table(self, others: Sequence[MachOContents]) -> SymbolTable:
        symbols = self._symbols(self._contents)
        self._linked(symbols)
        for other in others:
            self._add(partial(self._twin, other))
        unnamed = self._unnamed()
        metadata = MetadataNames(self._contents, symbols, self._starts, unnamed)
        if len(unnamed) or not self._certain:
            for source in metadata.functions():
                self._add(partial(self._named_starts, source))
        self._stubs(symbols, metadata)
        if self._problems and not any(map(len, self._found)):
            raise self._problems[0]
        edges = np.array(named_sections(self._image), np.uint64).reshape(-1, 2)
        bounds = CodeBounds(
            section_starts=edges[:, 0],
            section_ends=edges[:, 1],
            function_starts=self._starts,
            has_all_starts=self._certain,
        )
        if metadata.problem is not None:
            self._problems.append(metadata.problem)
        return SymbolTable(tuple(self._found), bounds, tuple(self._problems))

    def _linked(self, symbols: SymbolRows | None) -> None:
        """The names that the linker wrote."""
        named = None
        if symbols is not None:
            named = self._add(lambda: symtab_functions(symbols, self._image, certain=self._certain))
        self._add(lambda: exported_functions(self._contents, named, certain=self._certain))

    def _stubs(self, symbols: SymbolRows | None, metadata: MetadataNames) -> None:
        """What calls other images."""
        named = None
        if symbols is not None:
            self._add(lambda: stub_names(self._contents, symbols))
            named = self._add(lambda: symtab_stubs(symbols, self._image))
        if named is None or not len(named):
            for source in metadata.stubs():
                self._add(source)

    def _add(self, source: Callable[[], NamedRanges]) -> NamedRanges | None:
        try:
            found = source()
        except MachtraceError as error:
            self._problems.append(error)
            return None
        self._found.append(found)
        return found

    def _twin(self, other: MachOContents) -> NamedRanges:
        """The functions of a file that is of the same image."""
        return symtab_functions(parse_symbols(other), other.image, certain=self._certain)

    def _symbols(self, contents: MachOContents) -> SymbolRows | None:
        try:
            return parse_symbols(contents)
        except MachtraceError as error:
            self._problems.append(error)
            return None

    def _unnamed(self) -> Offsets:
        """The functions that have no name so far."""
        named = np.concatenate([np.full(1, _LAST), *(source.starts for source in self._found)])
        named.sort()
        unnamed: Offsets = self._starts[named[named.searchsorted(self._starts)] != self._starts]
        return unnamed

    def _named_starts(self, source: Callable[[], NamedRanges]) -> NamedRanges:
        """What a source says of whole functions: metadata knows of no other places."""
        names, starts = source(), self._starts
        if not self._certain or not len(starts):
            return names
        at = np.minimum(starts.searchsorted(names.starts), len(starts) - 1)
        return names.only(np.flatnonzero(starts[at] == names.starts))
