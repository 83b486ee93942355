"""``__unwind_info`` and ``__eh_frame`` of a program, from those of its objects.

``__eh_frame`` of several objects made into one section.

Source: *Linux Standard Base Core Specification*, "Exception Frames", for the records; assemblers
for Darwin leave the distances between an FDE and its function to be worked out by the linker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct, pack, unpack_from

from machtrace.formats.cursor import ByteCursor
from machtrace.formats.macho.segments import Section
from machtrace.formats.macho.tables.compact_encoding import DWARF_SECTION_OFFSET
from machtrace.formats.macho.tables.unwind_info import MODE_MASK
from tests.support.linker32.layout import Layout, LinkError, Unit
from tests.support.linker32.objects import Relocator
from tests.support.writers.unwind_info import CompactEntry, folded, gaps

_PC_RELATIVE = (0x10, 0x1B)
"""``DW_EH_PE_pcrel | DW_EH_PE_absptr`` and ``… | DW_EH_PE_sdata4``."""
_LONG_LENGTH = 0xFFFFFFFF
_CIE_AT = 4
_FUNCTION_AT = 8


@dataclass(frozen=True, slots=True)
class FrameRecord:
    """A CIE or an FDE."""

    data: bytes
    """All of it, its length included."""
    offset: int
    """From the object's section."""
    cie: int | None
    """The offset of an FDE's CIE; None in a CIE."""
    function: int
    """The address in the object of the function that an FDE describes."""
    size: int
    """Bytes of the function that an FDE describes."""


def read_frame_records(data: bytes, address: int, source: str) -> tuple[FrameRecord, ...]:
    """Read the records of one object's section, which the object has at ``address``.

    Raises:
        FormatError: a record is cut short.
        ValueError: a record is of a form that compilers do not make for 32-bit machines.
    """
    records = []
    cursor = ByteCursor(data, source=source)
    while not cursor.at_end:
        offset = cursor.offset
        length = cursor.unsigned(4)
        if length == _LONG_LENGTH:
            msg = f"64-bit record at {offset:#x} of {source}"
            raise ValueError(msg)
        if length == 0:
            break
        cursor.take(length)
        record = data[offset : cursor.offset]
        (distance,) = unpack_from("<I", record, _CIE_AT)
        if distance == 0:
            _check_cie(record, source)
            records.append(FrameRecord(record, offset, None, 0, 0))
            continue
        to_function, size = unpack_from("<iI", record, _FUNCTION_AT)
        function = (address + offset + _FUNCTION_AT + to_function) & 0xFFFFFFFF
        records.append(FrameRecord(record, offset, offset + _CIE_AT - distance, function, size))
    return tuple(records)


def _check_cie(record: bytes, source: str) -> None:
    cursor = ByteCursor(record, source=source, offset=_FUNCTION_AT)
    cursor.take(1)  # the version
    augmentation = cursor.c_string()
    for _ in range(4):  # the factors, the return address column, the size of what follows
        cursor.uleb128()
    if augmentation not in (b"zR", b"zRS") or cursor.take(1)[0] not in _PC_RELATIVE:
        msg = f"CIE of augmentation {augmentation!r} in {source}"
        raise ValueError(msg)


class MergedFrames:
    """Records of several objects, side by side; CIEs that nobody needs are left out."""

    def __init__(self) -> None:
        self._records: list[tuple[FrameRecord, int, int]] = []
        """With the function's Svma, and where the record's CIE is in the section."""
        self.size = 0
        """Bytes of the section."""
        self.by_function: dict[int, int] = {}
        """Offset of the FDE by Svma of the function."""

    def add(self, records: Sequence[FrameRecord], functions: Sequence[int]) -> None:
        """Add some FDEs of one object.

        ``records`` are all of that object; ``functions`` has, of each, the Svma of what it
        describes, or -1 to leave it out.
        """
        cies = {record.offset: record for record in records if record.cie is None}
        placed: dict[int, int] = {}
        for record, function in zip(records, functions, strict=True):
            if record.cie is None or function < 0:
                continue
            if record.cie not in placed:
                placed[record.cie] = self._append(cies[record.cie], 0, 0)
            self.by_function[function] = self._append(record, function, placed[record.cie])

    def _append(self, record: FrameRecord, function: int, cie: int) -> int:
        at = self.size
        self._records.append((record, function, cie))
        self.size += len(record.data)
        return at

    def link(self, address: int) -> bytes:
        """Return the section's bytes, at Svma ``address``."""
        linked = bytearray()
        for record, function, cie in self._records:
            at = len(linked)
            linked += record.data
            if record.cie is not None:
                distance = (function - (address + at + _FUNCTION_AT)) & 0xFFFFFFFF
                linked[at + _CIE_AT : at + 12] = pack("<II", at + _CIE_AT - cie, distance)
        return bytes(linked)


_COMPACT_ENTRY = Struct("<5I")
MODE_DWARF = 0x04000000
"""The mode of both 32-bit architectures for functions with an FDE."""
MODE_STACK_INDIRECT = 0x03000000
"""A mode of i386: the size is read from the function, so an entry begins at it."""


def link_unwind_tables(
    layout: Layout, relocate: Relocator, *, keeps_all_frames: bool, code_alignment: int = 1
) -> tuple[list[CompactEntry], MergedFrames]:
    """Return the entries of ``__unwind_info``, and the records of ``__eh_frame``.

    ``__text`` has been laid out. A function with an FDE alone gets an entry of :data:`MODE_DWARF`.

    Args:
        layout: of the program.
        relocate: applies the architecture's relocations.
        keeps_all_frames: keep FDEs of functions whose encoding suffices, too.
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
