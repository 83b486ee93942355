"""The names in one image: of a few addresses at once, of many from a table that is then made.

Opening an image for its names: from its files, else from the memory of who has it loaded.

One name from a Mach-O file without an index of all, for processes that want a few.

To sort half a million symbols takes longer than everything else that a first answer takes, numpy's
import included. So the first lookups read the tables as they lie in the file. They give what
:class:`~machtrace.symbols.table.SymbolTable` gives, or nothing: where there is no
table of function starts, or no symbol for the function, or no local symbol at all, as in stripped
images, or anything is amiss, that is asked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from machtrace.errors import FormatError, MachtraceError, MemoryReadError
from machtrace.formats.macho.contents import FileContents, read_table
from machtrace.formats.macho.structs import SymtabCommand
from machtrace.formats.object_file import LoadedObject, ObjectContents, ObjectFile, in_memory
from machtrace.images.resolver import ImageResolver
from machtrace.model.address import ImageOffset
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import Certainty, FrameStatus, Symbol
from machtrace.symbols.macho.code_sections import Ranges, function_sections, holds_functions
from machtrace.symbols.names import LONGEST, Spelt, best_first, symbol_of

if TYPE_CHECKING:
    from machtrace.symbols.table import SymbolTable

FEW = 8
"""Names that are read without a table of all."""


class ImageSymbols:
    """Functions of an image, in a file or in memory."""

    __slots__ = ("_contents", "_failure", "_few", "_instead", "_others", "_replaced", "_table")

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
        is_early = self._table is None and self._few
        if is_early and contents.format is ImageFormat.MACHO and not contents.is_loaded:
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


def _table(contents: ObjectContents, others: Sequence[ObjectFile]) -> SymbolTable:
    if contents.format is ImageFormat.MACHO:
        from machtrace.symbols.macho.table import macho_symbol_table

        twins = [other for other in others if other.format is ImageFormat.MACHO]
        return macho_symbol_table(contents, twins)
    from machtrace.symbols.elf import elf_symbol_table

    return elf_symbol_table(contents, [one for one in others if one.format is ImageFormat.ELF])


def open_image(
    files: ImageResolver, image: BinaryImage, memory: MemoryReader | None
) -> ImageSymbols | FrameStatus:
    """The names of an image, or why they cannot be had. Raises nothing.

    Args:
        files: where files are looked for.
        image: what is wanted.
        memory: of the process that has it loaded, if any.
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
    # A file that would not do says more than memory that was not captured.
    return binary


def _loaded(image: BinaryImage, memory: MemoryReader | None) -> LoadedObject | None:
    found = None if memory is None else in_memory(image, memory)
    return None if isinstance(found, FrameStatus) else found


_MOST_SECTIONS = 255
"""Those that ``nlist.n_sect`` can count."""
_NLIST_SIZE, _NLIST_64_SIZE = 12, 16


def first_symbol(contents: FileContents, offset: ImageOffset) -> Symbol | None:
    """The function that holds ``offset``; None where the whole table has to be asked."""
    try:
        from machtrace._native import _ranges
    except ImportError:
        return None
    image = contents.image
    base, is_64, symtab = image.header_svma, image.header.is_64, image.symtab
    bounds = _bounds(contents, offset, _ranges.function_holding)
    if bounds is None or symtab is None or not image.header.little_endian:
        return None
    counted = bytes([0, *map(holds_functions, image.sections[:_MOST_SECTIONS])])
    size = symtab.nsyms * (_NLIST_64_SIZE if is_64 else _NLIST_SIZE)
    try:
        table = read_table(contents, symtab.symoff, size, "the symbol table")
        strings = read_table(contents, symtab.stroff, symtab.strsize, "the string table")
        found = _ranges.symbols_at(
            table,
            strings,
            is_64,
            counted.ljust(_MOST_SECTIONS + 1, b"\0"),
            base,
            base + bounds[0],
            base + bounds[1],
            base + offset,
        )
        if found is None:
            return None
        start, end, rows = found
        names: list[Spelt] = [
            (_name(contents, symtab, table, row), True, Certainty.EXACT) for row in rows
        ]
    except MachtraceError:
        return None
    best = best_first(names)
    return symbol_of(best, ImageOffset(start - base), end - start) if best else None


def _bounds(
    contents: FileContents,
    offset: ImageOffset,
    function_holding: Callable[[memoryview, int, bool, int], tuple[int, int] | None],
) -> tuple[int, int] | None:
    """The (start, end) of the function around ``offset``, as far as function starts tell."""
    image = contents.image
    place, arch = image.function_starts, image.header.arch
    section = _holder(function_sections(image), offset)
    if section is None or place is None or arch is None or not place.size:
        return None
    try:
        starts = read_table(contents, place.offset, place.size, "the table of function starts")
    except MachtraceError:
        return None
    function = function_holding(starts, 0, arch.is_arm, offset)
    if function is None or function[0] < section[0]:
        return None
    return function[0], min(function[1], section[1])


def _holder(sections: Ranges, offset: int) -> tuple[int, int] | None:
    index = bisect_right(sections, (offset, 1 << 64)) - 1
    if index < 0 or offset >= sections[index][1]:
        return None
    return sections[index]


def _name(contents: FileContents, symtab: SymtabCommand, table: memoryview, row: int) -> str:
    at = row * (_NLIST_64_SIZE if contents.image.header.is_64 else _NLIST_SIZE)
    n_strx = int.from_bytes(table[at : at + 4], "little")
    size = min(LONGEST, symtab.strsize - n_strx)
    if n_strx == 0 or size <= 0:
        return ""
    found = read_table(contents, symtab.stroff + n_strx, size, "the string table")
    return bytes(found).partition(b"\0")[0].decode("utf-8", "backslashreplace")
