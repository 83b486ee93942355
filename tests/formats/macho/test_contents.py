"""Reading a file by its addresses, and an image in a process' memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from machtrace.errors import MachOError, MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
from machtrace.formats.macho.tables.function_starts import parse_function_starts
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.address import Avma, FileOffset, Svma
from machtrace.model.memory import MemoryRegion, RegionMemory
from tests.support.writers.macho import TEXT_OFFSET, BuiltSymbol, ThinFile


class _CountingMemory:
    """A memory that records its reads."""

    def __init__(self, memory: RegionMemory) -> None:
        self._memory = memory
        self.asked: list[tuple[int, int]] = []

    def read(self, address: Avma, size: int, /) -> bytes | memoryview:
        self.asked.append((address, size))
        return self._memory.read(address, size)


def _loaded(path: Path, slide: int) -> tuple[MachOFileContents, _CountingMemory]:
    """Return the file, and a memory with its segments as the loader maps them."""
    contents = MachOFileContents(path.read_bytes(), str(path))
    regions = (
        MemoryRegion(
            Avma(segment.vmaddr + slide),
            bytes(contents.read_file(segment.fileoff, segment.filesize)).ljust(
                min(segment.vmsize, 1 << 20), b"\0"
            ),
        )
        for segment in contents.image.segments
        if segment.initprot
    )
    return contents, _CountingMemory(RegionMemory(regions))


@pytest.mark.peer
@pytest.mark.parametrize("slide", [0, 0x4F0000, -0x1000000 + 0x1000000, 0x7FFE_0000_0000])
def test_memory_and_file_have_the_same_tables(linked_file: Path, slide: int):
    """Tables are found through the segment that contains their file offset."""
    contents, memory = _loaded(linked_file, slide)
    load_address = Avma(contents.image.header_svma + slide)
    loaded = MachOMemoryContents(memory, load_address, "loaded")
    text = contents.image.section("__TEXT", "__text")
    assert text is not None

    assert loaded.slide == slide
    assert loaded.image.uuid == contents.image.uuid
    assert loaded.image.segments == contents.image.segments
    assert loaded.read_svma(text.address, text.size) == contents.read_svma(text.address, text.size)
    mine, theirs = parse_symbols(loaded), parse_symbols(contents)
    assert np.array_equal(mine.rows, theirs.rows)
    assert mine.names() == theirs.names()
    assert [mine.name(row) for row in range(len(mine))] == theirs.names()
    assert np.array_equal(mine.is_code, theirs.is_code)
    starts = parse_function_starts(loaded).offsets
    assert starts == parse_function_starts(contents).offsets


@pytest.mark.peer
def test_an_image_below_its_stated_address_has_a_negative_slide(zig_program: Path):
    """A program may be loaded anywhere."""
    contents, memory = _loaded(zig_program, -0x8000_0000)
    loaded = MachOMemoryContents(memory, Avma(0x8000_0000), "loaded")

    assert loaded.slide == -0x8000_0000
    assert loaded.read_svma(contents.image.header_svma, 4) == b"\xcf\xfa\xed\xfe"


@pytest.mark.peer
def test_only_the_header_is_read_at_first(zig_arm64: Path):
    """Reads from a process are expensive; from a phone they are slow."""
    contents, memory = _loaded(zig_arm64, 0)
    loaded = MachOMemoryContents(memory, Avma(0), "loaded")
    end = contents.image.header.size + contents.image.header.sizeofcmds

    assert all(address + size <= end for address, size in memory.asked)
    del memory.asked[:]
    loaded.read_svma(Svma(TEXT_OFFSET), 16)
    assert memory.asked == [(TEXT_OFFSET, 16)]


def test_only_the_strings_of_its_own_symbols_are_read():
    """Images of a shared cache share one string table of hundreds of megabytes."""
    data = bytearray(ThinFile(symbols=(BuiltSymbol("_f", TEXT_OFFSET),)).build())
    image = MachOFileContents(bytes(data), "f").image
    linkedit = image.segment("__LINKEDIT")
    symtab = next(c for c in image.commands if c.name == "LC_SYMTAB")
    segment = next(c for c in image.commands if c.name == "LC_SEGMENT_64" and c.offset > 40)
    assert linkedit is not None
    huge = 500 << 20
    data[symtab.offset + 20 : symtab.offset + 24] = huge.to_bytes(4, "little")
    for field in (32, 48):
        at = segment.offset + field
        data[at : at + 8] = huge.to_bytes(8, "little")
    memory = _CountingMemory(RegionMemory([MemoryRegion(Avma(0), bytes(data) + bytes(1 << 20))]))
    loaded = MachOMemoryContents(memory, Avma(0), "loaded")

    assert parse_symbols(loaded).names() == ["_f"]
    assert sum(size for _, size in memory.asked) < 1 << 18


@pytest.mark.peer
def test_addresses_outside_of_segments_cannot_be_read(zig_program: Path):
    """Before, between and after them; also offsets beyond the end."""
    contents, memory = _loaded(zig_program, 0)
    loaded = MachOMemoryContents(memory, Avma(contents.image.header_svma), "loaded")
    text = contents.image.text_segment
    assert text is not None
    size = len(contents.data)

    for image in (contents, loaded):
        for address, count in ((1 << 16, 4), (text.end - 2, 4), (2**64 - 2, 1), (text.vmaddr, -1)):
            with pytest.raises(MemoryReadError):
                image.read_svma(Svma(address), count)
        for offset, count in ((size - 2, 4), (2**63, 1), (-1, 1), (0, -1)):
            with pytest.raises(MemoryReadError):
                image.read_file(FileOffset(offset), count)


def test_zero_filled_memory_is_not_in_the_file():
    """A segment's size in memory may be larger than in the file."""
    data = bytearray(ThinFile().build())
    segment = next(c for c in MachOFileContents(bytes(data), "f").image.commands)
    data[segment.offset + 32 : segment.offset + 40] = (1 << 20).to_bytes(8, "little")
    contents = MachOFileContents(bytes(data), "f")

    with pytest.raises(MemoryReadError):
        contents.read_svma(Svma(0x10000), 1)
    assert contents.image.segment_at(Svma(0x10000)) is contents.image.segments[0]


def test_no_header_in_memory_is_an_error_of_its_format_or_of_memory():
    """The two have different remedies."""
    memory = RegionMemory([MemoryRegion(Avma(0x1000), bytes(64)), MemoryRegion(Avma(0x9000), b"a")])

    with pytest.raises(MachOError, match="not a Mach-O"):
        MachOMemoryContents(memory, Avma(0x1000), "zeros")
    with pytest.raises(MemoryReadError):
        MachOMemoryContents(memory, Avma(0x5000), "nothing")
    with pytest.raises(MemoryReadError):
        MachOMemoryContents(memory, Avma(0x9000), "one byte")


@pytest.mark.peer
def test_a_table_that_was_not_captured_is_an_error_of_memory(zig_arm64: Path):
    """It exists but was not captured, unlike a table that no segment contains."""
    contents, _ = _loaded(zig_arm64, 0)
    text = contents.image.text_segment
    assert text is not None
    header = bytes(contents.read_file(FileOffset(0), text.filesize))
    loaded = MachOMemoryContents(
        RegionMemory([MemoryRegion(Avma(0), header)]), Avma(0), "header only"
    )

    with pytest.raises(MemoryReadError):
        parse_symbols(loaded)

    command = next(c for c in contents.image.commands if c.name == "LC_SYMTAB")
    lying = bytearray(header)
    lying[command.offset + 8 : command.offset + 12] = (1 << 30).to_bytes(4, "little")
    loaded = MachOMemoryContents(
        RegionMemory([MemoryRegion(Avma(0), bytes(lying))]), Avma(0), "lying"
    )
    with pytest.raises(MachOError, match="no segment holds all of that"):
        parse_symbols(loaded)
