"""``__eh_frame`` of several objects made into one section.

Source: *Linux Standard Base Core Specification*, "Exception Frames", for the records; assemblers
for Darwin leave the distances between an FDE and its function to be worked out by the linker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack, unpack_from

from machtrace.formats.cursor import ByteCursor

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
    """Of an FDE: where its CIE is. None of a CIE."""
    function: int
    """Of an FDE: the address in the object of what it describes."""
    size: int
    """Of an FDE: bytes of the function."""


def read_frame_records(data: bytes, address: int, source: str) -> tuple[FrameRecord, ...]:
    """The records of one object's section, which the object has at ``address``.

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
        """Of the section, in bytes."""
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
        """The section's bytes, at Svma ``address``."""
        linked = bytearray()
        for record, function, cie in self._records:
            at = len(linked)
            linked += record.data
            if record.cie is not None:
                distance = (function - (address + at + _FUNCTION_AT)) & 0xFFFFFFFF
                linked[at + _CIE_AT : at + 12] = pack("<II", at + _CIE_AT - cie, distance)
        return bytes(linked)
