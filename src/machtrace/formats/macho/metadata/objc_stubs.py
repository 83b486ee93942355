"""``__objc_stubs``: code that loads a selector and jumps to ``objc_msgSend``.

A linker writes one for each selector, and names it ``_objc_msgSend$selector``. In a stripped image
the stub's code still reveals the selector: on arm64, ``adrp x1`` and ``ldr x1`` load it from its
reference.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.errors import MemoryReadError
from machtrace.formats.macho.columns import Addresses
from machtrace.formats.macho.contents import MachOContents, is_encrypted
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.formats.macho.metadata.objc import ObjcRecords
from machtrace.formats.macho.segments import Section
from machtrace.frozen import dataclass
from machtrace.model.arch import Arch

_ARM64 = frozenset({Arch.ARM64, Arch.ARM64E, Arch.ARM64_32})
_ADRP_X1 = np.uint32(0x90000001)
_ADRP_MASK = np.uint32(0x9F00001F)
_LDR_X1 = np.uint32(0xF9400021)
_LDR_W1 = np.uint32(0xB9400021)
"""``ldr x1, [x1, #imm]``, and ``ldr w1, [x1, #imm]`` of arm64_32."""
_LDR_MASK = np.uint32(0xFFC003FF)


@dataclass(frozen=True, slots=True, eq=False)
class ObjcStubs:
    """Stubs, ascending by address."""

    addresses: Addresses
    sizes: npt.NDArray[np.uint64]
    """In bytes."""
    selectors: Addresses
    """Addresses of the selectors' strings."""
    records: ObjcRecords

    def __len__(self) -> int:
        return len(self.addresses)

    def selector(self, row: int) -> str:
        """Return the stub's selector."""
        return self.records.text(int(self.selectors[row]))


def parse_objc_stubs(contents: MachOContents, pointers: Pointers) -> ObjcStubs:
    """Return the stubs of an image with known selectors."""
    records = ObjcRecords(contents, pointers)
    stubs = [_in_section(section, records) for section in contents.image.sections
             if section.name == "__objc_stubs"]  # fmt: skip
    starts, ends, selectors = (
        np.concatenate([np.zeros(0, np.uint64), *(part[column] for part in stubs)])
        for column in range(3)
    )
    selectors = records.strings(selectors)
    order = np.argsort(starts, kind="stable")
    order = order[selectors[order] != 0]
    return ObjcStubs(starts[order], (ends - starts)[order], selectors[order], records)


def _in_section(section: Section, records: ObjcRecords) -> tuple[Addresses, Addresses, Addresses]:
    none = np.zeros(0, np.uint64)
    if records.contents.image.header.arch not in _ARM64:
        return none, none, none
    size = section.size // 4 * 4
    if is_encrypted(records.contents, section.address, size):
        return none, none, none
    try:
        words = np.frombuffer(records.contents.read_svma(section.address, size), "<u4")
    except MemoryReadError:
        return none, none, none
    load, scale = (_LDR_X1, 8) if records.layout.pointer == 8 else (_LDR_W1, 4)  # noqa: PLR2004
    is_start = (words[:-1] & _ADRP_MASK) == _ADRP_X1
    is_start &= (words[1:] & _LDR_MASK) == load
    rows = np.flatnonzero(is_start)
    starts = np.uint64(section.address) + rows.astype(np.uint64) * np.uint64(4)
    adrp, ldr = words[rows].astype(np.int64), words[rows + 1].astype(np.int64)
    pages = (adrp >> 5 & 0x7FFFF) << 2 | adrp >> 29 & 3
    pages = np.where(pages >= 1 << 20, pages - (1 << 21), pages) << 12
    references = (
        (starts & ~np.uint64(0xFFF))
        + pages.astype(np.uint64)
        + ((ldr >> 10 & 0xFFF) * scale).astype(np.uint64)
    )
    ends = np.append(starts[1:], np.uint64(section.address + size))[: len(starts)]
    return starts, ends, records.pointers.addresses(references)
