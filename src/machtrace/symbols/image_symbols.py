"""The names in one image, from its files, else from the memory of a process that has it loaded.

A few addresses are looked up in the tables as they lie in the file; for many an index is built.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from machtrace.errors import FormatError, MachtraceError, MemoryReadError
from machtrace.formats.object_file import LoadedObject, ObjectContents, ObjectFile, in_memory
from machtrace.images.resolver import ImageResolver
from machtrace.model.address import ImageOffset
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import FrameStatus, Symbol

if TYPE_CHECKING:
    from machtrace.symbols.table import SymbolTable

FEW, FEW_WITHOUT_NUMPY = 8, 64
"""Lookups that scan the file's tables; importing numpy takes as long as some more of them."""


class ImageSymbols:
    """Functions of an image, in a file or in memory."""

    def __init__(
        self,
        contents: ObjectContents,
        *,
        others: Callable[[], Sequence[ObjectFile]] = tuple,
        instead: Callable[[], ObjectContents | None] = lambda: None,
    ) -> None:
        """Read nothing yet.

        Args:
            contents: the image.
            others: finds files of the same image that may have more symbols: its dSYM, an
                unstripped twin.
            instead: returns the image from elsewhere, if ``contents`` are malformed.
        """
        self._contents = contents
        self._others = others
        self._instead = instead
        self._scans = 0
        self._table: SymbolTable | None = None
        self._failure: MachtraceError | None = None
        self._replaced: tuple[MachtraceError, ...] = ()

    @property
    def table(self) -> SymbolTable:
        """All functions; the table is built at the first access.

        Raises:
            FormatError: a part is malformed, and no other part gave a name.
            MemoryReadError: the same of an image in memory that cannot be read.
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
        """Return the function that holds ``offset``, with or without a name; None if none does.

        Raises:
            FormatError, MemoryReadError: see :attr:`table`.
        """
        contents = self._contents
        limit = FEW if "numpy" in sys.modules else FEW_WITHOUT_NUMPY
        if self._table is None and self._scans < limit and not contents.is_loaded:
            self._scans += 1
            symbol = first_symbol(contents, offset, self._others)
            if symbol is not None:
                return symbol
        return self.table.find(offset)

    @property
    def is_indexed(self) -> bool:
        """Whether :attr:`table` was built."""
        return self._table is not None

    @property
    def problems(self) -> tuple[MachtraceError, ...]:
        """Errors of malformed parts, as far as they were read.

        A missing part is no error: a dSYM's load commands describe tables that only the binary has,
        and of an image in memory not all need be captured.
        """
        errors = list(self._replaced)
        if self._failure is not None:
            errors.append(self._failure)
        elif self._table is not None:
            errors.extend(self._table.problems)
        return tuple(error for error in errors if not isinstance(error, MemoryReadError))


def _table(contents: ObjectContents, others: Sequence[ObjectFile]) -> SymbolTable:
    if contents.format is ImageFormat.MACHO:
        from machtrace.symbols.macho.table import macho_symbol_table

        twins = [other for other in others if other.format is ImageFormat.MACHO]
        return macho_symbol_table(contents, twins)
    from machtrace.symbols.elf import elf_symbol_table

    elf_twins = [other for other in others if other.format is ImageFormat.ELF]
    return elf_symbol_table(contents, elf_twins)


def open_image(
    files: ImageResolver, image: BinaryImage, memory: MemoryReader | None
) -> ImageSymbols | FrameStatus:
    """Open the names of an image, or return why there are none. Raises nothing.

    Args:
        files: finds its files.
        image: the image.
        memory: the memory of the process that has it loaded, if any.
    """
    binary = files.binary(image)
    if not isinstance(binary, FrameStatus):
        source = binary.source
        return ImageSymbols(
            binary,
            others=lambda: files.files(image).twins(source),
            instead=lambda: _loaded(image, memory),
        )
    others, loaded = files.files(image).twins(None), _loaded(image, memory)
    if loaded is not None:
        return ImageSymbols(loaded, others=lambda: others)
    if others:
        return ImageSymbols(others[0], others=lambda: others[1:])
    # The status of a file that was found is more specific than that memory was not captured.
    return binary


def _loaded(image: BinaryImage, memory: MemoryReader | None) -> LoadedObject | None:
    loaded = None if memory is None else in_memory(image, memory)
    return None if isinstance(loaded, FrameStatus) else loaded


def first_symbol(
    contents: ObjectFile,
    offset: ImageOffset,
    twins: Callable[[], Sequence[ObjectFile]] = tuple,
) -> Symbol | None:
    """Return the function that holds ``offset``; None if the whole table has to be built.

    Sorting half a million symbols takes longer than everything else of a first answer, numpy's
    import included. So the first lookups scan the tables as they lie in the file. They return what
    :class:`~machtrace.symbols.table.SymbolTable` returns, or None if an image has no table of
    function starts, no symbol for the function, tables that disagree, or anything malformed.

    Args:
        contents: the image's file.
        offset: where.
        twins: finds files of the image that may have more symbols.
    """
    try:
        from machtrace._native import _ranges
    except ImportError:
        return None
    try:
        if contents.format is ImageFormat.MACHO:
            from machtrace.symbols.macho.first_symbol import first_macho_symbol

            return first_macho_symbol(_ranges, contents, offset)
        from machtrace.symbols.elf_first_symbol import first_elf_symbol

        return first_elf_symbol(_ranges, contents, offset, twins)
    except MachtraceError:  # building the table reports it
        return None
