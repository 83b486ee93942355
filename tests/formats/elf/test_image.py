"""Headers, segments, sections and identities equal those that LLVM reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from machtrace.errors import ElfError, MemoryReadError
from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.formats.elf.structs import ElfType
from machtrace.model.address import Avma, FileOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion, RegionMemory

Llvm = Callable[..., dict[str, Any]]
Build = Callable[[str], Path]

PAGE = 0x1000


def _contents(path: Path) -> ElfFileContents:
    return ElfFileContents(path.read_bytes(), path.name)


def _loaded(contents: ElfFileContents, slide: int) -> RegionMemory:
    """Map the segments into a memory as a loader does, by whole pages."""
    regions = []
    for segment in contents.image.load_segments:
        start = segment.address // PAGE * PAGE
        head = segment.address - start
        data = bytes(contents.read_file(FileOffset(segment.offset - head), head))
        data += bytes(contents.read_svma(segment.address, segment.file_size))
        data += bytes(segment.memory_size - segment.file_size)
        regions.append(MemoryRegion(Avma(start + slide), data))
    return RegionMemory(regions)


@pytest.mark.peer
def test_header_and_segments_equal_llvms(any_file: Path, llvm: Llvm) -> None:
    image = _contents(any_file).image
    theirs = llvm(any_file, "-h", "-l")
    header = theirs["ElfHeader"]
    assert image.header.entry == header["Entry"]
    assert image.type.value == int(header["Type"].rpartition("0x")[2].rstrip(")"), 16)
    assert image.layout.is_64 == (header["Ident"]["Class"]["Value"] == 2)
    assert image.layout.little_endian == (header["Ident"]["DataEncoding"]["Value"] == 1)
    ours = [
        (s.type, s.flags, s.offset, s.address, s.file_size, s.memory_size, s.alignment)
        for s in image.segments
    ]
    assert ours == [
        (
            s["Type"]["Value"],
            s["Flags"]["Value"],
            s["Offset"],
            s["VirtualAddress"],
            s["FileSize"],
            s["MemSize"],
            s["Alignment"],
        )
        for s in (entry["ProgramHeader"] for entry in theirs["ProgramHeaders"])
    ]


@pytest.mark.peer
def test_sections_equal_llvms(any_file: Path, llvm: Llvm) -> None:
    """With their names; a file without section headers has none."""
    image = _contents(any_file).image
    theirs = [entry["Section"] for entry in llvm(any_file, "-S")["Sections"]]
    assert [
        (s.name, s.type, s.flags, s.address, s.offset, s.size, s.link, s.info, s.entry_size)
        for s in image.sections
    ] == [
        (
            s["Name"]["Name"],
            s["Type"]["Value"],
            s["Flags"]["Value"],
            s["Address"],
            s["Offset"],
            s["Size"],
            s["Link"],
            s["Info"],
            s["EntrySize"],
        )
        for s in theirs
    ]
    assert bool(theirs) == (any_file.name != "no-sections")


@pytest.mark.peer
def test_the_build_id_equals_llvms(any_file: Path, peer: Callable[..., str]) -> None:
    """It is read from the note segment, so section headers are not needed."""
    build_id = _contents(any_file).image.build_id
    printed = peer("llvm-readelf", "-n", any_file)
    if any_file.name == "no-sections":
        printed = peer("llvm-readelf", "-n", any_file.with_name("library"))
    assert build_id is not None
    assert f"Build ID: {build_id}" in printed


@pytest.mark.peer
@pytest.mark.parametrize(
    ("name", "arch", "kind"),
    [
        ("pie", Arch.X86_64, ElfType.SHARED),
        ("fixed", Arch.X86_64, ElfType.EXECUTABLE),
        ("arm64", Arch.ARM64, ElfType.SHARED),
        ("arm64-big-endian", Arch.ARM64, ElfType.SHARED),
        ("i386", Arch.I386, ElfType.SHARED),
        ("arm", Arch.ARM, ElfType.SHARED),
        ("arm-big-endian", Arch.ARM, ElfType.SHARED),
    ],
)
def test_arch_and_type(build: Build, name: str, arch: Arch, kind: ElfType) -> None:
    """In the order of the request."""
    if name in ("pie", "fixed") and _contents(build(name)).image.arch is not Arch.X86_64:
        pytest.skip("this machine is not an x86-64")
    image = _contents(build(name)).image
    assert (image.arch, image.type) == (arch, kind)


@pytest.mark.peer
def test_the_soname_is_read_with_and_without_section_headers(build: Build) -> None:
    assert _contents(build("library")).image.soname == "libsample.so.1"
    assert _contents(build("no-sections")).image.soname == "libsample.so.1"
    assert _contents(build("pie")).image.soname is None


@pytest.mark.peer
def test_a_fixed_program_starts_at_its_lowest_page(build: Build) -> None:
    """And it reaches to the first gap in its mappings."""
    image = _contents(build("fixed")).image
    segments = list(image.load_segments)
    assert image.header_svma == min(s.address for s in segments) // PAGE * PAGE > 0
    assert image.header_svma + image.size == max(s.end for s in segments)


def test_the_image_ends_at_a_gap_not_followed_by_code() -> None:
    """The segments are far apart: something else may be mapped between them."""
    from machtrace.formats.elf.headers import Segment, loaded_range

    def load(address: int, size: int, flags: int) -> Segment:
        return Segment(
            type=1,
            flags=flags,
            address=Svma(address),
            offset=FileOffset(0),
            file_size=size,
            memory_size=size,
            alignment=PAGE,
        )

    code, data = load(0x400040, 0x1234, 5), load(0x402000, 0x10, 6)
    far_data, far_code = load(0x900000, 0x100, 6), load(0x900000, 0x100, 5)
    assert loaded_range([far_data, data, code]) == (0x400000, 0x2010)
    assert loaded_range([code, data, far_code]) == (0x400000, 0x500100)
    assert loaded_range([]) == (0, 0)


@pytest.mark.peer
def test_bytes_by_address_and_by_offset_are_the_same(any_file: Path) -> None:
    """For every loaded segment; no byte beyond it is readable."""
    data, contents = any_file.read_bytes(), _contents(any_file)
    for segment in contents.image.load_segments:
        expected = data[segment.offset : segment.offset + segment.file_size]
        assert contents.read_svma(segment.address, segment.file_size) == expected
        assert contents.read_file(segment.offset, segment.file_size) == expected
        assert contents.image.file_offset_of(segment.address) == segment.offset
        with pytest.raises(MemoryReadError):
            contents.read_svma(segment.address, segment.memory_size + PAGE)
    with pytest.raises(MemoryReadError):
        contents.read_file(FileOffset(len(data)), 1)


@pytest.mark.peer
@pytest.mark.parametrize("slide", [0, 0x7F12_3456_7000])
def test_an_image_in_memory_equals_the_file(any_file: Path, slide: int) -> None:
    """It is read through its load address alone, with any slide."""
    file = _contents(any_file)
    if file.image.arch.pointer_size == 4:
        slide &= 0x7FFF_F000
    header = Avma(file.image.header_svma + slide)
    contents = ElfMemoryContents(_loaded(file, slide), header, "memory")
    image = contents.image
    assert image.segments == file.image.segments
    assert (image.build_id, image.soname) == (file.image.build_id, file.image.soname)
    assert (image.header_svma, image.size) == (file.image.header_svma, file.image.size)
    assert (contents.slide, image.sections) == (slide, ())
    for segment in image.load_segments:
        expected = file.read_svma(segment.address, segment.file_size)
        assert contents.read_svma(segment.address, segment.file_size) == expected
        assert contents.read_file(segment.offset, segment.file_size) == expected


@pytest.mark.peer
def test_a_compressed_section_is_decompressed(
    build: Build, tmp_path: Path, peer: Callable[..., str]
) -> None:
    """``SHF_COMPRESSED``: objcopy is the oracle."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    peer("objcopy", "--add-section", f".debug_x={Path(__file__)}", build("pie"), plain)
    peer("objcopy", "--compress-debug-sections=zlib", plain, packed)
    contents = _contents(packed)
    section = contents.image.section(".debug_x")
    assert section is not None
    assert section.size < Path(__file__).stat().st_size
    assert contents.read_section(section) == Path(__file__).read_bytes()


@pytest.mark.peer
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"\xcf\xfa\xed\xfe" + data[4:], "not an ELF file"),
        (lambda data: data[:40], "cut short"),
        (lambda data: data[:4] + b"\x07" + data[5:], "unknown ELF class 7"),
        (lambda data: data[:18] + b"\x15\x00" + data[20:], "machine 21 .64-bit. is not supported"),
        (lambda data: data[:16] + b"\x63\x00" + data[18:], "unknown ELF type 99"),
        (lambda data: data[:54] + b"\x08\x00" + data[56:], "unsupported program header size 8"),
        (lambda data: data[:56] + b"\x00\xf0" + data[58:], "61440 program headers do not fit"),
        (lambda data: data[: len(data) // 2], "section headers .* do not fit|outside the file"),
    ],
)
def test_errors_name_the_problem_of_a_file(
    build: Build, change: Callable[[bytes], bytes], message: str
) -> None:
    """And its offset."""
    data = build("arm64").read_bytes()
    with pytest.raises(ElfError, match=message) as caught:
        ElfFileContents(change(data), "broken")
    assert caught.value.source == "broken"
