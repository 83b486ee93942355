"""ELF files in the emulator: relocated pointers, imports, function starts and names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.dwarf.frame_index import build_index
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.eh_frame_hdr import DescribedCode, eh_frame_section
from machtrace.formats.elf.plt import parse_stubs
from machtrace.formats.elf.structs import SHT_DYNSYM, SHT_RELA, ElfType
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols, parse_symbols
from machtrace.formats.go_images import elf_go_functions
from machtrace.model.address import Svma
from machtrace.unwinder.rules import Lost, RegisterOffset, UnwindRule
from machtrace.unwinder.sources.cfi import CallFrameRules
from tests.support.published.image import (
    ANY_IMPORT,
    Addresses,
    LoadedSegment,
    PublishedImage,
    import_addresses,
    slide_of,
)
from tests.support.published.macho import write_words

_PLT_SECTIONS = (".plt", ".plt.sec", ".plt.got", ".iplt")
_SHT_RELR = 19
_LANDING = 4
"""Bytes of ``endbr64`` or ``bti``, after which ``_start`` states that it has no caller."""
_WRITABLE, _EXECUTABLE = 2, 1
_RELATIVE = (8, 1027)
"""``R_X86_64_RELATIVE`` and ``R_AARCH64_RELATIVE``."""
_INDIRECT = (37, 1032)
"""``IRELATIVE``: a function selects the target."""
_SYMBOLIC = (1, 6, 7, 257, 1025, 1026)
"""``64``, ``GLOB_DAT`` and ``JUMP_SLOT`` of x86-64, then of AArch64."""
_RELOCATION = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])


def load_elf(contents: ElfFileContents, name: str) -> PublishedImage:
    """Load an ELF file; see :func:`tests.support.published.image.load`."""
    image = contents.image
    slide = slide_of(image.header_svma, is_movable=image.type is ElfType.SHARED)
    segments = []
    for segment in image.load_segments:
        data = bytearray(segment.memory_size)
        data[: segment.file_size] = contents.read_file(segment.offset, segment.file_size)
        segments.append(
            LoadedSegment(
                segment.address + slide,
                data,
                is_writable=bool(segment.flags & _WRITABLE),
                is_executable=bool(segment.flags & _EXECUTABLE),
            )
        )
    imports = _write_pointers(contents, segments, slide)
    tables = [parse_symbols(contents), parse_dynamic_symbols(contents)]
    stubs = parse_stubs(contents)
    return PublishedImage(
        contents=contents,
        name=name,
        slide=slide,
        segments=segments,
        code=tuple((low + slide, high + slide) for low, high in image.code_ranges),
        starts=_starts(contents, tables, slide),
        stub_names={
            int(address) + slide: stubs.name(row)
            for row, address in enumerate(stubs.addresses.tolist())
        },
        stub_ranges=tuple(
            (section.address + slide, section.end + slide)
            for section in image.sections
            if section.name in _PLT_SECTIONS
        ),
        import_names=imports,
        names=dict(_names(contents, tables, slide)),
        is_part=_part_test(contents, slide),
        is_go=image.section(".gopclntab") is not None,
    )


def _write_pointers(
    contents: ElfFileContents, segments: list[LoadedSegment], slide: int
) -> dict[int, str]:
    """Write the image's pointers as the loader would; return the names of imports."""
    symbols = parse_dynamic_symbols(contents)
    texts = tuple(symbols.names(range(len(symbols)))) if len(symbols) else ()
    addresses, names = import_addresses(texts)
    defined = symbols.is_defined
    values = np.where(defined, symbols.addresses + np.uint64(slide), addresses)
    imported = {
        address: text
        for (address, text), is_defined in zip(names.items(), defined.tolist(), strict=True)
        if text and not is_defined
    }
    for places, targets in _relocated(contents, values, slide):
        for segment in segments:
            last = len(segment.data) - 8
            if last >= 0:
                offsets = places - np.uint64(segment.address - slide)
                mine = offsets <= np.uint64(last)  # those before the segment wrap
                write_words(np.frombuffer(segment.data, np.uint8), offsets[mine], targets[mine])
    return imported


def _relocated(
    contents: ElfFileContents, values: Addresses, slide: int
) -> Iterator[tuple[Addresses, Addresses]]:
    """Yield Svmas of pointers and what they are to hold."""
    image = contents.image
    for section in image.sections:
        if section.type == _SHT_RELR and section.has_bytes:
            words = np.frombuffer(contents.read_section(section), "<u8").tolist()
            places = np.array(list(_relr_places(words)), np.uint64)
            yield places, _words_at(contents, places) + np.uint64(slide)
        if section.type != SHT_RELA or not section.has_bytes:
            continue
        is_dynamic = section.link < len(image.sections) and (
            image.sections[section.link].type == SHT_DYNSYM
        )
        data = contents.read_section(section)
        rows = np.frombuffer(data[: len(data) // 24 * 24], _RELOCATION)
        kinds = rows["info"] & np.uint64(0xFFFFFFFF)
        addends = rows["addend"].astype(np.uint64)
        relative = np.isin(kinds, _RELATIVE)
        yield rows["offset"][relative], addends[relative] + np.uint64(slide)
        indirect = np.isin(kinds, _INDIRECT)
        yield rows["offset"][indirect], np.full(int(indirect.sum()), ANY_IMPORT, np.uint64)
        if is_dynamic and len(values):
            symbolic = np.isin(kinds, _SYMBOLIC)
            numbers = (rows["info"][symbolic] >> np.uint64(32)).astype(np.int64)
            yield rows["offset"][symbolic], values[numbers] + addends[symbolic]


def _relr_places(words: list[int]) -> Iterator[int]:
    """Yield addresses of relative relocations in their packed form (gABI, ``SHT_RELR``)."""
    place = 0
    for word in words:
        if word & 1 == 0:
            yield word
            place = word + 8
        else:
            yield from (place + 8 * bit for bit in range(63) if word >> (bit + 1) & 1)
            place += 63 * 8


def _words_at(contents: ElfFileContents, places: Addresses) -> Addresses:
    def word(place: int) -> int:
        try:
            return int.from_bytes(contents.read_svma(Svma(place), 8), "little")
        except MemoryReadError:
            return 0

    return np.array([word(place) for place in places.tolist()], np.uint64)


def _starts(contents: ElfFileContents, tables: list[SymbolRows], slide: int) -> Addresses:
    columns: list[npt.NDArray[np.uint64]] = [
        table.addresses[table.is_function & table.is_defined] for table in tables
    ]
    columns.append(np.asarray(DescribedCode(contents).starts, np.uint64))
    section = eh_frame_section(contents, None)
    if section is not None:
        columns.append(build_index(section).starts)
    go = elf_go_functions(contents)
    if go is not None:
        columns.append(go.starts)
    starts = np.unique(np.concatenate(columns))
    ranges = contents.image.code_ranges
    in_code = np.zeros(len(starts), np.bool_)
    for low, high in ranges:
        in_code |= (starts >= low) & (starts < high)
    # What precedes the first known function of a section is code, too.
    lows = np.array([low for low, _ in ranges], np.uint64)
    return np.unique(np.concatenate([starts[in_code], lows])) + np.uint64(slide)


def _names(
    contents: ElfFileContents, tables: list[SymbolRows], slide: int
) -> Iterator[tuple[int, str]]:
    go = elf_go_functions(contents)
    if go is not None:
        yield from ((start + slide, go.name(row)) for row, start in enumerate(go.starts.tolist()))
    for table in tables:
        rows = np.flatnonzero(table.is_function & table.is_defined)
        for address, text in zip(
            table.addresses[rows].tolist(), table.names(rows.tolist()), strict=True
        ):
            yield address + slide, text


def _part_test(contents: ElfFileContents, slide: int) -> Callable[[int], bool]:
    """Return a test whether a start is a part of another function, by its CFI's first row.

    Or a function without a caller, such as ``_start``.
    """
    arch = contents.image.arch
    frames = CallFrameRules.of_elf(contents)
    entry = RegisterOffset(arch.registers.sp, 0 if arch.is_arm64 else 8)

    def rule_at(address: int) -> UnwindRule | None:
        try:
            return None if frames is None else frames.rule_for(Svma(address), interrupted=True)
        except (FormatError, MemoryReadError):
            return None

    def is_part(start: int) -> bool:
        rule, next_rule = rule_at(start - slide), rule_at(start - slide + _LANDING)
        if rule is None:
            return False
        if next_rule is not None and isinstance(next_rule.return_address, Lost):
            return True
        return rule.cfa != entry or bool(rule.registers)

    return is_part
