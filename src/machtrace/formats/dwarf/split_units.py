"""Split DWARF: skeleton units, which stay in a linked file, and the units that they refer to.

DWARF 5, sections 3.1.2, 7.3.5 and 7.5, and GNU's form of it for DWARF 4 (``-gsplit-dwarf``, the
"DebugFission" pages of GCC's wiki). The units are in ``.dwo`` files, one for each object file, or
together in a ``.dwp`` file. A skeleton has the unit's id, the name of its file and its addresses.
Units of 64-bit DWARF are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from machtrace.errors import DwarfError
from machtrace.formats.cursor import ByteCursor
from machtrace.frozen import dataclass

ReadSection = Callable[[str], memoryview]
"""Returns the bytes of the section with a name; empty without it."""

(NAME, STMT_LIST, LOW_PC, HIGH_PC, LANGUAGE, COMP_DIR, RANGES) = (
    0x03, 0x10, 0x11, 0x12, 0x13, 0x1B, 0x55,
)  # fmt: skip
_STR_OFFSETS_BASE, _ADDR_BASE, _RNGLISTS_BASE, _DWO_NAME = 0x72, 0x73, 0x74, 0x76
_GNU_DWO_NAME, _GNU_DWO_ID, _GNU_RANGES_BASE, _GNU_ADDR_BASE = 0x2130, 0x2131, 0x2132, 0x2133
"""``DW_AT_…``."""
BLOCK1, BLOCK2, SEC_OFFSET, IMPLICIT_CONST, STRX3, ADDRX3 = 0x0A, 0x03, 0x17, 0x21, 0x27, 0x2B
_ADDR, _STRING, _SDATA, _LINE_STRP, _RNGLISTX = 0x01, 0x08, 0x0D, 0x1F, 0x23
"""``DW_FORM_…``."""
_SIZES = {
    0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x0E: 4, 0x10: 4, 0x11: 1, 0x12: 2, 0x13: 4,
    0x14: 8, 0x17: 4, 0x19: 0, 0x1C: 4, 0x1D: 4, 0x1E: 16, 0x1F: 4, 0x20: 8, 0x21: 0, 0x24: 8,
    0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4, 0x1F20: 4, 0x1F21: 4,
}  # fmt: skip
_ULEBS = frozenset({0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23, 0x1F01, 0x1F02})
_STRING_INDICES = frozenset({0x1A, 0x25, 0x26, 0x27, 0x28, 0x1F02})
_ADDRESS_INDICES = frozenset({0x1B, 0x29, 0x2A, 0x2B, 0x2C, 0x1F01})
_BLOCKS = {0x0A: 1, 0x03: 2, 0x04: 4, 0x09: 0, 0x18: 0}
"""Bytes of the size of a block; 0 for LEB128."""
_COMPILE, _SKELETON, _SPLIT_COMPILE = 1, 4, 5
_TYPES = frozenset({2, 6})
"""``DW_UT_…``."""
_WORD, _WIDE = 4, 8
_EXTENDED = 0xFFFFFFFF
_RESERVED = 0xFFFFFFF0
_VERSIONS = frozenset({4, 5})
_MAX_ATTRIBUTES = 256
_MAX_RANGES = 1 << 16
"""Ranges of one unit."""
_INFO, _ABBREV, _STR_OFFSETS, _RNGLISTS = 1, 3, 6, 8
"""``DW_SECT_…``."""
_MAX_COLUMNS = 16


class Attribute(NamedTuple):
    """An attribute of a unit's first entry."""

    form: int
    value: int | bytes
    """A number as stored; bytes of strings and blocks."""
    raw: bytes
    """Its bytes."""


class UnitHeader(NamedTuple):
    """A unit, as offsets in its section."""

    start: int
    end: int
    version: int
    kind: int
    """``DW_UT_…``; in DWARF 4 that of a whole unit."""
    address_size: int
    abbreviations: int
    """The offset of its table in ``.debug_abbrev``."""
    unit_id: int | None
    """The id of a skeleton or a split unit of DWARF 5."""
    first: int
    """The offset of its first entry."""


class Declaration(NamedTuple):
    """An abbreviation."""

    start: int
    end: int
    """Offsets in its section."""
    head: bytes
    """The code, the tag, and whether it has children, as stored."""
    attributes: tuple[tuple[int, int, int], ...]
    """Name, form and implicit value of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkeletonUnit:
    """The part of a unit in the linked file."""

    unit_id: int
    version: int
    file_name: str
    """``DW_AT_dwo_name``."""
    folder: str
    """``DW_AT_comp_dir``; empty without one."""
    line_offset: int | None
    """The offset of its table in ``.debug_line``."""
    address_base: int
    """The offset of its addresses in ``.debug_addr``."""
    ranges_base: int
    """The offset of its ranges in ``.debug_ranges``, in DWARF 4."""
    low_pc: int | None
    ranges: tuple[tuple[int, int], ...]
    """The (start, end) of its code, in Svmas; in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitUnit:
    """A unit in a ``.dwo`` or ``.dwp`` file: its parts of the sections there."""

    path: str
    """The file."""
    info: memoryview
    """The unit with its header."""
    header: UnitHeader
    """Offsets count from the start of :attr:`info`."""
    abbreviations: memoryview
    string_offsets: memoryview
    strings: memoryview
    range_lists: memoryview


class DwarfReader:
    """Reads units of one file."""

    def __init__(self, read: ReadSection, source: str, *, little_endian: bool) -> None:
        self.read = read
        self._source = source
        self._little = little_endian

    def units(self, data: memoryview) -> Iterator[UnitHeader]:
        """Yield the units of ``.debug_info`` or ``.debug_info.dwo``, without those of types.

        Raises:
            DwarfError: a header is cut short.
        """
        at = 0
        while at + _WORD <= len(data):
            cursor = self._cursor(data, at, ".debug_info")
            length = self._number(cursor, _WORD)
            if length == _EXTENDED:
                at += _WORD + _WIDE + self._number(cursor, _WIDE)
                continue
            end = cursor.offset + length
            if length >= _RESERVED or end > len(data):
                raise cursor.fail("unit cut short")
            version = self._number(cursor, 2)
            kind, unit_id = _COMPILE, None
            if version == 5:  # noqa: PLR2004
                kind, address_size = cursor.take(2)
                abbreviations = self._number(cursor, _WORD)
                if kind in (_SKELETON, _SPLIT_COMPILE):
                    unit_id = self._number(cursor, _WIDE)
            elif version == 4:  # noqa: PLR2004
                abbreviations = self._number(cursor, _WORD)
                address_size = cursor.take(1)[0]
            if version in _VERSIONS and kind not in _TYPES and address_size in (_WORD, _WIDE):
                yield UnitHeader(
                    at, end, version, kind, address_size, abbreviations, unit_id, cursor.offset
                )
            at = end

    def declaration(self, table: memoryview, at: int, code: int) -> Declaration:
        """Return the abbreviation ``code`` of the table at an offset.

        Raises:
            DwarfError: it has none, or is malformed.
        """
        cursor = self._cursor(table, at, ".debug_abbrev")
        while True:
            start = cursor.offset
            number = cursor.uleb128()
            if not number:
                raise cursor.fail(f"no abbreviation {code}")
            cursor.uleb128()
            cursor.take(1)
            head = bytes(table[start : cursor.offset])
            attributes: list[tuple[int, int, int]] = []
            while True:
                name, form = cursor.uleb128(), cursor.uleb128()
                implicit = cursor.sleb128() if form == IMPLICIT_CONST else 0
                if not name and not form:
                    break
                if len(attributes) == _MAX_ATTRIBUTES:
                    raise cursor.fail("too many attributes")
                attributes.append((name, form, implicit))
            if number == code:
                return Declaration(start, cursor.offset, head, tuple(attributes))

    def first_entry(
        self, data: memoryview, unit: UnitHeader, table: memoryview
    ) -> tuple[Declaration, dict[int, Attribute], int]:
        """Return a unit's first entry: its abbreviation, its attributes, and where it ends.

        Raises:
            DwarfError: it is malformed.
        """
        cursor = self._cursor(data[: unit.end], unit.first, ".debug_info")
        declaration = self.declaration(table, unit.abbreviations, cursor.uleb128())
        attributes = {}
        for name, form, implicit in declaration.attributes:
            start = cursor.offset
            value = implicit if form == IMPLICIT_CONST else self._value(cursor, form, unit)
            attributes[name] = Attribute(form, value, bytes(data[start : cursor.offset]))
        return declaration, attributes, cursor.offset

    def _value(self, cursor: ByteCursor, form: int, unit: UnitHeader) -> int | bytes:
        if form == _ADDR or form in _SIZES:
            return self._number(cursor, _SIZES.get(form, unit.address_size))
        if form in _ULEBS:
            return cursor.uleb128()
        if form == _SDATA:
            return cursor.sleb128()
        if form == _STRING:
            return cursor.c_string()
        if form in _BLOCKS:
            size = _BLOCKS[form]
            return cursor.take(self._number(cursor, size) if size else cursor.uleb128())
        raise cursor.fail(f"unknown form {form:#x}")

    def _number(self, cursor: ByteCursor, size: int) -> int:
        return cursor.unsigned(size, little_endian=self._little)

    def _cursor(self, data: memoryview, at: int, section: str) -> ByteCursor:
        source = f"{self._source} {section}"
        return ByteCursor(data, source=source, error=DwarfError, offset=at)

    # --- skeletons ---

    def skeletons(self) -> Iterator[SkeletonUnit]:
        """Yield the skeleton units of a linked file.

        Raises:
            FormatError: a section is malformed.
        """
        data, table = self.read(".debug_info"), self.read(".debug_abbrev")
        for unit in self.units(data):
            if unit.version == 5 and unit.kind != _SKELETON:  # noqa: PLR2004
                continue
            _, attributes, _ = self.first_entry(data, unit, table)
            name = attributes.get(_DWO_NAME) or attributes.get(_GNU_DWO_NAME)
            unit_id = unit.unit_id
            if unit_id is None and _GNU_DWO_ID in attributes:
                unit_id = _integer(attributes[_GNU_DWO_ID])
            if name is not None and unit_id is not None:
                yield self._skeleton(unit, unit_id, name, attributes)

    def _skeleton(
        self, unit: UnitHeader, unit_id: int, name: Attribute, attributes: dict[int, Attribute]
    ) -> SkeletonUnit:
        def number(*names: int) -> int | None:
            name = next((name for name in names if name in attributes), None)
            return None if name is None else _integer(attributes[name])

        strings = number(_STR_OFFSETS_BASE) or 0
        addresses = number(_ADDR_BASE, _GNU_ADDR_BASE) or 0
        folder, low = attributes.get(COMP_DIR), attributes.get(LOW_PC)
        low_pc = None if low is None else self._address(low, unit, addresses)
        high, ranges = attributes.get(HIGH_PC), attributes.get(RANGES)
        code: tuple[tuple[int, int], ...] = ()
        if ranges is not None:
            base = number(_RNGLISTS_BASE) or 0
            code = tuple(self._ranges(ranges, unit, base, addresses, low_pc or 0))
        elif high is not None and low_pc is not None:
            end = self._address(high, unit, addresses)
            code = ((low_pc, end if high.form in (_ADDR, *_ADDRESS_INDICES) else low_pc + end),)
        return SkeletonUnit(
            unit_id=unit_id,
            version=unit.version,
            file_name=self._text(name, strings),
            folder="" if folder is None else self._text(folder, strings),
            line_offset=number(STMT_LIST),
            address_base=addresses,
            ranges_base=number(_GNU_RANGES_BASE) or 0,
            low_pc=low_pc,
            ranges=tuple((start, end) for start, end in code if start < end),
        )

    def _text(self, attribute: Attribute, strings: int) -> str:
        if isinstance(attribute.value, bytes):
            text = attribute.value
        else:
            at, section = attribute.value, ".debug_str"
            if attribute.form in _STRING_INDICES:
                offsets = self._cursor(
                    self.read(".debug_str_offsets"), strings + _WORD * at, ".debug_str_offsets"
                )
                at = self._number(offsets, _WORD)
            elif attribute.form == _LINE_STRP:
                section = ".debug_line_str"
            text = self._cursor(self.read(section), at, section).c_string()
        return text.decode("utf-8", "surrogateescape")

    def _address(self, attribute: Attribute, unit: UnitHeader, base: int) -> int:
        value = _integer(attribute)
        if attribute.form not in _ADDRESS_INDICES:
            return value
        return self._indexed_address(value, unit, base)

    def _indexed_address(self, index: int, unit: UnitHeader, base: int) -> int:
        at = base + index * unit.address_size
        return self._number(
            self._cursor(self.read(".debug_addr"), at, ".debug_addr"), unit.address_size
        )

    def _ranges(
        self, attribute: Attribute, unit: UnitHeader, base: int, addresses: int, low_pc: int
    ) -> Iterator[tuple[int, int]]:
        at = _integer(attribute)
        if unit.version == 4:  # noqa: PLR2004
            yield from self._plain_ranges(at, unit, low_pc)
            return
        data = self.read(".debug_rnglists")
        if attribute.form == _RNGLISTX:
            offsets = self._cursor(data, base + _WORD * at, ".debug_rnglists")
            at = base + self._number(offsets, _WORD)
        cursor = self._cursor(data, at, ".debug_rnglists")
        start = low_pc
        for _ in range(_MAX_RANGES):
            kind = cursor.take(1)[0]
            if kind == 0:
                return
            if kind == 1:
                start = self._indexed_address(cursor.uleb128(), unit, addresses)
            elif kind == 5:  # noqa: PLR2004
                start = self._number(cursor, unit.address_size)
            else:
                yield self._range(cursor, kind, unit, addresses, start)

    def _range(
        self, cursor: ByteCursor, kind: int, unit: UnitHeader, addresses: int, base: int
    ) -> tuple[int, int]:
        """``DW_RLE_startx_endx``, ``startx_length``, ``offset_pair``, ``start_end`` and others."""
        if kind in (2, 3):
            low = self._indexed_address(cursor.uleb128(), unit, addresses)
            end = cursor.uleb128()
            return low, self._indexed_address(end, unit, addresses) if kind == 2 else low + end  # noqa: PLR2004
        if kind == 4:  # noqa: PLR2004
            return base + cursor.uleb128(), base + cursor.uleb128()
        if kind not in (6, 7):
            raise cursor.fail(f"unknown range {kind}")
        low = self._number(cursor, unit.address_size)
        if kind == 6:  # noqa: PLR2004
            return low, self._number(cursor, unit.address_size)
        return low, low + cursor.uleb128()

    def _plain_ranges(self, at: int, unit: UnitHeader, base: int) -> Iterator[tuple[int, int]]:
        cursor = self._cursor(self.read(".debug_ranges"), at, ".debug_ranges")
        last = (1 << (8 * unit.address_size)) - 1
        for _ in range(_MAX_RANGES):
            low, high = (self._number(cursor, unit.address_size) for _ in range(2))
            if low == last:
                base = high
            elif not low and not high:
                return
            else:
                yield base + low, base + high

    # --- split units ---

    def split_units(self) -> dict[int, SplitUnit]:
        """Return the units of a ``.dwo`` or ``.dwp`` file by their ids.

        Raises:
            FormatError: a section is malformed.
        """
        whole = {
            _INFO: self.read(".debug_info.dwo"),
            _ABBREV: self.read(".debug_abbrev.dwo"),
            _STR_OFFSETS: self.read(".debug_str_offsets.dwo"),
            _RNGLISTS: self.read(".debug_rnglists.dwo"),
        }
        index = self.read(".debug_cu_index")
        rows = [(None, whole)] if not len(index) else self._package(index, whole)
        units: dict[int, SplitUnit] = {}
        for unit_id, parts in rows:
            for unit in self.units(parts[_INFO]):
                stated = self._unit_id(unit, parts)
                if stated is None or (unit_id is not None and stated != unit_id):
                    continue
                shift = unit.start
                units[stated] = SplitUnit(
                    path=self._source,
                    info=parts[_INFO][unit.start : unit.end],
                    header=unit._replace(start=0, end=unit.end - shift, first=unit.first - shift),
                    abbreviations=parts[_ABBREV],
                    string_offsets=parts[_STR_OFFSETS],
                    strings=self.read(".debug_str.dwo"),
                    range_lists=parts[_RNGLISTS],
                )
        return units

    def _unit_id(self, unit: UnitHeader, parts: dict[int, memoryview]) -> int | None:
        if unit.version == 5:  # noqa: PLR2004
            return unit.unit_id
        _, attributes, _ = self.first_entry(parts[_INFO], unit, parts[_ABBREV])
        return _integer(attributes[_GNU_DWO_ID]) if _GNU_DWO_ID in attributes else None

    def _package(
        self, index: memoryview, whole: dict[int, memoryview]
    ) -> Iterator[tuple[int, dict[int, memoryview]]]:
        """Yield each unit of a ``.dwp`` file, and its parts of the sections (section 7.3.5)."""
        cursor = self._cursor(index, 0, ".debug_cu_index")
        cursor.take(_WORD)  # the version, which the columns show, too
        columns, count, slots = (self._number(cursor, _WORD) for _ in range(3))
        size = slots * (_WIDE + _WORD) + (2 * count + 1) * columns * _WORD
        if columns > _MAX_COLUMNS or size > len(index) - cursor.offset:
            raise cursor.fail("index cut short")
        order = "<" if self._little else ">"
        ids = Struct(f"{order}{slots}Q").unpack(cursor.take(slots * _WIDE))
        rows = Struct(f"{order}{slots}I").unpack(cursor.take(slots * _WORD))
        row = Struct(f"{order}{columns}I")
        sections = cursor.unpack(row)
        offsets = [cursor.unpack(row) for _ in range(count)]
        sizes = [cursor.unpack(row) for _ in range(count)]
        for unit_id, number in zip(ids, rows, strict=True):
            if not 0 < number <= count:
                continue
            parts = dict(whole)
            for section, at, length in zip(
                sections, offsets[number - 1], sizes[number - 1], strict=True
            ):
                if section in whole:
                    parts[section] = whole[section][at : at + length]
            yield unit_id, parts


def _integer(attribute: Attribute) -> int:
    if isinstance(attribute.value, bytes):
        raise DwarfError("number expected", source="a unit's first entry", offset=0)
    return attribute.value
