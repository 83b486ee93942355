"""The names in one image: of a few addresses at once, of many from a table that is then made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from machtrace.errors import FormatError, MachtraceError, MemoryReadError
from machtrace.formats.macho.contents import FileContents, MemoryContents
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import Symbol

if TYPE_CHECKING:  # a first answer can do without numpy and what else these bring
    from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents
    from machtrace.symbols.table import SymbolTable

FEW = 8
"""Names that are read without a table of all."""


FileOrMemory: TypeAlias = "FileContents | MemoryContents | ElfFileContents | ElfMemoryContents"


class ImageSymbols:
    """Functions of an image, in a file or in memory."""

    __slots__ = ("_contents", "_failure", "_few", "_instead", "_others", "_replaced", "_table")

    def __init__(
        self,
        contents: FileOrMemory,
        *,
        others: Callable[[], Sequence[FileContents | ElfFileContents]] = tuple,
        instead: Callable[[], FileOrMemory | None] = lambda: None,
    ) -> None:
        """Read nothing yet.

        Args:
            contents: the image.
            others: finds files of the same image that may have more symbols: its dSYM, an
                unstripped twin.
            instead: gives the image from elsewhere, where ``contents`` are malformed.
        """
        self._contents = contents
        self._others = others
        self._instead = instead
        self._few = FEW
        self._table: SymbolTable | None = None
        self._failure: MachtraceError | None = None
        self._replaced: tuple[MachtraceError, ...] = ()

    @property
    def table(self) -> SymbolTable:
        """All of them; made when it is first asked for.

        Raises:
            FormatError: a part is malformed, and no other part gave a name.
            MemoryReadError: the same of one in memory that cannot be read.
        """
        if self._failure is not None:
            raise self._failure
        if self._table is None:
            try:
                self._table = self._made()
            except MachtraceError as error:
                self._failure = error
                raise
        return self._table

    def _made(self) -> SymbolTable:
        others = self._others()
        try:
            return _table(self._contents, others)
        except (FormatError, MemoryReadError) as error:
            instead = self._instead()
            if instead is None:
                raise
            self._replaced = (error,)
            return _table(instead, others)

    def find(self, offset: ImageOffset) -> Symbol | None:
        """The function that holds ``offset``, with or without a name; None where there is none.

        Raises:
            FormatError, MemoryReadError: see :attr:`table`.
        """
        contents = self._contents
        if self._table is None and self._few and isinstance(contents, FileContents):
            from machtrace.symbols.macho_first_symbol import first_symbol

            self._few -= 1
            found = first_symbol(contents, offset)
            if found is not None:
                return found
        return self.table.find(offset)

    @property
    def is_indexed(self) -> bool:
        """Whether :attr:`table` was made."""
        return self._table is not None

    @property
    def problems(self) -> tuple[MachtraceError, ...]:
        """What is malformed in it, as far as it was read.

        What is not there is no fault: a dSYM's load commands speak of tables that only the binary
        has, and of an image in memory not all need be captured.
        """
        if self._failure is not None:
            found: tuple[MachtraceError, ...] = (*self._replaced, self._failure)
        else:
            found = (*self._replaced, *(() if self._table is None else self._table.problems))
        return tuple(one for one in found if not isinstance(one, MemoryReadError))


def _table(contents: FileOrMemory, others: Sequence[FileContents | ElfFileContents]) -> SymbolTable:
    if isinstance(contents, FileContents | MemoryContents):
        from machtrace.symbols.macho.table import macho_symbol_table

        twins = [one for one in others if isinstance(one, FileContents)]
        return macho_symbol_table(contents, twins)
    from machtrace.formats.elf.contents import ElfFileContents
    from machtrace.symbols.elf import elf_symbol_table

    return elf_symbol_table(contents, [one for one in others if isinstance(one, ElfFileContents)])
