"""The names in one image: of a few addresses at once, of many from a table that is then made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from machtrace.errors import MachtraceError
from machtrace.macho.contents import FileContents, MemoryContents
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import Symbol

if TYPE_CHECKING:  # both bring numpy, which a first answer can do without
    from machtrace.elf.contents import ElfFileContents, ElfMemoryContents
    from machtrace.symbolicate.symbol_table import SymbolTable

_FEW = 8
"""Names that are read without a table of all."""


class ImageSymbols:
    """Functions of an image, in a file or in memory."""

    __slots__ = ("_contents", "_few", "_table")

    def __init__(
        self, contents: FileContents | MemoryContents | ElfFileContents | ElfMemoryContents
    ) -> None:
        self._contents = contents
        self._few = _FEW
        self._table: SymbolTable | None = None

    @property
    def table(self) -> SymbolTable:
        """All of them; made when it is first asked for.

        Raises:
            FormatError: a part is malformed, and no other part gave a name.
            MemoryReadError: the same of one in memory that cannot be read.
        """
        if self._table is None:
            self._table = _table(self._contents)
        return self._table

    def find(self, offset: ImageOffset) -> Symbol | None:
        """The function that holds ``offset``, with or without a name; None where there is none.

        Raises:
            FormatError, MemoryReadError: see :attr:`table`.
        """
        if self._table is None and self._few and isinstance(self._contents, FileContents):
            from machtrace.symbolicate.macho_first_symbol import first_symbol

            self._few -= 1
            found = first_symbol(self._contents, offset)
            if found is not None:
                return found
        return self.table.find(offset)

    @property
    def problems(self) -> tuple[MachtraceError, ...]:
        """What could not be read of it, so far."""
        return () if self._table is None else self._table.problems


def _table(
    contents: FileContents | MemoryContents | ElfFileContents | ElfMemoryContents,
) -> SymbolTable:
    if isinstance(contents, FileContents | MemoryContents):
        from machtrace.symbolicate.macho_symbols import macho_symbol_table

        return macho_symbol_table(contents)
    from machtrace.symbolicate.elf_symbols import elf_symbol_table

    return elf_symbol_table(contents)
