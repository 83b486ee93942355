"""Images of a core, by every source that leads to them."""

from __future__ import annotations

from dataclasses import replace
from struct import pack
from uuid import UUID

import pytest

from machtrace.errors import CoreFileError, MemoryReadError
from machtrace.formats.macho.core.file import parse_core
from machtrace.formats.macho.core.images import find_images, scan_headers
from machtrace.formats.macho.dyld import DyldImage, read_dyld_images
from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_X86_64, FileType
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion, RegionMemory
from tests.support.writers.macho_core import (
    CoreNote,
    CoreSegment,
    assemble_core,
    loaded_dyld,
    thread_state,
)
from tests.support.writers.synthetic_image import synthetic_image

DYLD_AT = Avma(0x7FFF_0000_0000)
CODE, DATA = 5, 3
STATES = {
    Arch.ARM64: thread_state(6, bytes(272)),
    Arch.X86_64: thread_state(4, bytes(168)),
}
CPUS = {Arch.ARM64: CPU_TYPE_ARM64, Arch.X86_64: CPU_TYPE_X86_64}
UNKNOWN = (1 << 64) - 1


def images_of(arch, segments, notes=()):
    """Return the images of a core with these segments and notes."""
    data = assemble_core(CPUS[arch], threads=[STATES[arch]], segments=segments, notes=notes)
    core = parse_core(memoryview(data), "test.core")
    assert core.problems == ()
    return find_images(core)


def segments_of(process, protection=CODE):
    """Return the memory of a process' images."""
    return [CoreSegment(region, protection) for region in process.regions]


def arch_of(process):
    """Return a process' architecture."""
    return process.snapshot.process.arch


def listed(process):
    """Return load addresses and paths as dyld lists them: the program first."""
    return [(r.start, i.path) for r, i in zip(process.regions, process.images, strict=True)]


def main_binary(address, kind=2):
    """Build a "main bin spec" note of xnu's version."""
    return CoreNote("main bin spec", pack("<2IQ16s2I", 1, kind, address, bytes(16), 14, 0))


@pytest.mark.parametrize("kind", [0, 2])
def test_main_bin_spec_leads_to_dyld(process, kind):
    """As in cores that xnu writes: dyld's address, its list, and all images with their paths."""
    dyld = loaded_dyld(DYLD_AT, listed(process), arch_of(process))
    segments = [*segments_of(process, DATA), CoreSegment(dyld, CODE)]
    result = images_of(arch_of(process), segments, [main_binary(DYLD_AT, kind)])
    *images, last = result.images
    assert last.path == "/usr/lib/dyld"
    assert images == list(process.snapshot.images)
    assert result.program == images[0]
    assert result.problems == ()


def test_main_bin_spec_leads_to_the_list(process):
    """As newer writers do: the address is that of dyld's list."""
    dyld = loaded_dyld(DYLD_AT, listed(process), arch_of(process))
    *_, text = images_of(arch_of(process), [CoreSegment(dyld, CODE)]).images
    segments = [*segments_of(process), CoreSegment(dyld, CODE)]
    found = images_of(arch_of(process), segments, [main_binary(text.end, 4)])
    assert [image.path for image in found.images][-1] == "/usr/lib/dyld"
    assert list(found.images)[:-1] == list(process.snapshot.images)


def test_main_bin_spec_without_a_list_is_one_image(process):
    """Firmware is one image and no list."""
    result = images_of(
        arch_of(process), segments_of(process), [main_binary(process.regions[0].start, 3)]
    )
    (image,) = result.images
    assert (image.load_address, image.uuid) == (process.regions[0].start, process.images[0].uuid)
    assert result.program == image


def test_dyld_is_found_without_any_note(process):
    """As in older cores of xnu: dyld's header is found in memory, and its list gives paths."""
    dyld = loaded_dyld(DYLD_AT, listed(process), arch_of(process))
    found = images_of(arch_of(process), [*segments_of(process), CoreSegment(dyld, CODE)])
    assert list(found.images)[:-1] == list(process.snapshot.images)
    assert found.program.path == process.snapshot.process.path


def test_headers_are_found_without_notes_and_dyld(process):
    """A library has its path, a program does not."""
    found = images_of(arch_of(process), segments_of(process))
    program, *libraries = process.snapshot.images
    assert list(found.images) == [replace(program, path=""), *libraries]
    assert found.program == replace(program, path="")


def test_memory_without_protection_is_searched_too(process):
    """If no segment is executable, all memory is searched."""
    found = images_of(arch_of(process), segments_of(process, 0))
    assert len(found.images) == len(process.images)


def test_files_read_into_memory_are_not_images(process):
    """If some segments are executable, Mach-O files in others are data."""
    file = synthetic_image("/tmp/plugin.dylib", arch_of(process))  # noqa: S108 (a name)
    heap = CoreSegment(MemoryRegion(Avma(0x1_5000_0000), file.data), DATA)
    found = images_of(arch_of(process), [*segments_of(process), heap])
    assert len(found.images) == len(process.images)


def test_an_image_inside_the_code_of_another_is_not_listed():
    """A program may embed a file in its code."""
    inner = synthetic_image("/usr/lib/inner.dylib", functions=2)
    outer = synthetic_image("/usr/lib/outer.dylib", functions=2000)
    data = bytearray(outer.data)
    data[0x4000 : 0x4000 + len(inner.data)] = inner.data
    region = MemoryRegion(Avma(0x1_0000_0000), bytes(data))
    (image,) = images_of(Arch.ARM64, [CoreSegment(region, CODE)]).images
    assert image.path == "/usr/lib/outer.dylib"


@pytest.mark.parametrize(
    ("field", "value"),
    [(4, 7), (12, 1), (12, 4), (16, 0), (16, 1 << 20), (20, 8), (20, 1 << 28), (32, 0)],
    ids=["cpu", "object", "core", "no commands", "too many", "too small", "too large", "command 0"],
)
def test_a_magic_number_alone_is_not_a_header(field, value):
    image = synthetic_image("/usr/lib/x.dylib")
    data = bytearray(image.data)
    assert list(scan_headers([MemoryRegion(Avma(0x4000), bytes(data))], CPU_TYPE_ARM64)) == [0x4000]
    data[field : field + 4] = pack("<I", value)
    assert list(scan_headers([MemoryRegion(Avma(0x4000), bytes(data))], CPU_TYPE_ARM64)) == []


def test_only_starts_of_pages_are_searched():
    """A region may begin anywhere; pages begin at multiples of 4 KiB."""
    image = synthetic_image("/usr/lib/x.dylib")
    region = MemoryRegion(Avma(0x3F00), bytes(0x100) + image.data)
    assert list(scan_headers([region], CPU_TYPE_ARM64)) == [0x4000]
    region = MemoryRegion(Avma(0x3F10), bytes(0x100) + image.data)
    assert list(scan_headers([region], CPU_TYPE_ARM64)) == []
    assert list(scan_headers([MemoryRegion(Avma(0x3F10), b"xyz")], CPU_TYPE_ARM64)) == []


def test_headers_are_searched_while_dyld_changes_its_list(process):
    """The list's pointer is null then; a problem has the reason."""
    dyld = loaded_dyld(DYLD_AT, listed(process), arch_of(process))
    *_, image = images_of(arch_of(process), [CoreSegment(dyld, CODE)]).images
    data = bytearray(dyld.data)
    data[image.size + 8 : image.size + 16] = bytes(8)
    segments = [*segments_of(process), CoreSegment(MemoryRegion(DYLD_AT, bytes(data)), CODE)]
    found = images_of(arch_of(process), segments, [main_binary(DYLD_AT)])
    assert len(found.images) == len(process.images) + 1
    assert any("changing" in str(problem) for problem in found.problems)


def test_images_without_headers_are_taken_from_dylds_list(process):
    dyld = loaded_dyld(DYLD_AT, listed(process), arch_of(process))
    found = images_of(arch_of(process), [CoreSegment(dyld, CODE)], [main_binary(DYLD_AT)])
    assert [(i.load_address, i.path) for i in found.images][:-1] == sorted(listed(process))
    assert found.program.path == process.snapshot.process.path


def noted(images):
    """Build an "all image infos" note of (path, load address, ((segment, address), …))."""

    def payload(at):
        entries_at = at + 24
        segments_at = entries_at + 48 * len(images)
        paths_at = segments_at + 32 * sum(len(image[2]) for image in images)
        entries, segments, paths = b"", b"", b""
        for number, (path, address, places) in enumerate(images):
            entries += pack("<Q16s2Q2I", paths_at + len(paths), UUID(int=number + 1).bytes, address,
                            segments_at + len(segments), len(places), 0)  # fmt: skip
            for name, place in places:
                segments += pack("<16s2Q", name, place, 0)
            paths += path + b"\0"
        return pack("<2IQ2I", 1, len(images), entries_at, 48, 0) + entries + segments + paths

    return CoreNote("all image infos", payload)


def test_an_image_without_a_header_ends_at_its_data_or_the_next_image():
    """As in lldb's cores of dirty pages."""
    note = noted(
        [
            (b"/app", 0x1_0000_0000, ((b"__TEXT", 0x1_0000_0000), (b"__DATA", 0x1_0000_8000))),
            (b"/a", 0x1_8000_0000, ((b"__TEXT", 0x1_8000_0000), (b"__DATA", 0x1_F000_0000))),
            (b"/b", 0x1_8000_5000, ((b"__TEXT", 0x1_8000_5000), (b"__DATA", 0x1_F000_4000))),
            (b"/c", 0x5_0000_0000, ()),
        ]
    )
    result = images_of(Arch.ARM64, [], [note])
    assert [(i.path, i.size, i.header_svma) for i in result.images] == [
        ("/app", 0x8000, 0x1_0000_0000),
        ("/a", 0x5000, 0),
        ("/b", 1 << 30, 0),
        ("/c", 1 << 30, 0),
    ]
    assert result.program.path == "/app"
    assert [image.uuid.int for image in result.images] == [1, 2, 3, 4]


def test_the_uuid_in_memory_has_precedence_over_the_notes(process):
    region, image = process.regions[1], process.images[1]
    found = images_of(
        arch_of(process), segments_of(process), [noted([(b"/renamed", region.start, ())])]
    )
    (only,) = found.images
    assert (only.path, only.uuid) == ("/renamed", image.uuid)


def test_two_entries_at_one_address_are_one_image(process):
    start = process.regions[1].start
    found = images_of(
        arch_of(process), segments_of(process), [noted([(b"/a", start, ()), (b"/b", start, ())])]
    )
    assert [image.path for image in found.images] == ["/a"]


def test_an_image_without_an_address_is_a_problem():
    found = images_of(Arch.ARM64, [], [noted([(b"/a", UNKNOWN, ()), (b"/b", 0x1000, ())])])
    assert [image.path for image in found.images] == ["/b"]
    assert "/a" in str(found.problems[0])


def test_a_slide_gives_the_stated_address():
    """The note "load binary" has the slide of an image without header; it can be negative."""
    notes = [
        CoreNote("load binary", pack("<I16s2Q", 1, b"u" * 16, address, slide) + b"x\0")
        for address, slide in ((0x1_2000, 0x2000), (0x10_0000, (1 << 64) - 0x1000))
    ]
    found = images_of(Arch.ARM64, [], notes)
    assert [(image.slide, image.header_svma) for image in found.images] == [
        (0x2000, 0x1_0000),
        (-0x1000, 0x10_1000),
    ]


def test_an_image_with_a_malformed_header_has_the_notes_address():
    """The header is a problem."""
    image = synthetic_image("/usr/lib/x.dylib")
    data = bytearray(image.data)
    data[36:40] = pack("<I", 3)
    region = MemoryRegion(Avma(0x1_0000_0000), bytes(data))
    result = images_of(
        Arch.ARM64, [CoreSegment(region, CODE)], [noted([(b"/x", 0x1_0000_0000, ())])]
    )
    assert [image.path for image in result.images] == ["/x"]
    assert "load command 0" in str(result.problems[0])


def test_bundles_are_images(process):
    """A bundle has no install name but is loaded like a library."""
    bundle = synthetic_image("/x.bundle", arch_of(process), filetype=FileType.BUNDLE)
    region = MemoryRegion(Avma(0x3_0000_0000), bundle.data)
    (image,) = images_of(arch_of(process), [CoreSegment(region, CODE)]).images
    assert (image.path, image.uuid) == ("", bundle.uuid)


def test_overlapping_headers_are_read_a_bounded_number_of_times():
    """Every page has a header, and all claim the same commands."""
    count = 2000
    commands = b"".join(pack("<2I", 0x80, 8) for _ in range(4096 // 8 - 4))
    page = pack("<8I", 0xFEEDFACF, CPU_TYPE_ARM64, 0, 6, 508, 508 * 8, 0, 0) + commands
    huge = bytearray(page * count)
    for number in range(count):
        left = (count - number) * 4096 - 32
        huge[number * 4096 + 20 : number * 4096 + 24] = pack("<I", min(left, 1 << 24))
    region = MemoryRegion(Avma(0x1_0000_0000), bytes(huge))
    found = images_of(Arch.ARM64, [CoreSegment(region, CODE)])
    assert len(found.images) == 0
    assert any("overlap" in str(problem) for problem in found.problems)


LIST_LAYOUT = """
#include <mach-o/dyld_images.h>
_Static_assert(offsetof(struct dyld_all_image_infos, infoArrayCount) == 4, "");
_Static_assert(offsetof(struct dyld_all_image_infos, infoArray) == 8, "");
_Static_assert(offsetof(struct dyld_all_image_infos, dyldImageLoadAddress) == {dyld}, "");
_Static_assert(sizeof(struct dyld_image_info) == {image}, "");
_Static_assert(offsetof(struct dyld_image_info, imageFilePath) == {path}, "");
"""


@pytest.mark.peer
@pytest.mark.parametrize(
    ("triple", "layout"),
    [
        ("arm64-apple-macos13.0", {"dyld": 32, "image": 24, "path": 8}),
        ("x86_64-apple-macos13.0", {"dyld": 32, "image": 24, "path": 8}),
        ("armv7-apple-ios9.0", {"dyld": 20, "image": 12, "path": 4}),
        ("i386-apple-macos10.12", {"dyld": 20, "image": 12, "path": 4}),
    ],
)
def test_the_layout_of_dylds_list_equals_apples_headers(triple, layout, check_headers):
    """A compiler for Darwin evaluates the offsets that the next test uses."""
    assert check_headers(triple, LIST_LAYOUT.format(**layout)) == ""


@pytest.mark.parametrize(("pointer_size", "word"), [(8, "Q"), (4, "I")])
def test_dylds_list_is_read_with_either_pointer_size(pointer_size, word):
    """An unreadable path is empty."""
    head = pack("<2I", 15, 2) + pack(f"<2{word}", 0x3000, 0) + b"\1\1".ljust(pointer_size, b"\0")
    infos = head + pack(f"<{word}", 0x7000)
    rows = pack(f"<6{word}", 0x10000, 0x3FFD, 0, 0x20000, 0x9000, 0)
    path = MemoryRegion(Avma(0x3F00), b"/app\0".rjust(0x102, b"\0"))
    memory = RegionMemory(
        [MemoryRegion(Avma(0x2000), infos), MemoryRegion(Avma(0x3000), rows), path]
    )
    found = read_dyld_images(memory, Avma(0x2000), pointer_size=pointer_size, source="test")
    assert found.dyld == 0x7000
    assert found.images == (DyldImage(Avma(0x10000), "/app"), DyldImage(Avma(0x20000), ""))


@pytest.mark.parametrize(
    ("version", "count", "array", "error"),
    [
        (0, 1, 0x3000, CoreFileError),
        (1 << 20, 1, 0x3000, CoreFileError),
        (15, 1 << 20, 0x3000, CoreFileError),
        (15, 1, 0, CoreFileError),
        (15, 1, 0x9000, MemoryReadError),
        (15, 1000, 0x2000, MemoryReadError),
    ],
)
def test_an_invalid_list_of_dyld_is_an_error(version, count, array, error):
    """Nonsense and unreadable lists are errors, whatever they claim."""
    data = pack("<2I2Q8xQ", version, count, array, 0, 0x7000)
    memory = RegionMemory([MemoryRegion(Avma(0x2000), data)])
    with pytest.raises(error):
        read_dyld_images(memory, Avma(0x2000), pointer_size=8, source="test")
