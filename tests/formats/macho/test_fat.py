"""Fat files: made by lipo, made by hand, and malformed ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fat import is_fat, parse_slices
from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_X86_64
from machtrace.model.arch import Arch
from tests.support.writers.macho import BuiltSlice, ThinFile, fat_file

Llvm = Callable[..., str]

THIN = ThinFile().build()
SIZE = len(THIN)
FIRST = 0x4000
SECOND = 0x8000


@pytest.fixture(params=["-create", "-create -fat64"])
def lipo_file(
    request: pytest.FixtureRequest,
    llvm: Llvm,
    tmp_path: Path,
    zig_arm64: Path,
    zig_x86_64: Path,
    armv7_object: Path,
) -> Path:
    """A fat file of three architectures, with 32-bit or 64-bit offsets."""
    path = tmp_path / "fat"
    options = request.param.split()
    llvm("llvm-lipo", *options, zig_arm64, zig_x86_64, armv7_object, "-output", path)
    return path


@pytest.mark.peer
def test_slices_of_lipo_files_equal_the_input_files(
    lipo_file: Path, zig_arm64: Path, zig_x86_64: Path, armv7_object: Path
):
    slices = {part.arch: part for part in parse_slices(lipo_file.read_bytes(), "fat")}

    assert {arch: bytes(part.data) for arch, part in slices.items()} == {
        Arch.ARM64: zig_arm64.read_bytes(),
        Arch.X86_64: zig_x86_64.read_bytes(),
        Arch.ARMV7: armv7_object.read_bytes(),
    }


@pytest.mark.peer
def test_slices_have_the_names_and_offsets_of_objdump(lipo_file: Path, llvm: Llvm):
    """The names are valid for ``--arch``."""
    listed = llvm("llvm-objdump", "--macho", "--universal-headers", lipo_file)
    theirs = re.findall(r"(?:architecture|    offset|    size) (\S+)", listed)
    mine = [
        str(value)
        for part in parse_slices(lipo_file.read_bytes(), "fat")
        for value in (part.arch_name, part.offset, part.size)
    ]

    assert mine == theirs


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("little_endian", [False, True])
def test_both_widths_in_both_byte_orders(*, wide: bool, little_endian: bool):
    other = ThinFile(cputype=CPU_TYPE_X86_64, cpusubtype=3).build()
    data = fat_file(
        [
            BuiltSlice(CPU_TYPE_X86_64, 3, SECOND, len(other)),
            BuiltSlice(CPU_TYPE_ARM64, 2, FIRST, SIZE),
        ],
        [(FIRST, THIN), (SECOND, other)],
        wide=wide,
        little_endian=little_endian,
    )
    slices = parse_slices(data, "fat")

    assert [(part.arch, part.offset) for part in slices] == [
        (Arch.X86_64, SECOND),
        (Arch.ARM64E, FIRST),
    ]
    assert [bytes(part.data) for part in slices] == [other, THIN]


def test_arm64e_is_recognised_with_any_version_of_its_abi():
    """The top byte of its subtype versions pointer authentication."""
    for subtype in (0x2, 0x80000002, 0x81000002, 0xC0000002):
        data = fat_file([BuiltSlice(CPU_TYPE_ARM64, subtype, FIRST, SIZE)], [(FIRST, THIN)])
        assert parse_slices(data, "fat")[0].arch is Arch.ARM64E


@pytest.mark.peer
def test_a_thin_file_is_one_slice(zig_arm64: Path):
    data = zig_arm64.read_bytes()
    (only,) = parse_slices(data, "thin")

    assert (only.arch, only.offset, only.size) == (Arch.ARM64, 0, len(data))
    assert MachOFileContents(only.data, "thin").image.arch is Arch.ARM64


@pytest.mark.parametrize("version", [45, 52, 65])
def test_a_java_class_is_not_a_fat_file(version: int):
    """It starts with the same four bytes; minor and major version follow."""
    data = b"\xca\xfe\xba\xbe" + version.to_bytes(4, "big") + bytes(1000)

    assert not is_fat(data)
    with pytest.raises(MachOError, match="not a Mach-O"):
        parse_slices(data, "Main.class")


@pytest.mark.parametrize(
    ("slices", "complaint"),
    [
        pytest.param([(FIRST, 0x200), (FIRST + 0x100, 0x200)], "inside the arm64", id="overlap"),
        pytest.param([(FIRST, 0x800), (FIRST + 0x100, 0x200)], "inside the arm64", id="nested"),
        pytest.param([(FIRST, 0x200), (FIRST, 0x200)], "inside the arm64", id="the same"),
        pytest.param([(SECOND, 0x200), (SECOND - 4, 8)], "inside the arm64", id="out of order"),
        pytest.param([(16, 0x200)], "inside the fat header", id="over the header"),
        pytest.param([(0, 0x200)], "inside the fat header", id="the file itself"),
        pytest.param([(FIRST, 0x7FFFFFFF)], "ends at 0x80003fff, the file at", id="overrun"),
        pytest.param([(0x7FFFFFFF, 4)], "ends at 0x80000003, the file at", id="beyond the end"),
    ],
)
@pytest.mark.parametrize("wide", [False, True])
def test_impossible_slices_are_refused(
    slices: list[tuple[int, int]], complaint: str, *, wide: bool
):
    rows = [BuiltSlice(CPU_TYPE_ARM64, 0, offset, size) for offset, size in slices]
    data = fat_file(rows, [(FIRST, THIN), (SECOND, THIN)], wide=wide)

    with pytest.raises(MachOError, match=complaint) as caught:
        parse_slices(data, "bad")
    assert "bad at 0x" in str(caught.value)
    assert caught.value.remedy


def test_offsets_near_the_end_of_64_bits_do_not_wrap():
    """Offset and size of a 64-bit row add up to more than any file."""
    rows = [BuiltSlice(CPU_TYPE_ARM64, 0, 2**64 - 1, 2)]

    with pytest.raises(MachOError, match="the file at"):
        parse_slices(fat_file(rows, [(FIRST, THIN)], wide=True), "bad")


def test_a_slice_that_is_not_mach_o_is_reported_by_kind():
    """A fat static library's slices are archives."""
    rows = [BuiltSlice(CPU_TYPE_ARM64, 0, FIRST, 64)]

    with pytest.raises(MachOError, match="the arm64 slice holds no Mach-O") as caught:
        parse_slices(fat_file(rows, [(FIRST, b"!<arch>\n".ljust(64))]), "lib.a")
    assert caught.value.offset == FIRST


@pytest.mark.parametrize("count", [0, 2**31, 2**32 - 1])
def test_an_impossible_count_is_refused_before_a_row_is_read(count: int):
    data = b"\xca\xfe\xba\xbf" + count.to_bytes(4, "big") + bytes(100)

    with pytest.raises(MachOError, match="slices"):
        parse_slices(data, "bad")
