"""Source lines of an image with split DWARF: its ``.dwo`` files are read on demand.

The library that builds indices does not read split DWARF. So a split unit and its skeleton become
an ELF file of their own with whole DWARF, in which the unit is at the same offset as before and as
large: its first entry is replaced, with the line table in the room of what nobody reads, so that
references within the unit stay right. Parts of sections begin where the unit's bases are, since
there is no room for these either.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np
import numpy.typing as npt

from machtrace.errors import DwarfError, FormatError, MemoryReadError
from machtrace.formats.dwarf.split_units import (
    ADDRX3,
    BLOCK1,
    BLOCK2,
    COMP_DIR,
    IMPLICIT_CONST,
    LANGUAGE,
    LOW_PC,
    NAME,
    RANGES,
    SEC_OFFSET,
    STMT_LIST,
    STRX3,
    DwarfReader,
    SkeletonUnit,
    SplitUnit,
)
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.structs import PF_R, PF_X, PT_LOAD
from machtrace.images.debug_file import DebugFile
from machtrace.images.resolver import ImageResolver
from machtrace.images.search_record import Outcome, SearchRecord
from machtrace.lines.index import DebugIndex
from machtrace.lines.index_builder import ObjectBytes
from machtrace.lines.index_cache import IndexCache
from machtrace.lines.merged_tables import MergedTables, MovedFunctions
from machtrace.lines.parts_index import OpenedPart, PartsIndex
from machtrace.lines.split.files import SplitFiles
from machtrace.model.image import BinaryImage, ImageFormat

_PADDING = 0x2000
"""``DW_AT_lo_user``, for bytes that nobody reads."""
_FIVE = 5
_RNGLISTS_HEADER, _STR_OFFSETS_HEADER = 12, 8
_LENGTH = 4
_BYTE_LIMIT, _SHORT_LIMIT, _INDEX_LIMIT = 1 << 8, 1 << 16, 1 << 24
_PROGBITS, _STRTAB = 1, 3
_COMPILE_UNIT = 1
_OPCODE_BASE = 17
"""The offset of this field in a line table of DWARF 5; as many lengths less one follow."""
_STRP = 0x0E

_Field = tuple[int, int, bytes]
"""The name, the form and the bytes of an attribute."""


class UnitJoiner:
    """Writes the files of one image's units."""

    def __init__(self, main: ElfFileContents, reader: DwarfReader) -> None:
        """Take the linked file with the skeletons."""
        self._main = main
        self._reader = reader
        self._little = main.image.layout.little_endian
        self._word = Struct(f"{main.image.layout.byte_order}I")

    def joined(self, skeleton: SkeletonUnit, unit: SplitUnit, address_end: int) -> bytearray:
        """Return the file of one unit.

        Args:
            skeleton: what the linked file has of it.
            unit: the unit.
            address_end: where its addresses in ``.debug_addr`` end.

        Raises:
            DwarfError: the unit is malformed, or its first entry is too small.
        """
        lines, needs_strings = self._lines(skeleton)
        strings = bytes(self._reader.read(".debug_str")) if needs_strings else b""
        shift, strings = len(strings), strings + bytes(unit.strings)
        folder = skeleton.folder.encode("utf-8", "surrogateescape") + b"\0"
        offsets = self._string_offsets(unit, shift, len(strings))
        width = unit.header.address_size
        addresses = bytes(self._reader.read(".debug_addr")[skeleton.address_base : address_end])
        addresses = addresses[: len(addresses) // width * width]
        indices = (len(addresses) // width, len(offsets) // _LENGTH - 1)
        low = 0 if skeleton.low_pc is None else skeleton.low_pc
        info, abbreviations = self._unit(unit, low_index=indices[0] if low else None,
                                         folder_index=indices[1])  # fmt: skip
        sections = {
            ".debug_info": info,
            ".debug_abbrev": abbreviations,
            ".debug_str": strings + folder,
            ".debug_str_offsets": offsets,
            ".debug_addr": addresses + low.to_bytes(width, "little" if self._little else "big"),
            ".debug_line": lines,
            ".debug_line_str": bytes(self._reader.read(".debug_line_str")),
        }
        if unit.header.version == _FIVE:
            sections[".debug_rnglists"] = bytes(unit.range_lists[_RNGLISTS_HEADER:])
        else:
            ranges = self._reader.read(".debug_ranges")
            sections[".debug_ranges"] = bytes(ranges[skeleton.ranges_base :])
        return self._file(sections)

    def _lines(self, skeleton: SkeletonUnit) -> tuple[bytes, bool]:
        """Return the unit's line table, and whether its paths are in ``.debug_str``."""
        data, at = self._reader.read(".debug_line"), skeleton.line_offset
        if at is None or at + _LENGTH > len(data):
            raise DwarfError("no line table", source=self._main.source, offset=at or 0)
        size = _LENGTH + self._word.unpack_from(data, at)[0]
        table = bytes(data[at : at + size])
        # DWARF 5, section 6.2.4: the formats of folders come after the lengths of opcodes.
        if len(table) <= _OPCODE_BASE or _FIVE not in table[_LENGTH : _LENGTH + 2]:
            return table, False
        formats = _OPCODE_BASE + table[_OPCODE_BASE]
        count = table[formats] if formats < len(table) else 0
        pairs = table[formats + 1 : formats + 1 + 2 * count]
        return table, _STRP in pairs[1::2]

    def _string_offsets(self, unit: SplitUnit, shift: int, folder: int) -> bytes:
        """Return the offsets of the unit's strings, and of its folder's."""
        header = _STR_OFFSETS_HEADER if unit.header.version == _FIVE else 0
        stored = bytes(unit.string_offsets[header:])
        stored = stored[: len(stored) // _LENGTH * _LENGTH]
        if shift:
            moved = (number + shift & 0xFFFFFFFF for (number,) in self._word.iter_unpack(stored))
            stored = b"".join(map(self._word.pack, moved))
        return stored + self._word.pack(folder)

    def _unit(
        self, unit: SplitUnit, *, low_index: int | None, folder_index: int
    ) -> tuple[bytes, bytes]:
        """Return the unit and its abbreviations."""
        reader, header = self._reader, unit.header
        old, attributes, entry_end = reader.first_entry(unit.info, header, unit.abbreviations)
        start = bytes(unit.info[: header.first])
        if header.version == _FIVE:  # length, version, kind, size of addresses, and no id
            start = start[:6] + bytes((_COMPILE_UNIT,)) + start[7:8] + bytes(_LENGTH)
        else:
            start = start[:6] + bytes(_LENGTH) + start[10:]
        fields = [(STMT_LIST, SEC_OFFSET, bytes(_LENGTH))]
        if NAME in attributes:
            fields.append((NAME, attributes[NAME].form, attributes[NAME].raw))
        if low_index is not None and low_index < _INDEX_LIMIT:
            fields.append((LOW_PC, ADDRX3, self._three(low_index)))
        if folder_index < _INDEX_LIMIT:
            fields.append((COMP_DIR, STRX3, self._three(folder_index)))
        code = _first_leb(old.head)
        fields = self._fitted(fields, entry_end - len(start) - len(code))
        declaration = old.head + b"".join(_leb(name) + _leb(form) for name, form, _ in fields)
        if low_index is None:  # without either, the unit's code counts as removed
            declaration += _leb(RANGES) + _leb(IMPLICIT_CONST) + _signed_leb(0)
        language = attributes.get(LANGUAGE)
        if language is not None and isinstance(language.value, int):
            declaration += _leb(LANGUAGE) + _leb(IMPLICIT_CONST) + _signed_leb(language.value)
        table = unit.abbreviations
        others = bytes(table[header.abbreviations : old.start]) + bytes(table[old.end :])
        entry = code + b"".join(raw for _, _, raw in fields)
        return start + entry + bytes(unit.info[entry_end:]), declaration + b"\0\0" + others

    def _fitted(self, fields: list[_Field], room: int) -> list[_Field]:
        """Return the fields that fit, the first one at least, and padding: ``room`` bytes."""
        fitted = []
        for field in fields:
            if len(field[2]) <= room:
                fitted.append(field)
                room -= len(field[2])
        if fields[0] not in fitted or room > _SHORT_LIMIT:
            raise DwarfError("first entry of another size", source=self._main.source, offset=0)
        if room > _BYTE_LIMIT:
            size = (room - 2).to_bytes(2, "little" if self._little else "big")
            fitted.append((_PADDING, BLOCK2, size + bytes(room - 2)))
        elif room:
            fitted.append((_PADDING, BLOCK1, bytes((room - 1,)) + bytes(room - 1)))
        return fitted

    def _three(self, number: int) -> bytes:
        return number.to_bytes(3, "little" if self._little else "big")

    def _file(self, sections: dict[str, bytes]) -> bytearray:
        """Return an ELF file with the sections, at the image's addresses."""
        image, layout = self._main.image, self._main.image.layout
        order, wide = layout.byte_order, layout.is_64
        head = bytearray(self._main.data[: 64 if wide else 52])
        names = b"\0" + b"".join(name.encode() + b"\0" for name in sections) + b".shstrtab\0"
        program = Struct(f"{order}IIQQQQQQ" if wide else f"{order}IIIIIIII")
        section = Struct(f"{order}IIQQQQIIQQ" if wide else f"{order}10I")
        base = image.header_svma
        load = (
            (PT_LOAD, PF_R | PF_X, 0, base, base, 0, 0, 1)
            if wide
            else (PT_LOAD, 0, base, base, 0, 0, PF_R | PF_X, 1)
        )
        data = head + program.pack(*load)
        rows = [section.pack(*([0] * 10))]
        for name, content in [*sections.items(), (".shstrtab", names)]:
            kind = _STRTAB if name == ".shstrtab" else _PROGBITS
            at = names.index(name.encode() + b"\0")
            rows.append(section.pack(at, kind, 0, 0, len(data), len(content), 0, 0, 1, 0))
            data += content
        table = len(data)
        data += b"".join(rows)
        places = Struct(f"{order}QQ" if wide else f"{order}II")
        places.pack_into(data, 32 if wide else 28, len(head), table)
        Struct(f"{order}6H").pack_into(
            data, 52 if wide else 40, len(head), program.size, 1, section.size, len(rows),
            len(rows) - 1,
        )  # fmt: skip
        return data


def _first_leb(data: bytes) -> bytes:
    """Return the LEB128 that ``data`` begins with, as stored."""
    return data[: next((at for at, byte in enumerate(data) if byte < 0x80), len(data)) + 1]  # noqa: PLR2004


def _leb(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:  # noqa: PLR2004
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def _signed_leb(number: int) -> bytes:
    encoded = bytearray()
    while not -0x40 <= number < 0x40:  # noqa: PLR2004
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number & 0x7F))


def address_ends(skeletons: Sequence[SkeletonUnit], size: int) -> list[int]:
    """Return where each unit's addresses end in a ``.debug_addr`` of ``size`` bytes, at most."""
    bases = sorted({skeleton.address_base for skeleton in skeletons})
    following = dict(zip(bases, [*bases[1:], size], strict=True))
    return [following[skeleton.address_base] for skeleton in skeletons]


_END = 1 << 32
"""Beyond all offsets in an index."""


def split_index(
    file: DebugFile, cache: IndexCache, search: ImageResolver, image: BinaryImage
) -> SplitIndex | None:
    """Return the index of a file with skeleton units; None if it has none.

    Args:
        file: the image's debug information.
        cache: has indices.
        search: has the image's file, and the folders to search for units.
        image: the image.

    Raises:
        DebugInformationError: no index can be built of the file itself.
    """
    record = SearchRecord()
    files = SplitFiles(file, search, image, record)
    return SplitIndex(file, files, record, cache) if files.skeletons else None


class SplitIndex(PartsIndex):
    """The index of a linked file, and over the units that were split from it.

    Code of a unit that cannot be read has what the linked file itself has.
    """

    missing = "source lines of a split unit are missing"
    remedy = "keep the .dwo files where they were compiled, or pass their folder with --search"

    def __init__(
        self, file: DebugFile, files: SplitFiles, record: SearchRecord, cache: IndexCache
    ) -> None:
        """Build the index of the linked file itself, and open no unit yet."""
        contents = file.contents
        assert contents.format is ImageFormat.ELF  # noqa: S101 - only these have skeletons
        self._file, self._files, self._main = file, files, cache.symcache(file)
        self._joiner = UnitJoiner(contents, files.reader)
        size = len(files.reader.read(".debug_addr"))
        self._address_ends = address_ends(files.skeletons, size)
        base = contents.image.header_svma
        rows = sorted(
            (start - base, end - base, number)
            for number, skeleton in enumerate(files.skeletons)
            for start, end in skeleton.ranges
            if base <= start and (start or base) and end - base < _END
        )
        starts, ends, numbers = _disjoint(rows)
        self._starts, self._ends, self._units = starts, ends, numbers
        edges = np.ravel(np.column_stack([starts, ends]))
        owners = np.ravel(np.column_stack([numbers, np.full(len(numbers), -1, np.int32)]))
        super().__init__(file.path, cache, edges, owners, len(files.skeletons))
        self.record = record
        between = np.concatenate([np.zeros(1, np.uint64), ends])
        self._use_own(between, np.concatenate([starts, np.full(1, _END, np.uint64)]))

    def _open(self, number: int) -> OpenedPart | None:
        skeleton = self._files.skeletons[number]
        own = self._units == number
        starts, ends = self._starts[own], self._ends[own]
        unit = self._files.unit(skeleton)
        if unit is not None:
            try:
                data = self._joiner.joined(skeleton, unit, self._address_ends[number])
            except (FormatError, MemoryReadError) as error:
                self.record.add(skeleton.file_name, Outcome.MALFORMED, str(error))
            else:
                moved = MovedFunctions(linked=starts, sizes=ends - starts, stated=starts)
                return ObjectBytes(skeleton.file_name, data), moved
        self._use_own(starts, ends)
        return None

    def _use_own(self, starts: npt.NDArray[np.uint64], ends: npt.NDArray[np.uint64]) -> None:
        """Use the linked file's own index between offsets."""
        some = starts < ends
        linked, sizes = starts[some], (ends - starts)[some]
        self._merge([(self._main, MovedFunctions(linked=linked, sizes=sizes, stated=linked))])

    def _new_index(self, tables: MergedTables) -> DebugIndex:
        return DebugIndex(tables, moved=self._file.source_paths.now)


def _disjoint(
    rows: Sequence[tuple[int, int, int]],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """Return starts, ends and units of sorted ranges; of two that overlap, the first's bytes."""
    starts, ends, units = [], [], []
    last = 0
    for start, end, unit in rows:
        if end > last:
            starts.append(max(start, last))
            ends.append(end)
            units.append(unit)
            last = end
    return np.array(starts, np.uint64), np.array(ends, np.uint64), np.array(units, np.int32)
