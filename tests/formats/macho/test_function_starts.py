"""Function starts: as llvm-objdump reads them, and in every encoding of a list of distances."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.header import CPU_TYPE_ARM
from machtrace.formats.macho.tables.function_starts import (
    decode_function_starts,
    decode_with_numpy,
    parse_function_starts,
)
from tests.support.writers.function_lists import uleb
from tests.support.writers.macho import ThinFile

Llvm = Callable[..., str]


@pytest.mark.peer
@pytest.mark.parametrize("fixture", ["lld_arm64", "lld_x86_64"])
def test_function_starts_equal_the_ones_objdump_lists(
    fixture: str, request: pytest.FixtureRequest, llvm: Llvm
):
    """The linker wrote one for each function."""
    path: Path = request.getfixturevalue(fixture)
    listed = llvm("llvm-objdump", "--macho", "--function-starts=addrs", path).splitlines()
    theirs = [int(line, 16) for line in listed if not line.endswith(":")]
    contents = MachOFileContents(path.read_bytes(), str(path))

    assert len(theirs) == 2
    assert parse_function_starts(contents).offsets.tolist() == theirs
    assert not parse_function_starts(contents).thumb


@pytest.mark.peer
def test_an_image_without_function_starts_has_none(zig_arm64: Path):
    """The linker of zig writes the command, and no data."""
    contents = MachOFileContents(zig_arm64.read_bytes(), str(zig_arm64))

    assert contents.image.function_starts is not None
    assert len(parse_function_starts(contents)) == 0


@given(st.lists(st.integers(1, 2**40), max_size=200), st.integers(0, 20))
def test_any_encoded_distances_decode_to_their_sums(distances: list[int], padding: int):
    """The distances have any sizes; with or without padding."""
    data = b"".join(map(uleb, distances)) + bytes(padding)
    sums = [sum(distances[: count + 1]) for count in range(len(distances))]

    assert decode_function_starts(data, "test").tolist() == sums


def test_distances_may_have_leading_zeros():
    """ULEB128 allows them up to the length of a 64-bit number."""
    data = b"\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00" + b"\x82\x00"

    assert decode_function_starts(data, "test").tolist() == [1, 3]


def test_bytes_after_the_end_are_ignored():
    """A distance of 0 ends the list; padding of any bytes follows."""
    assert decode_function_starts(b"\x10\x00" + b"\xff" * 30, "test").tolist() == [16]


def test_distances_of_more_than_64_bits_are_refused():
    most = b"\xff" * 9 + b"\x01"
    assert decode_function_starts(most, "test").tolist() == [2**64 - 1]
    for wrong in (b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01", most + b"\x01"):
        with pytest.raises(MachOError, match="64 bits"):
            decode_function_starts(wrong, "test")


def test_the_error_for_a_truncated_distance_has_its_index_and_offset():
    with pytest.raises(MachOError, match=r"function 2 is cut short: test at 0x3"):
        decode_function_starts(b"\x01\x82\x01\x80\x80", "test")


def test_thumb_functions_have_even_addresses():
    """On arm the lowest bit of a start is not part of the address."""
    starts = uleb(0x401) + uleb(0x10) + uleb(0x0F)
    file = ThinFile(cputype=CPU_TYPE_ARM, cpusubtype=9, is_64=False, function_starts=starts)
    found = parse_function_starts(MachOFileContents(file.build(), "built"))

    assert found.offsets.tolist() == [0x400, 0x410, 0x420]
    assert found.thumb == {0x400, 0x410}


def test_a_table_outside_the_file_is_an_error():
    data = bytearray(ThinFile(function_starts=b"\x01").build())
    command = next(
        c
        for c in MachOFileContents(bytes(data), "f").image.commands
        if c.name == "LC_FUNCTION_STARTS"
    )
    data[command.offset + 12 : command.offset + 16] = (1 << 30).to_bytes(4, "little")

    with pytest.raises(MachOError, match="function starts should be 1073741824 bytes"):
        parse_function_starts(MachOFileContents(bytes(data), "f"))


@settings(deadline=None)  # the first example imports
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=12),
            st.integers(0, 300).map(lambda number: bytes([number & 0x7F | 0x80, number >> 7])),
            st.sampled_from([b"\0", b"\x80\0", b"\xff" * 9 + b"\1", b"\xff" * 9 + b"\2"]),
        ),
        max_size=20,
    ).map(b"".join),
)
def test_c_and_numpy_decode_the_same_starts(table: bytes):
    """C returns None where numpy reports an error."""
    native = pytest.importorskip("machtrace._native._ranges", reason="the extensions are not built")
    starts = native.function_starts(table)
    try:
        expected = decode_with_numpy(table, "").tolist()
    except MachOError:
        expected = None

    assert (None if starts is None else memoryview(starts).cast("Q").tolist()) == expected


def test_without_the_extension_numpy_decodes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "machtrace._native._ranges", None)
    assert decode_function_starts(b"\x10\x20\x00", "test").tolist() == [0x10, 0x30]
    assert decode_function_starts(b"", "test").tolist() == []


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ([], False),
        ([(0, 0x400)], False),
        ([(0x400, 0x401)], True),
        ([(0x401, 0x410)], False),
        ([(0, 0x10), (0x410, 0x420)], True),
        ([(0x411, 0x1000)], False),
        ([(-0x1000, 0x500)], True),
    ],
)
def test_starts_outside_of_code_are_ignored(sections, expected):
    file = ThinFile(function_starts=uleb(0x400) + uleb(0x10))
    starts = parse_function_starts(MachOFileContents(file.build(), "built"))
    assert starts.holds_code(sections) is expected
