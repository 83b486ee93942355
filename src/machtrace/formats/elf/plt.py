"""Stubs of the procedure linkage table, named after the functions that they call.

A stub jumps through a slot of the global offset table, and a relocation names the symbol that the
loader puts there (gABI, chapter 4, "Relocation"). So the jump is decoded: linkers differ in what
they put first and in the size of a stub. Sources of their forms: *ELF for the Arm 64-bit
Architecture*, "Program Linkage Table"; x86-64 psABI and i386 psABI, section 5.2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.errors import ElfError, MemoryReadError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.dynamic import read_dynamic
from machtrace.formats.elf.headers import Section
from machtrace.formats.elf.structs import DT_PLTGOT, SHT_DYNSYM, SHT_REL, SHT_RELA, ElfLayout
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols
from machtrace.frozen import dataclass
from machtrace.model.arch import Arch

_ADRP_X16, _ADRP_MASK = 0x90000010, 0x9F00001F
"""``adrp x16, page``, and the mask of its opcode."""
_LDR_X17_X16, _LDR_MASK = 0xF9400211, 0xFFC003FF
"""``ldr x17, [x16, #offset]``."""
_BTI_C = 0xD503245F
_MAX_STUB_LENGTH = 24
"""In bytes: ``bti c``, four instructions and a ``nop``, or an ``autia1716`` among them."""
_PAGE_BITS = 12
_INSTRUCTION = 4


def stubs(
    data: npt.NDArray[np.uint8], address: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return offset and size of each stub in the code ``data`` at ``address``, and its slot's Svma.

    The first may be the loader's, whose slot belongs to no symbol.
    """
    # A stub has an ADRP directly before a load through the same register.
    words = np.frombuffer(data[: len(data) // _INSTRUCTION * _INSTRUCTION], "<u4").astype(np.int64)
    is_page, is_load = (words & _ADRP_MASK) == _ADRP_X16, (words & _LDR_MASK) == _LDR_X17_X16
    at = np.flatnonzero(is_page[:-1] & is_load[1:])
    adrp, ldr = words[at], words[at + 1]
    pages = ((adrp >> 5 & 0x7FFFF) << 2) | (adrp >> 29 & 0b11)
    pages = np.where(pages >= 1 << 20, pages - (1 << 21), pages)
    here = at.astype(np.uint64) * np.uint64(_INSTRUCTION) + np.uint64(address)
    bits = np.uint64(_PAGE_BITS)
    slots = ((here >> bits) + pages.astype(np.uint64)) << bits
    slots += (8 * (ldr >> 10 & 0xFFF)).astype(np.uint64)
    starts = at - ((at > 0) & (words[np.maximum(at - 1, 0)] == _BTI_C))
    starts = starts * _INSTRUCTION
    ends = np.append(starts, len(data))[1:]
    sizes = np.minimum(ends - starts, _MAX_STUB_LENGTH)
    return starts, sizes.astype(np.uint64), slots


_JUMP = 0xFF
_ABSOLUTE, _FROM_EBX = 0x25, 0xA3
"""``jmp *slot`` (relative to rip on x86-64) and ``jmp *offset(%ebx)``."""
_JUMP_SIZE = 6

_ENDBR = (0xF3, 0x0F, 0x1E)
"""``endbr64`` and ``endbr32`` except for the last byte."""
_PUSH_AT, _PUSH, _PUSH_SIZE = 4, 0x68, 5

_Indices = npt.NDArray[np.intp]
_Bytes = npt.NDArray[np.uint8]


def jumps_of_x86_64(data: _Bytes, address: int) -> tuple[_Indices, npt.NDArray[np.uint64]]:
    """Return the offset of each jump in the code ``data`` at ``address``, and its slot's Svma."""
    at = _jumps(data, _ABSOLUTE)
    after = at.astype(np.uint64) + np.uint64(address) + np.uint64(_JUMP_SIZE)
    return at, after + _numbers(data, at + 2).astype(np.uint64)


def jumps_of_i386(data: _Bytes, table: int) -> tuple[_Indices, npt.NDArray[np.uint64]]:
    """Return the same; ``table``: the Svma of the global offset table, which ebx holds."""
    absolute, relative = _jumps(data, _ABSOLUTE), _jumps(data, _FROM_EBX)
    slots = np.concatenate(
        [_numbers(data, absolute + 2), _numbers(data, relative + 2) + (table & 0xFFFFFFFF)]
    )
    return np.concatenate([absolute, relative]), (slots & 0xFFFFFFFF).astype(np.uint64)


def pushes(data: _Bytes, stub_size: int) -> tuple[_Indices, npt.NDArray[np.int64]]:
    """Return the offset of each stub that pushes a number for the loader, and the number.

    Stubs in ``.plt`` do no more if ``.plt.sec`` has the jumps.
    """
    end = len(data) - _PUSH_AT - _PUSH_SIZE + 1
    at = np.arange(0, max(0, end), stub_size)
    for position, byte in (*enumerate(_ENDBR), (_PUSH_AT, _PUSH)):
        at = at[data[at + position] == byte]
    return at, _numbers(data, at + _PUSH_AT + 1)


def _jumps(data: _Bytes, kind: int) -> _Indices:
    heads = data[: max(0, len(data) - _JUMP_SIZE + 1)]
    at: _Indices = np.flatnonzero(heads == _JUMP)
    is_kind: npt.NDArray[np.bool_] = data[at + 1] == kind
    return at[is_kind]


def _numbers(data: _Bytes, at: _Indices) -> npt.NDArray[np.int64]:
    bytes_at = at[:, None] + np.arange(4)
    return np.ascontiguousarray(data[bytes_at]).view("<i4")[:, 0].astype(np.int64)


_RELATIVE = (8, 1027)
"""``R_X86_64_RELATIVE`` and ``R_AARCH64_RELATIVE``, with symbol 0."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotSymbols:
    """Slots of the global offset table, and their symbols, by address."""

    slots: npt.NDArray[np.uint64]
    """Svmas, ascending."""
    symbols: npt.NDArray[np.int64]
    """Rows of ``.dynsym``, never 0."""

    def symbols_at(self, slots: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the symbol of each of ``slots``; 0 for none."""
        if not len(self.slots):
            return np.zeros(len(slots), np.int64)
        index = self.slots.searchsorted(slots).clip(max=len(self.slots) - 1)
        return np.where(self.slots[index] == slots, self.symbols[index], 0)


def read_relocations(
    contents: ElfFileContents, name: str
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Return address and symbol of each entry of a relocation section, in order; empty without it.

    Raises:
        ElfError: the section is not in the file, or its entries have another size.
    """
    rows = _relocation_rows(contents, name)
    if rows is None:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    symbols = rows["r_info"] >> (32 if contents.image.layout.is_64 else 8)
    return rows["r_offset"].astype(np.uint64), symbols.astype(np.int64)


def relative_words(contents: ElfFileContents) -> dict[int, int]:
    """Return the stated addresses that ``.rela.dyn`` puts into words, without a symbol.

    Raises:
        ElfError: as :func:`read_relocations`.
    """
    rows = _relocation_rows(contents, ".rela.dyn")
    if (
        rows is None
        or not contents.image.layout.is_64
        or "r_addend" not in (rows.dtype.names or ())
    ):
        return {}
    own = rows[np.isin(rows["r_info"], _RELATIVE)]
    return dict(zip(own["r_offset"].tolist(), own["r_addend"].tolist(), strict=True))


def _relocation_rows(contents: ElfFileContents, name: str) -> npt.NDArray[np.void] | None:
    """Return the entries of a relocation section with dynamic symbols."""
    image = contents.image
    section = image.section(name)
    if section is None or section.type not in (SHT_REL, SHT_RELA):
        return None
    if section.link >= len(image.sections) or image.sections[section.link].type != SHT_DYNSYM:
        return None  # a static program's have no symbols
    dtype = _dtype(image.layout, has_addend=section.type == SHT_RELA)
    if section.entry_size != dtype.itemsize:
        raise ElfError(
            f"section {name} has entries of {section.entry_size} bytes, not {dtype.itemsize}",
            source=contents.source,
            offset=section.offset,
        )
    data = contents.read_section(section)
    return np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)


def slot_symbols(contents: ElfFileContents) -> SlotSymbols:
    """Return the symbols that ``.rel[a].plt`` and ``.rel[a].dyn`` put into slots.

    Raises:
        ElfError: as :func:`read_relocations`.
    """
    parts = [
        read_relocations(contents, name)
        for name in (".rela.plt", ".rel.plt", ".rela.dyn", ".rel.dyn")
    ]
    slots = np.concatenate([slots for slots, _ in parts])
    symbols = np.concatenate([symbols for _, symbols in parts])
    slots, symbols = slots[symbols > 0], symbols[symbols > 0]
    order = np.argsort(slots, kind="stable")
    return SlotSymbols(slots[order], symbols[order])


def _dtype(layout: ElfLayout, *, has_addend: bool) -> np.dtype[np.void]:
    order, size = layout.byte_order, layout.pointer_size
    fields = [("r_offset", f"{order}u{size}"), ("r_info", f"{order}u{size}")]
    if has_addend:
        fields.append(("r_addend", f"{order}i{size}"))
    return np.dtype(fields)


_SECTIONS = (".plt", ".plt.sec", ".plt.got", ".iplt")
_STUB_SIZE = 16
_X86 = frozenset({Arch.X86_64, Arch.I386})


@dataclass(frozen=True, slots=True, eq=False)
class StubRows:
    """Stubs by address; one entry per stub in each column."""

    addresses: npt.NDArray[np.uint64]
    """Svmas, ascending and unique."""
    sizes: npt.NDArray[np.uint64]
    """In bytes."""
    symbols: npt.NDArray[np.int64]
    """The row of ``.dynsym`` that each calls."""
    names: SymbolRows
    """``.dynsym``."""

    def __len__(self) -> int:
        return len(self.addresses)

    def name(self, row: int) -> str:
        """Return the name of the function that a stub calls, as in the symbol table."""
        return self.names.name(int(self.symbols[row]))


_Found = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.int64]]
"""Addresses, sizes and symbols."""


def parse_stubs(contents: ElfFileContents) -> StubRows:
    """Return the stubs of an x86-64, i386 or arm64 image with section headers.

    Empty for other images. The loader's code before the first stub of a section is no stub.

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
    is_named = (symbols > 0) & (symbols < len(names))
    addresses, first = np.unique(addresses[is_named], return_index=True)
    return StubRows(addresses, sizes[is_named][first], symbols[is_named][first], names)


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
            at, slots = jumps_of_x86_64(data, section.address)
        else:
            at, slots = jumps_of_i386(data, self._global_offset_table())
        return _whole_stubs(section, at, self._slots.symbols_at(slots))

    def _x86_pushes(self, section: Section, data: npt.NDArray[np.uint8]) -> _Found:
        wide = self._arch is Arch.X86_64
        _, symbols = read_relocations(self._contents, ".rela.plt" if wide else ".rel.plt")
        at, numbers = pushes(data, section.entry_size or _STUB_SIZE)
        # x86-64 pushes the index of a relocation, i386 its offset.
        index = numbers // (1 if wide else 8)
        inside = (index >= 0) & (index < len(symbols))
        return _whole_stubs(section, at[inside], symbols[index[inside]])

    def _arm64(self, section: Section, data: npt.NDArray[np.uint8]) -> _Found:
        at, sizes, slots = stubs(data, section.address)
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
    """Return the stubs that hold the instructions at ``at``.

    All stubs of a section have one size, except for a last one that the section truncates.
    """
    size = section.entry_size or _STUB_SIZE
    starts = (at // size * size).astype(np.uint64) + np.uint64(section.address)
    return starts, np.minimum(np.uint64(size), np.uint64(section.end) - starts), symbols
