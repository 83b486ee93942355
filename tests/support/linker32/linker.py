"""A linker of 32-bit Mach-O programs, which today's linkers for Mach-O no longer make.

It takes objects that need nothing from outside and makes an executable as ld64 lays one out:
``__TEXT`` with the header, the code, ``__unwind_info`` made from the objects' compact encodings and
``__eh_frame``; ``__DATA``; ``__LINKEDIT``. What is special to an architecture is in
:data:`TARGETS`, and in the module that applies its relocations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.structs import INDIRECT_SYMBOL_LOCAL
from machtrace.model.arch import Arch
from tests.support.linker32.arm import relocate_arm
from tests.support.linker32.executable import write_executable
from tests.support.linker32.i386 import Stubs, relocate_i386
from tests.support.linker32.layout import Layout, LinkError, OutputSection, Piece, aligned
from tests.support.linker32.objects import ObjectFile, Relocator
from tests.support.linker32.unwind import link_unwind_tables
from tests.support.writers.unwind_info import PAGE_SIZE, write_unwind_info


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """An architecture's requirements for an executable."""

    page_size: int
    """The alignment of segments in bytes; ``__PAGEZERO`` is one page."""
    relocate: Relocator
    code_alignment: int = 1
    """The alignment of functions in bytes; the lowest bit of an address may mark Thumb code."""


_IOS = LinkTarget(0x4000, relocate_arm, code_alignment=2)
TARGETS = {
    Arch.I386: LinkTarget(0x1000, relocate_i386),
    Arch.ARMV7: _IOS,
    Arch.ARMV7S: _IOS,
    Arch.ARMV7K: _IOS,
}
"""The architectures that can be linked."""

_NON_LAZY_POINTERS = 0x6
_HEADER_ROOM = 0x600
"""For the header and its load commands, which take about 1 KiB."""


def link_macho(
    objects: Sequence[bytes],
    *,
    entry: str = "_main",
    is_stripped: bool = False,
    keeps_all_frames: bool = False,
    is_compressed: bool = True,
    unwind_page_size: int = PAGE_SIZE,
    has_stubs: bool = False,
) -> bytes:
    """Link objects of one 32-bit architecture to an executable.

    Args:
        objects: the bytes of each file.
        entry: the symbol that LC_MAIN names.
        is_stripped: leave out all symbols but the header's; function starts stay.
        keeps_all_frames: keep the FDEs of functions whose compact encoding suffices, too.
        is_compressed: which kind of pages ``__unwind_info`` has.
        unwind_page_size: of one such page at most, in bytes; small ones make several.
        has_stubs: leave what is undefined to dyld, which binds it when it is first called. Only of
            i386.

    Raises:
        LinkError: a symbol is missing or twice there, or the objects are of an architecture that
            is not in :data:`TARGETS`.
        FormatError: an object is malformed.
    """
    files = [
        ObjectFile(MachOFileContents(data, f"object {number}"))
        for number, data in enumerate(objects)
    ]
    arch = files[0].contents.image.arch
    if arch not in TARGETS:
        msg = f"objects for {arch.value} cannot be linked"
        raise LinkError(msg)
    target = TARGETS[arch]
    layout = Layout(files, target.page_size)

    stubs = Stubs(layout) if has_stubs and arch is Arch.I386 else None
    at = layout.header_address + _HEADER_ROOM
    for section in layout.in_segment("__TEXT"):
        at = section.place(at)
    entries, frames = link_unwind_tables(
        layout,
        target.relocate,
        keeps_all_frames=keeps_all_frames,
        code_alignment=target.code_alignment,
    )
    code = layout.sections[0]
    unwind_info = OutputSection("__TEXT", "__unwind_info", 0)
    if entries:
        end = code.address + code.size - layout.header_address
        unwind_info.data = write_unwind_info(
            entries, end, is_compressed=is_compressed, page_size=unwind_page_size
        )
        unwind_info.size = len(unwind_info.data)
    eh_frame = OutputSection("__TEXT", "__eh_frame", 0, size=frames.size)
    at = eh_frame.place(unwind_info.place(at))
    eh_frame.data = frames.link(eh_frame.address)

    at = aligned(at, target.page_size)
    for section in layout.in_segment("__DATA"):
        at = section.place(at)
    if stubs is not None:
        stubs.name()
        stubs.fill()
    for section in layout.sections:
        if section.pieces:
            section.data = _linked(section, target.relocate)
    last = len(layout.in_segment("__TEXT"))
    layout.sections[last:last] = [s for s in (unwind_info, eh_frame) if s.size]
    return write_executable(layout, entry, target.page_size, is_stripped=is_stripped)


def _linked(section: OutputSection, relocate: Relocator) -> bytes:
    if section.is_zerofill:
        return b""
    linked = bytearray(section.size)
    for piece in section.pieces:
        data = bytearray(piece.unit.file.data_of(piece.section))
        relocations = piece.unit.file.relocations_of(piece.section)
        new = section.address + piece.offset
        relocate(data, relocations, piece.section.address, new, piece.unit)
        if piece.section.type == _NON_LAZY_POINTERS:
            _fill_pointers(data, piece)
        linked[piece.offset : piece.offset + len(data)] = data
    return bytes(linked)


def _fill_pointers(data: bytearray, piece: Piece) -> None:
    """Put the addresses of symbols where the dynamic loader would."""
    first = piece.section.reserved1
    for i, number in enumerate(piece.unit.file.indirect_symbols[first : first + len(data) // 4]):
        if not number & INDIRECT_SYMBOL_LOCAL:  # relocations have those
            address = piece.unit.symbol(number) | piece.unit.is_thumb(number)
            data[4 * i : 4 * i + 4] = pack("<I", address)
