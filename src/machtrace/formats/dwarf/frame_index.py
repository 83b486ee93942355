"""An index of FDEs by address, for a section without a search table."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from machtrace.errors import DwarfError
from machtrace.formats.dwarf.cfi_records import (
    CallFrameSection,
    CommonInformation,
    read_common_information,
    read_frame_description,
    read_record_header,
)
from machtrace.formats.dwarf.pointer_encoding import PointerForm, pointer_form
from machtrace.frozen import dataclass

MIN_COMMONS = 1024
COMMONS_PER_RECORD = 1 / 64
"""CIEs that are parsed, the most used first: linkers keep one for thousands of functions."""
READ_ONE_BY_ONE = 1024
"""Records that are parsed one by one, as no compiler makes them: those with 64-bit lengths, or
numbers of no fixed width."""
_WORD = 4
_WIDE = 8
_EXTENDED = 0xFFFFFFF0
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """FDEs by the addresses that they describe."""

    starts: npt.NDArray[np.uint64]
    """Svmas, ascending."""
    offsets: npt.NDArray[np.uint64]
    """The section offset of each FDE."""
    malformed_at: int | None = None
    """The offset of the record at which parsing had to end; those before it are included."""

    def find(self, address: int) -> int | None:
        """Return the offset of the last FDE that starts at or before ``address``.

        It may end before it.
        """
        # The buffer's elements are Python's integers: numpy's search would convert address to
        # float.
        index = bisect_right(self.starts.data, address) - 1
        return None if index < 0 else int(self.offsets[index])


def build_index(section: CallFrameSection) -> FrameIndex:
    """Index every FDE of ``section``, except those that are malformed or describe no code.

    Raises:
        MemoryReadError: the section could not be read.
    """
    data = section.read(0, section.size)
    records, malformed_at = _scan(section, data)
    starts, sizes = _addresses(section, data, records)
    has_code = sizes > 0
    order = np.argsort(starts[has_code], kind="stable")
    return FrameIndex(
        starts[has_code][order], records["offset"][has_code][order].astype(np.uint64), malformed_at
    )


def described_sizes(
    section: CallFrameSection, offsets: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Return the bytes of code that the FDE at each section offset describes; 0 if unknown.

    Raises:
        MemoryReadError: the section could not be read.
    """
    data = section.read(0, section.size)
    described = np.zeros(len(offsets), np.uint64)
    rows = np.flatnonzero(offsets <= np.uint64(max(section.size - 2 * _WORD, 0)))
    if section.size < 2 * _WORD or not len(rows):
        return described
    numbers = np.frombuffer(data, np.uint8)
    word = np.dtype("<u4" if section.little_endian else ">u4")
    lengths = _gather(numbers, offsets[rows], word)
    left = np.uint64(section.size - _WORD) - offsets[rows]
    idents = _gather(numbers, offsets[rows] + np.uint64(_WORD), word)
    is_function = idents != (0 if section.is_eh_frame else 0xFFFFFFFF)
    rows = rows[(lengths < _EXTENDED) & (lengths <= left) & is_function]
    records = _narrow_records(section, numbers, offsets[rows])
    described[rows] = _addresses(section, data, records)[1]
    return described


_RECORD = np.dtype([("offset", "u8"), ("body", "u8"), ("end", "u8"), ("common", "u8")])


def _scan(
    section: CallFrameSection, data: bytes | memoryview
) -> tuple[npt.NDArray[Any], int | None]:
    """Return the records, and the offset at which that ended, if before the section's end."""
    unpack = Struct("<I" if section.little_endian else ">I").unpack_from
    words = _words(section, data)
    narrow: list[int] = []
    wide: list[tuple[int, int, int, int]] = []
    malformed_at = None
    read = 0
    at, last = 0, section.size - _WORD
    while at <= last:
        # Lengths are mostly aligned: an element of a list is read faster than unpacked bytes.
        length = unpack(data, at)[0] if at & _WORD - 1 else words[at // _WORD]
        if _WORD <= length < _EXTENDED:
            narrow.append(at)
            at += _WORD + length
        elif not length:
            if section.ends_at_terminator:
                break
            at += _WORD  # linkers leave terminators between files' parts
        elif read == READ_ONE_BY_ONE:
            malformed_at = at
            break
        else:
            read += 1
            try:
                header = read_record_header(section, at)
            except DwarfError:
                malformed_at = at
                break
            if header is not None and header.common is not None:
                wide.append((at, header.body, header.end, header.common & _MASK))
            at += _WORD + _WIDE if header is None else header.end - at
    if narrow and at > section.size:
        malformed_at = narrow.pop()
    records = _narrow_records(section, np.frombuffer(data, np.uint8), np.array(narrow, np.uint64))
    if wide:
        records = np.concatenate([records, np.array(wide, _RECORD)])
    return records, malformed_at


def _narrow_records(
    section: CallFrameSection, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.uint64]
) -> npt.NDArray[Any]:
    """Return the FDEs among the records with 32-bit lengths at ``offsets``."""
    word = np.dtype("<u4" if section.little_endian else ">u4")
    lengths = _gather(data, offsets, word)
    idents = _gather(data, offsets + np.uint64(_WORD), word)
    is_function = idents != (0 if section.is_eh_frame else 0xFFFFFFFF)
    offsets, idents = offsets[is_function], idents[is_function]
    records = np.empty(len(offsets), _RECORD)
    records["offset"] = offsets
    records["body"] = offsets + np.uint64(2 * _WORD)
    records["end"] = offsets + np.uint64(_WORD) + lengths[is_function]
    # In .eh_frame it counts backwards from itself; a CIE outside of the section wraps around.
    records["common"] = offsets + np.uint64(_WORD) - idents if section.is_eh_frame else idents
    return records


def _gather(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.uint64], dtype: np.dtype[Any]
) -> npt.NDArray[np.uint64]:
    """Return the number at each of ``offsets``; negative ones wrap around."""
    # A matrix of byte indices, one row per number: offsets need not be aligned.
    indices = offsets.astype(np.intp)[:, None] + np.arange(dtype.itemsize)
    numbers: npt.NDArray[Any] = np.ascontiguousarray(data[indices]).view(dtype)[:, 0]
    return numbers.astype(np.int64 if dtype.kind == "i" else np.uint64).astype(np.uint64)


def _words(section: CallFrameSection, data: bytes | memoryview) -> list[int]:
    """Return every four bytes as a number."""
    dtype = np.dtype("<u4" if section.little_endian else ">u4")
    words: list[int] = np.frombuffer(data, dtype, len(data) // _WORD).tolist()
    return words


def _addresses(
    section: CallFrameSection, data: bytes | memoryview, records: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the start and the size of each FDE's code; size 0 if unknown."""
    starts = np.zeros(len(records), np.uint64)
    sizes = np.zeros(len(records), np.uint64)
    commons, which, counts = np.unique(records["common"], return_inverse=True, return_counts=True)
    # All FDEs whose CIEs have the same encoding and address size are read at once.
    kinds: dict[tuple[int, int], int] = {}
    kind_of = np.full(len(commons), -1, np.int64)
    most = MIN_COMMONS + int(len(records) * COMMONS_PER_RECORD)
    for index in np.argsort(-counts, kind="stable")[:most].tolist():
        common = _common_or_none(section, int(commons[index]))
        if common is not None:
            key = (common.pointer_encoding, common.address_size)
            kind_of[index] = kinds.setdefault(key, len(kinds))
    kind_of_record = kind_of[which]
    for (encoding, address_size), kind in kinds.items():
        chosen = np.flatnonzero(kind_of_record == kind)
        form = pointer_form(encoding, address_size)
        if form is None or form.is_indirect or not (form.is_absolute or form.is_relative_to_itself):
            continue
        if form.size is None:
            _read_each(section, records, chosen[:READ_ONE_BY_ONE], starts, sizes)
        else:
            chosen = chosen[
                records["body"][chosen] + np.uint64(2 * form.size) <= records["end"][chosen]
            ]
            fields = _Fields(section, np.frombuffer(data, np.uint8), form, address_size)
            starts[chosen], sizes[chosen] = fields.read(records["body"][chosen])
    return starts, sizes


def _common_or_none(section: CallFrameSection, offset: int) -> CommonInformation | None:
    try:
        return read_common_information(section, offset)
    except DwarfError:
        return None


def _read_each(
    section: CallFrameSection,
    records: npt.NDArray[Any],
    chosen: npt.NDArray[np.intp],
    starts: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.uint64],
) -> None:
    for index in chosen.tolist():
        try:
            function = read_frame_description(section, int(records["offset"][index]))
        except DwarfError:
            continue
        starts[index], sizes[index] = function.start, function.size


@dataclass(frozen=True, slots=True)
class _Fields:
    """Reads the two numbers at the start of many FDEs' bodies with the same encoding."""

    section: CallFrameSection
    data: npt.NDArray[np.uint8]
    form: PointerForm
    address_size: int

    def read(
        self, bodies: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        mask = np.uint64((1 << (8 * self.address_size)) - 1)
        starts = self._numbers(bodies)
        if self.form.is_relative_to_itself:
            starts = starts + bodies + np.uint64(self.section.address)
        sizes = self._numbers(bodies + np.uint64(self.form.size or 0))
        return starts & mask, sizes & mask

    def _numbers(self, offsets: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        order = "<" if self.section.little_endian else ">"
        kind = "i" if self.form.signed else "u"
        return _gather(self.data, offsets, np.dtype(f"{order}{kind}{self.form.size}"))
