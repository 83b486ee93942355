"""The cost of a file is bounded by its size, whatever its headers claim."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import machtrace.formats.elf.headers
from machtrace.errors import ElfError
from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents, decompress_section
from machtrace.formats.elf.plt import parse_stubs
from machtrace.formats.elf.structs import LAYOUTS
from machtrace.model.address import Avma, Svma
from machtrace.model.memory import MemoryRegion
from machtrace.symbols.elf import _code_ranges, elf_symbol_table

Build = Callable[[str], Path]
LAYOUT = LAYOUTS[2, 1]
FIELDS = {"address": 16, "size": 32, "entry size": 56}
"""Offsets in ``Elf64_Shdr``."""
EMPTY_NOTE = struct.pack("<III", 0, 0, 1)
BUILD_ID_NOTE = struct.pack("<III4s8s", 4, 8, 3, b"GNU", b"\x01\x02\x03\x04\x05\x06\x07\x08")


def _changed(path: Path, section: str, field: str, value: int) -> ElfFileContents:
    data = bytearray(path.read_bytes())
    image = ElfFileContents(bytes(data), "whole").image
    index = [found.name for found in image.sections].index(section)
    at = image.header.section_headers_offset + index * image.header.section_header_size
    struct.pack_into("<Q", data, at + FIELDS[field], value)
    return ElfFileContents(bytes(data), "changed")


def _file_of_notes(notes: bytes, ranges: list[tuple[int, int]]) -> bytes:
    """Build a file with a section for each of ``ranges``, (offset in ``notes``, size)."""
    start = 64
    header = struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, start + len(notes), 0, 64, 56, 0, 64, len(ranges), 0
    )
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, 7, 0, 0, start + offset, size, 0, 0, 4, 0)
        for offset, size in ranges
    )
    return b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + header + notes + sections


def _memory_of_notes(notes: bytes, sizes: list[int]) -> bytes:
    """Build an image loaded at 0, with a note segment for each of ``sizes``."""
    start = 64 + 56 * (len(sizes) + 1)
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(sizes) + 1, 64, 0, 0)
    whole = start + len(notes)
    segments = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, whole, whole, 4096) + b"".join(
        struct.pack("<IIQQQQQQ", 4, 4, start, start, start, size, size, 4) for size in sizes
    )
    return b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + header + segments + notes


@pytest.fixture
def notes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each range of notes that is searched."""
    searched: list[int] = []
    read_notes = machtrace.formats.elf.headers.read_notes

    def counted(data: memoryview, *arguments: object, **options: object) -> object:
        searched.append(len(data))
        return read_notes(data, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(machtrace.formats.elf.headers, "read_notes", counted)
    return searched


def test_the_notes_of_a_file_are_searched_to_a_total_limit(notes_read: list[int]) -> None:
    """Fifty sections of a megabyte, each a little shorter than the last."""
    notes = EMPTY_NOTE * 87_000
    data = _file_of_notes(notes, [(0, len(notes) - 12 * index) for index in range(50)])
    assert ElfFileContents(data, "notes").image.build_id is None
    assert 0 < sum(notes_read) <= 1 << 16


def test_notes_shared_by_sections_are_searched_once(notes_read: list[int]) -> None:
    """Those of another section are still searched."""
    notes = EMPTY_NOTE * 1000 + BUILD_ID_NOTE
    last = (len(notes) - len(BUILD_ID_NOTE), len(BUILD_ID_NOTE))
    data = _file_of_notes(notes, [(0, 12_000)] * 50 + [last])
    build_id = ElfFileContents(data, "notes").image.build_id
    assert build_id is not None
    assert bytes(build_id.value) == bytes(range(1, 9))
    assert notes_read == [12_000, len(BUILD_ID_NOTE)]


def test_the_notes_in_memory_are_searched_to_a_total_limit(notes_read: list[int]) -> None:
    notes = EMPTY_NOTE * 20_000
    data = _memory_of_notes(notes, [len(notes) - 12 * index for index in range(50)])
    memory = MemoryRegion(Avma(0x10000), data)
    assert ElfMemoryContents(memory, Avma(0x10000), "notes").image.build_id is None
    assert 0 < sum(notes_read) <= 1 << 16


@pytest.mark.peer
@pytest.mark.parametrize("name", [".plt", ".text", ".dynsym", ".eh_frame_hdr"])
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("address", 2**64 - 1, "beyond the end of the address space"),
        ("size", 2**64 - 1, "beyond the end of the address space"),
        ("entry size", 2**63, "has entries of 9223372036854775808 bytes"),
        ("entry size", 2**64 - 1, "has entries of 18446744073709551615 bytes"),
    ],
)
def test_a_section_of_impossible_numbers_is_refused(
    build: Build, name: str, field: str, value: int, message: str
) -> None:
    """Before anything computes with them in 64 bits."""
    with pytest.raises(ElfError, match=message):
        elf_symbol_table(_changed(build("x86_64"), name, field, value))


@pytest.mark.peer
def test_a_segment_that_ends_with_the_address_space_is_refused(build: Build) -> None:
    """Its end does not fit in the 64 bits of a column; this file has no sections."""
    data = bytearray(build("x86_64").read_bytes())
    image = ElfFileContents(bytes(data), "whole").image
    index = next(number for number, found in enumerate(image.segments) if found.is_executable)
    at = image.header.program_headers_offset + index * image.header.program_header_size
    struct.pack_into("<Q", data, at + 40, 2**64 - image.segments[index].address)
    struct.pack_into("<Q", data, 40, 0)  # e_shoff
    with pytest.raises(ElfError, match="beyond the end of the address space"):
        elf_symbol_table(ElfFileContents(bytes(data), "changed"))


@pytest.mark.peer
def test_stubs_end_with_their_section(build: Build) -> None:
    """The size that the section states is ignored."""
    contents = _changed(build("x86_64"), ".plt", "entry size", 1000)
    section = contents.image.section(".plt")
    assert section is not None
    stubs = parse_stubs(contents)
    assert len(stubs)
    assert int((stubs.addresses + stubs.sizes).max()) <= section.end


@pytest.mark.peer
def test_code_beyond_the_address_space_has_no_bounds(build: Build) -> None:
    """Such values, which the reader of headers refuses, raise nothing in the table either."""
    contents = ElfFileContents(build("x86_64").read_bytes(), "whole")
    image = contents.image
    sections = tuple(
        replace(section, address=Svma(2**64 + 0x1000)) if section.name == ".plt" else section
        for section in image.sections
    )
    kept, _ = _code_ranges(replace(image, sections=sections))
    whole, _ = _code_ranges(image)
    assert len(kept) == len(whole) - 1


def _packed(size: int, content: bytes) -> memoryview:
    return memoryview(struct.pack("<IIQQ", 1, 0, size, 1) + content)


def test_a_compressed_section_above_the_limit_is_refused_unread() -> None:
    """256 MiB and a byte, with enough input for it; nothing is allocated."""
    size = (256 << 20) + 1
    hostile = _packed(size, bytes(size // 1032 + 1))
    tracemalloc.start()
    try:
        with pytest.raises(ElfError, match="above the limit of 268435456") as caught:
            decompress_section(hostile, LAYOUT, "hostile")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert "objcopy" in str(caught.value.remedy)


def test_decompression_needs_memory_for_one_copy() -> None:
    """16 MiB take little more than that."""
    plain = bytes(range(256)) * (1 << 16)
    packed = _packed(len(plain), zlib.compress(plain, 1))
    tracemalloc.start()
    try:
        plain_again = decompress_section(packed, LAYOUT, "packed")
        assert tracemalloc.get_traced_memory()[1] < len(plain) + (2 << 20)
    finally:
        tracemalloc.stop()
    assert plain_again == plain
    assert plain_again.readonly


@pytest.mark.parametrize("claimed", [0, 1, 99_999, 100_000, 100_001])
@pytest.mark.parametrize("cut", [0, 1, 50])
def test_a_compressed_section_is_as_long_as_it_claims(claimed: int, cut: int) -> None:
    """A longer one is truncated; a shorter or truncated one is an error."""
    plain = bytes(n * n // 7 & 0xFF for n in range(1000)) * 100
    content = zlib.compress(plain, 9)
    content = content[: len(content) - cut]
    available = len(zlib.decompressobj().decompress(content))
    if claimed > available:
        with pytest.raises(ElfError, match=f"to {available} bytes, expected {claimed}"):
            decompress_section(_packed(claimed, content), LAYOUT, "packed")
    else:
        assert decompress_section(_packed(claimed, content), LAYOUT, "packed") == plain[:claimed]
