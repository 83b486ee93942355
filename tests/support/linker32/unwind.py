"""``__unwind_info`` and ``__eh_frame`` of a program, from those of its objects."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from machtrace.formats.macho.tables.compact_encoding import DWARF_SECTION_OFFSET, MODE_MASK
from machtrace.formats.macho.segments import Section
from tests.support.linker32.eh_frame_linking import FrameRecord, MergedFrames, read_frame_records
from tests.support.linker32.layout import Layout, LinkError, Unit
from tests.support.linker32.macho_relocations import Relocator
from tests.support.writers.unwind_info import CompactEntry, folded, gaps

_COMPACT_ENTRY = Struct("<5I")
MODE_DWARF = 0x04000000
"""Of both 32-bit architectures."""
MODE_STACK_INDIRECT = 0x03000000
"""Of i386; the size is read from the function, so it has to begin at the entry."""


def link_unwind_tables(
    layout: Layout, relocate: Relocator, *, keeps_all_frames: bool, code_alignment: int = 1
) -> tuple[list[CompactEntry], MergedFrames]:
    """The entries of ``__unwind_info``, and the records of ``__eh_frame``.

    ``__text`` has been laid out. A function that has an FDE alone gets an entry that says so.

    Args:
        layout: of the program.
        relocate: of its architecture.
        keeps_all_frames: keep FDEs of functions whose encoding says enough, too.
        code_alignment: of every function, in bytes: what is below is no part of an address.

    Raises:
        LinkError: an encoding points to an FDE that is not there.
        FormatError: a table is malformed.
    """
    frames = MergedFrames()
    functions: list[tuple[int, int, int]] = []
    for unit in layout.units:
        encoded = list(_compact_entries(unit, relocate, -code_alignment))
        in_dwarf = {at for at, _, encoding in encoded if encoding & MODE_MASK == MODE_DWARF}
        known = {at for at, _, _ in encoded} - in_dwarf
        records = _frame_records(unit)
        described = [-1 if r.cie is None else unit.address(r.function) for r in records]
        kept = [at if keeps_all_frames or at not in known else -1 for at in described]
        frames.add(records, kept)
        listed = known | in_dwarf
        functions += encoded
        functions += [
            (at, record.size, MODE_DWARF)
            for at, record in zip(described, records, strict=True)
            if at >= 0 and at not in listed
        ]
    rows = [
        (at - layout.header_address, size, _with_frame(encoding, at, frames))
        for at, size, encoding in functions
    ]
    code = layout.sections[0]
    start = code.address - layout.header_address
    entries = gaps(rows, (start, start + code.size))
    return folded(list(entries), apart=frozenset({MODE_DWARF, MODE_STACK_INDIRECT})), frames


def _with_frame(encoding: int, function: int, frames: MergedFrames) -> int:
    if encoding & MODE_MASK != MODE_DWARF:
        return encoding
    offset = frames.by_function.get(function)
    if offset is None:
        msg = f"the function at {function:#x} has no call-frame information"
        raise LinkError(msg)
    return encoding | (offset if offset <= DWARF_SECTION_OFFSET else 0)


def _section(unit: Unit, name: str) -> Section | None:
    return next((section for section in unit.file.sections if section.name == name), None)


def _compact_entries(unit: Unit, relocate: Relocator, mask: int) -> Iterator[tuple[int, int, int]]:
    """(Svma, bytes, encoding) of each function."""
    section = _section(unit, "__compact_unwind")
    if section is None:
        return
    data = bytearray(unit.file.data_of(section))
    relocate(data, unit.file.relocations_of(section), section.address, section.address, unit)
    for start, size, encoding, personality, lsda in _COMPACT_ENTRY.iter_unpack(data):
        if personality or lsda:
            msg = f"{unit.file.contents.source} has functions with a personality"
            raise LinkError(msg)
        yield start & mask, size, encoding


def _frame_records(unit: Unit) -> tuple[FrameRecord, ...]:
    section = _section(unit, "__eh_frame")
    if section is None:
        return ()
    data = unit.file.data_of(section)
    return read_frame_records(data, section.address, unit.file.contents.source)
