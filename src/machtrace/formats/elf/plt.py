"""Stubs of the procedure linkage table, named after the functions that they call.

A stub jumps to where a slot of the global offset table points, and a relocation says which symbol
the loader puts there. So the jump is decoded and not its place counted: linkers differ in what
they put first and in how long a stub is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.formats.elf import plt_arm64
from machtrace.formats.elf import plt_x86
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.dynamic import read_dynamic
from machtrace.formats.elf.relocations import read_relocations, slot_symbols
from machtrace.formats.elf.segments import Section
from machtrace.formats.elf.structs import DT_PLTGOT
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols
from machtrace.errors import MemoryReadError
from machtrace.model.arch import Arch

_SECTIONS = (".plt", ".plt.sec", ".plt.got", ".iplt")
_STUB_SIZE = 16
_X86 = frozenset({Arch.X86_64, Arch.I386})


@dataclass(frozen=True, slots=True, eq=False)
class StubRows:
    """Stubs by address; one entry a stub in each column."""

    addresses: npt.NDArray[np.uint64]
    """Svmas, ascending, each once."""
    sizes: npt.NDArray[np.uint64]
    """In bytes."""
    symbols: npt.NDArray[np.int64]
    """Row of ``.dynsym`` that each calls."""
    names: SymbolRows
    """``.dynsym``."""

    def __len__(self) -> int:
        return len(self.addresses)

    def name(self, row: int) -> str:
        """The name of the function that a stub calls, as the symbol table has it."""
        return self.names.name(int(self.symbols[row]))


_Found = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.int64]]
"""Addresses, sizes and symbols."""


def parse_stubs(contents: ElfFileContents) -> StubRows:
    """The stubs of an x86-64, i386 or arm64 image; none of others, or without section headers.

    What comes before the first stub of a section, for the loader's use, is no stub.

    Raises:
        ElfError: a table is not in the file.
    """
    names = parse_dynamic_symbols(contents)
    finder = _Finder(contents)
    parts = [
        part
        for section in contents.image.sections
        if section.name in _SECTIONS and section.is_executable and section.has_bytes
        for part in finder.find(section)
    ]
    if not parts:
        nothing = np.zeros(0, np.uint64)
        return StubRows(nothing, nothing, np.zeros(0, np.int64), names)
    addresses, sizes, symbols = (np.concatenate(column) for column in zip(*parts, strict=True))
    kept = (symbols > 0) & (symbols < len(names))
    addresses, first = np.unique(addresses[kept], return_index=True)
    return StubRows(addresses, sizes[kept][first], symbols[kept][first], names)


class _Finder:
    """Finds the stubs of one image's sections."""

    def __init__(self, contents: ElfFileContents) -> None:
        self._contents = contents
        self._arch = contents.image.arch
        self._slots = slot_symbols(contents)

    def find(self, section: Section) -> list[_Found]:
        data = np.frombuffer(self._contents.read_section(section), np.uint8)
        if self._arch in _X86:
            return [self._x86_jumps(section, data), self._x86_pushes(section, data)]
        if self._arch.is_arm64 and self._contents.image.layout.little_endian:
            return [self._arm64(section, data)]
        return []

    def _x86_jumps(self, section: Section, data: npt.NDArray[np.uint8]) -> _Found:
        if self._arch is Arch.X86_64:
            at, slots = plt_x86.jumps_of_x86_64(data, section.address)
        else:
            at, slots = plt_x86.jumps_of_i386(data, self._global_offset_table())
        return _whole_stubs(section, at, self._slots.symbols_at(slots))

    def _x86_pushes(self, section: Section, data: npt.NDArray[np.uint8]) -> _Found:
        wide = self._arch is Arch.X86_64
        _, symbols = read_relocations(self._contents, ".rela.plt" if wide else ".rel.plt")
        at, numbers = plt_x86.pushes(data, section.entry_size or _STUB_SIZE)
        # x86-64 pushes the index of a relocation, i386 its offset.
        index = numbers // (1 if wide else 8)
        inside = (index >= 0) & (index < len(symbols))
        return _whole_stubs(section, at[inside], symbols[index[inside]])

    def _arm64(self, section: Section, data: npt.NDArray[np.uint8]) -> _Found:
        at, sizes, slots = plt_arm64.stubs(data, section.address)
        starts = at.astype(np.uint64) + np.uint64(section.address)
        return starts, sizes, self._slots.symbols_at(slots)

    def _global_offset_table(self) -> int:
        try:
            return read_dynamic(self._contents, self._contents.image).get(DT_PLTGOT, 0)
        except MemoryReadError:
            return 0


def _whole_stubs(
    section: Section, at: npt.NDArray[np.intp], symbols: npt.NDArray[np.int64]
) -> _Found:
    """The stubs that hold the instructions at ``at``.

    All of one section are of one size, but for a last one that the section cuts short.
    """
    size = section.entry_size or _STUB_SIZE
    starts = (at // size * size).astype(np.uint64) + np.uint64(section.address)
    return starts, np.minimum(np.uint64(size), np.uint64(section.end) - starts), symbols
