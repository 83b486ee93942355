"""Invalid files give a value or a MachtraceError, at a cost bounded by their size."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machtrace.errors import ElfError, MachtraceError, MemoryReadError
from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents, mini_debug_contents
from machtrace.formats.elf.eh_frame_hdr import (
    DescribedCode,
    read_eh_frame_header,
    read_search_table,
)
from machtrace.formats.elf.headers import read_notes
from machtrace.formats.elf.plt import parse_stubs
from machtrace.formats.elf.structs import LAYOUTS
from machtrace.formats.elf.symtab import SymbolRows, parse_dynamic_symbols, parse_symbols
from machtrace.model.address import Avma, Svma
from machtrace.model.memory import MemoryRegion

Build = Callable[[str], Path]
Contents = ElfFileContents | ElfMemoryContents
FILES = ("library", "no-sections", "arm64", "arm64-big-endian", "i386", "arm")


def _read_names(rows: SymbolRows) -> None:
    assert len(rows.addresses) == len(rows.is_function) == len(rows)
    for row in range(min(len(rows), 20)):
        rows.name(row)
    rows.names()


def _stubs(contents: Contents) -> None:
    if isinstance(contents, ElfFileContents):
        stubs = parse_stubs(contents)
        for row in range(min(len(stubs), 5)):
            stubs.name(row)


def _table(contents: Contents) -> None:
    header = read_eh_frame_header(contents)
    if header is not None:
        table = read_search_table(contents, header)
        if table is not None:
            assert len(table.starts) == len(table.offsets) == header.count
            table.find(int(table.starts[0]))


def _sections(contents: Contents) -> None:
    if isinstance(contents, ElfFileContents):
        for section in contents.image.sections:
            contents.read_section(section)


def _described_ends(described: DescribedCode) -> object:
    return described.ends(np.arange(len(described.starts)))


QUESTIONS: tuple[Callable[[Contents], object], ...] = (
    lambda contents: _read_names(parse_symbols(contents)),
    lambda contents: _read_names(parse_dynamic_symbols(contents)),
    _stubs,
    _table,
    _sections,
    mini_debug_contents,
    lambda contents: _described_ends(DescribedCode(contents)),
    lambda contents: (contents.image.size, contents.image.header_svma, contents.image.soname),
)


def _read_all(contents: Contents) -> None:
    """Run every query; each may raise a MachtraceError and nothing else."""
    for question in QUESTIONS:
        try:
            question(contents)
        except MachtraceError:
            continue


@given(st.binary(max_size=300))
def test_random_bytes_are_a_value_or_an_error(data: bytes) -> None:
    """With and without the magic, as a file and as memory."""
    for start in (b"", b"\x7fELF\x02\x01", b"\x7fELF\x01\x02"):
        with contextlib.suppress(ElfError):
            _read_all(ElfFileContents(start + data, "random"))
        with contextlib.suppress(ElfError, MemoryReadError):
            _read_all(ElfMemoryContents(MemoryRegion(Avma(0), start + data), Avma(0), "random"))


def _changed(path: Path, data: st.DataObject) -> bytes:
    changed = bytearray(path.read_bytes())
    # Most of what is read lies at the two ends: headers, notes and tables; section headers.
    places = st.one_of(
        st.integers(0, 0x400), st.integers(-0xC00, -1), st.integers(0, len(changed) - 1)
    )
    numbers = st.one_of(
        st.integers(0, 255).map(lambda n: n.to_bytes(1, "little")),
        st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF]).map(lambda n: n.to_bytes(4, "little")),
        st.sampled_from([2**40, 2**63, 2**64 - 1]).map(lambda n: n.to_bytes(8, "little")),
    )
    for place, number in data.draw(st.lists(st.tuples(places, numbers), max_size=8)):
        begin = place % len(changed)
        changed[begin : begin + len(number)] = number
    if data.draw(st.booleans()):
        del changed[data.draw(st.integers(0, len(changed))) :]
    return bytes(changed)


@pytest.mark.peer
@given(data=st.data())
# The first example of each file compiles it, which takes longer than Hypothesis allows an example.
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_real_files_with_changed_bytes_are_a_value_or_an_error(
    build: Build, data: st.DataObject
) -> None:
    """Six kinds of files, as files and as memory."""
    changed = _changed(build(data.draw(st.sampled_from(FILES))), data)
    with contextlib.suppress(ElfError):
        _read_all(ElfFileContents(changed, "changed"))
    try:
        memory = MemoryRegion(Avma(0x10000), changed)
        _read_all(ElfMemoryContents(memory, Avma(0x10000), "changed"))
    except (ElfError, MemoryReadError):
        pass


@given(st.binary(max_size=200), st.sampled_from([1, 4, 8]))
def test_random_notes_contain_no_more_than_their_bytes(data: bytes, alignment: int) -> None:
    for layout in LAYOUTS.values():
        notes = list(read_notes(data, layout, alignment=alignment))
        assert sum(len(note.description) for note in notes) <= len(data)


@pytest.mark.peer
def test_counts_are_checked_before_anything_is_allocated(build: Build) -> None:
    """A kilobyte that claims 2**32 sections of 2**60 bytes costs a kilobyte."""
    data = bytearray(build("arm64").read_bytes())
    contents = ElfFileContents(bytes(data), "whole")
    at = contents.image.header.section_headers_offset
    data[60:62] = bytes(2)  # e_shnum: the count is in section 0
    data[at + 32 : at + 40] = (2**32).to_bytes(8, "little")
    tracemalloc.start()
    try:
        with pytest.raises(ElfError, match="4294967296 section headers"):
            ElfFileContents(bytes(data), "hostile")
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data) + 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.peer
def test_names_that_overlap_are_refused(build: Build) -> None:
    """A thousand symbols, each named by the rest of the string table."""
    contents = ElfFileContents(build("arm64").read_bytes(), "whole")
    rows = parse_symbols(contents)
    made = rows.rows.copy()
    made.resize(5000)
    made["st_name"] = range(1, 5001)
    hostile = SymbolRows(made, memoryview(b"a" * 5001), contents.image, "hostile")
    with pytest.raises(ElfError, match="names of symbols overlap"):
        hostile.names()
    assert len(hostile.name(0)) == 5000


@pytest.mark.peer
def test_a_table_larger_than_its_header_is_an_error(build: Build) -> None:
    """The count of ``.eh_frame_hdr`` is checked against its size."""
    path = build("arm64")
    contents = ElfFileContents(path.read_bytes(), "whole")
    section = contents.image.section(".eh_frame_hdr")
    assert section is not None
    data = bytearray(path.read_bytes())
    data[section.offset + 8 : section.offset + 12] = b"\xff\xff\xff\x7f"
    broken = ElfFileContents(bytes(data), "broken")
    with pytest.raises(ElfError, match="2147483647 entries, room for"):
        read_eh_frame_header(broken)
    assert not len(DescribedCode(broken).starts)


@pytest.mark.peer
def test_memory_of_claimed_endless_size_is_not_read(build: Build) -> None:
    """Only headers state the size of an image in memory."""
    data = bytearray(build("arm64").read_bytes())
    asked: list[int] = []

    class Endless:
        def read(self, address: Avma, size: int, /) -> bytes:
            asked.append(size)
            return bytes(data[address : address + size]).ljust(size, b"\0")

    at = int.from_bytes(data[32:40], "little")
    for index in range(int.from_bytes(data[56:58], "little")):
        data[at + index * 56 + 40 : at + index * 56 + 48] = (2**62).to_bytes(8, "little")
    contents = ElfMemoryContents(Endless(), Avma(0), "endless")
    with pytest.raises(MemoryReadError):
        contents.read_svma(Svma(0), 2**40)
    _read_all(contents)
    assert max(asked) <= 1 << 20
