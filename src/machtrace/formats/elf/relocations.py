"""Which symbol the loader puts into which slot (gABI, chapter 4, "Relocation")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.structs import SHT_DYNSYM, SHT_REL, SHT_RELA, ElfLayout
from machtrace.errors import ElfError


@dataclass(frozen=True, slots=True, eq=False)
class SlotSymbols:
    """Slots of the global offset table, by address, and what is in them."""

    slots: npt.NDArray[np.uint64]
    """Svmas, ascending."""
    symbols: npt.NDArray[np.int64]
    """Row of ``.dynsym``, never 0."""

    def symbols_at(self, slots: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The symbol in each of ``slots``; 0 where there is none."""
        if not len(self.slots):
            return np.zeros(len(slots), np.int64)
        index = self.slots.searchsorted(slots).clip(max=len(self.slots) - 1)
        return np.where(self.slots[index] == slots, self.symbols[index], 0)


def read_relocations(
    contents: ElfFileContents, name: str
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Address and symbol of each entry of a relocation section, in its order; empty without it.

    Raises:
        ElfError: the section is not in the file, or its entries have another size.
    """
    image = contents.image
    section = image.section(name)
    if section is None or section.type not in (SHT_REL, SHT_RELA):
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    if section.link >= len(image.sections) or image.sections[section.link].type != SHT_DYNSYM:
        # A static program's are relative to nothing; they name no symbols.
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    dtype = _dtype(image.layout, has_addend=section.type == SHT_RELA)
    if section.entry_size != dtype.itemsize:
        raise ElfError(
            f"section {name} has entries of {section.entry_size} bytes, not {dtype.itemsize}",
            source=contents.source,
            offset=section.offset,
        )
    data = contents.read_section(section)
    rows = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
    symbols = rows["r_info"] >> (32 if image.layout.is_64 else 8)
    return rows["r_offset"].astype(np.uint64), symbols.astype(np.int64)


def slot_symbols(contents: ElfFileContents) -> SlotSymbols:
    """What ``.rel[a].plt`` and ``.rel[a].dyn`` put into slots.

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
