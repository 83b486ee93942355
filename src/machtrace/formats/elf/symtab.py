"""The symbol tables, as columns (gABI, chapter 4, "Symbol Table": ``Elf32_Sym``, ``Elf64_Sym``).

There may be hundreds of thousands of symbols, of which a few are looked up. So rows remain in the
file's bytes, kinds are computed for all at once, and a name is decoded on demand. Without section
headers ``.dynsym`` is located as the loader does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.errors import ElfError
from machtrace.formats.elf.contents import (
    ElfContents,
    read_symbol_name,
    read_symbol_section,
    without_version,
)
from machtrace.formats.elf.dynamic import dynamic_symbol_tables
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import (
    SHT_DYNSYM,
    SHT_SYMTAB,
    ElfLayout,
)
from machtrace.model.arch import Arch

Mask: TypeAlias = npt.NDArray[np.bool_]
"""One bool per symbol."""

_SHN_UNDEF, _SHN_LORESERVE, _SHN_XINDEX = 0, 0xFF00, 0xFFFF
_STB_LOCAL = 0
_STT_NOTYPE, _STT_FUNC, _STT_GNU_IFUNC = 0, 2, 10
_TYPE_BITS = 0xF
_BIND_SHIFT = 4
_MAX_NAME_LENGTH = 1 << 16
_SHARED_NAMES = 16
"""The factor of the string table's size beyond which names overlap on purpose."""


def symbol_dtype(layout: ElfLayout) -> np.dtype[np.void]:
    """Return ``Elf64_Sym`` or ``Elf32_Sym`` as a structured type with the same field names."""
    order = layout.byte_order
    kinds = {
        "st_name": f"{order}u4",
        "st_info": "u1",
        "st_other": "u1",
        "st_shndx": f"{order}u2",
        "st_value": f"{order}u{layout.pointer_size}",
        "st_size": f"{order}u{layout.pointer_size}",
    }
    names = ["st_name", "st_info", "st_other", "st_shndx", "st_value", "st_size"]
    if not layout.is_64:
        names = ["st_name", "st_value", "st_size", "st_info", "st_other", "st_shndx"]
    return np.dtype([(name, kinds[name]) for name in names])


class SymbolRows:
    """All entries of a symbol table, in order; none are left out."""

    def __init__(
        self, rows: npt.NDArray[np.void], strings: memoryview, image: ElfImage, source: str
    ) -> None:
        self.rows = rows
        """Rows of :func:`symbol_dtype`, in the file's byte order."""
        self._strings = strings
        self._image = image
        self._source = source

    def __len__(self) -> int:
        return len(self.rows)

    # --- columns ---

    @property
    def addresses(self) -> npt.NDArray[np.uint64]:
        """``st_value`` as an :data:`Svma`, without the bit that marks Thumb functions."""
        values = self.rows["st_value"].astype(np.uint64)
        if self._image.arch is Arch.ARM:
            values[self._has_type(_STT_FUNC)] &= ~np.uint64(1)
        return values

    @property
    def sizes(self) -> npt.NDArray[np.uint64]:
        """``st_size``, in bytes; 0 is unknown."""
        return self.rows["st_size"].astype(np.uint64)

    @property
    def section_indices(self) -> npt.NDArray[np.uint16]:
        """``st_shndx``: an index into :attr:`ElfImage.sections`, or a special value."""
        return self.rows["st_shndx"].astype(np.uint16)

    # --- kinds ---

    @property
    def is_defined(self) -> Mask:
        """Whether it has an address in this image: neither undefined, nor absolute, nor common."""
        index = self.section_indices
        mask: Mask = (index != _SHN_UNDEF) & ((index < _SHN_LORESERVE) | (index == _SHN_XINDEX))
        return mask

    @property
    def is_global(self) -> Mask:
        """Whether its binding is global or weak: the preferred name of several at one address."""
        mask: Mask = (self.rows["st_info"] >> _BIND_SHIFT) != _STB_LOCAL
        return mask

    @property
    def is_thumb(self) -> Mask:
        """Whether it is a Thumb function; False on other architectures."""
        if self._image.arch is not Arch.ARM:
            return np.zeros(len(self), np.bool_)
        mask: Mask = self._has_type(_STT_FUNC) & ((self.rows["st_value"] & 1) != 0)
        return mask

    @property
    def is_indirect(self) -> Mask:
        """Whether it names a resolver: code that returns the address of a function."""
        return self._has_type(_STT_GNU_IFUNC)

    @property
    def is_function(self) -> Mask:
        """Whether it names instructions.

        These are functions, resolvers of indirect functions, and labels without a type in
        executable sections, as assembly has them. Excluded are labels that mark alternations of
        instructions and data (``$x``, ``$d``), local labels and ``annobin``'s marks (``.…``), and
        the end of a section (``etext``).
        """
        typed = self._has_type(_STT_FUNC) | self._has_type(_STT_GNU_IFUNC)
        labels = np.flatnonzero(self._has_type(_STT_NOTYPE) & self.is_defined)
        first = self._first_bytes(labels)
        labels = labels[(first != 0) & (first != ord("$")) & (first != ord("."))]
        mask: Mask = typed & self.is_defined
        mask[labels[self._is_executable(labels)]] = True
        mask &= self.rows["st_value"] != 0
        return mask

    def _has_type(self, kind: int) -> Mask:
        mask: Mask = (self.rows["st_info"] & _TYPE_BITS) == kind
        return mask

    def _is_executable(self, rows: npt.NDArray[np.intp]) -> Mask:
        """Return whether each of ``rows`` is in an executable section, else segment."""
        addresses = self.addresses[rows]
        sections = self._image.sections
        ranges = [(s.address, s.end) for s in (sections or self._image.segments) if s.is_executable]
        if not ranges:
            return np.zeros(len(rows), np.bool_)
        ranges.sort()
        starts = np.array([start for start, _ in ranges], np.uint64)
        ends = np.array([end for _, end in ranges], np.uint64)
        index = starts.searchsorted(addresses, side="right").astype(np.int64) - 1
        mask: Mask = (index >= 0) & (addresses < ends[np.maximum(index, 0)])
        return mask

    def _first_bytes(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
        """Return the first byte of each name; 0 for none."""
        strings = np.frombuffer(self._strings, np.uint8)
        at = self.rows["st_name"][rows].astype(np.int64)
        inside = at < len(strings)
        first = np.zeros(len(rows), np.uint8)
        first[inside] = strings[at[inside]]
        return first

    # --- names ---

    def name_bytes(self, row: int) -> bytes:
        """Return a symbol's name as stored, at most 64 KiB; empty without one."""
        return read_symbol_name(self._strings, int(self.rows["st_name"][row]))

    def name(self, row: int) -> str:
        r"""Return a symbol's name without its version; empty if it has none.

        Linkers write versions into ``.symtab`` as ``name@@VERSION`` and ``name@VERSION``. Bytes
        that are no UTF-8 become ``\x..``, so that distinct names remain distinct.
        """
        return without_version(self.name_bytes(row))

    def names(self, rows: Iterable[int] | None = None) -> list[str]:
        """Return the names of many symbols (None: of all), in the order of ``rows``.

        Raises:
            ElfError: together they are many times as long as their table, which only a hostile file
                has.
        """
        chosen = self.rows["st_name"]
        if rows is not None:
            chosen = chosen[np.fromiter(rows, np.intp)]
        strings = bytes(self._strings) + b"\0"
        room = _SHARED_NAMES * len(strings)
        names: dict[int, str] = {0: ""}
        for at in np.unique(chosen).tolist():
            if not 0 < at < len(strings):
                names[at] = ""
                continue
            end = min(strings.find(b"\0", at), at + _MAX_NAME_LENGTH)
            room -= end - at
            if room < 0:
                raise ElfError("the names of symbols overlap", source=self._source, offset=at)
            names[at] = without_version(strings[at:end])
        return [names[at] for at in chosen.tolist()]


def parse_symbols(contents: ElfContents) -> SymbolRows:
    """Return ``.symtab``, all symbols; empty if stripped, and for an image in memory.

    Raises:
        ElfError: the table or its strings are not in the file.
    """
    return _of_section(contents, SHT_SYMTAB) or _empty(contents)


def parse_dynamic_symbols(contents: ElfContents) -> SymbolRows:
    """Return ``.dynsym``, the symbols that other images can link to; empty without it.

    Raises:
        ElfError: the table or its strings are not in the file.
        MemoryReadError: they are in memory that cannot be read.
    """
    rows = _of_section(contents, SHT_DYNSYM)
    if rows is not None:
        return rows
    if contents.image.sections:
        return _empty(contents)
    dtype = symbol_dtype(contents.image.layout)
    tables = dynamic_symbol_tables(contents, dtype.itemsize)
    if tables is None:
        return _empty(contents)
    table, strings = tables
    return SymbolRows(np.frombuffer(table, dtype), strings, contents.image, contents.source)


def _empty(contents: ElfContents) -> SymbolRows:
    rows = np.zeros(0, symbol_dtype(contents.image.layout))
    return SymbolRows(rows, memoryview(b""), contents.image, contents.source)


def _of_section(contents: ElfContents, kind: int) -> SymbolRows | None:
    found = read_symbol_section(contents, kind)
    if found is None:
        return None
    table, strings = found
    dtype = symbol_dtype(contents.image.layout)
    return SymbolRows(np.frombuffer(table, dtype), strings, contents.image, contents.source)
