"""Every note is parsed in every version; an invalid one is a problem, not a failure."""

from __future__ import annotations

import json
from struct import pack
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import CoreFileError
from machtrace.formats.macho.core.file import parse_core
from machtrace.formats.macho.core.notes import BinaryKind, MainBinary
from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_X86_64
from machtrace.model.address import Avma, PacMask
from machtrace.model.memory import MemoryRegion
from tests.support.writers.macho_core import CoreNote, CoreSegment, assemble_core, thread_state

UNKNOWN = (1 << 64) - 1
UUID_1 = UUID("6623411e-47c0-59cc-aae4-90db4a3190f1")
STATE = thread_state(6, pack("<33Q2I", *range(33), 0, 0))
STACK = CoreSegment(MemoryRegion(Avma(0x1_6000_0000), bytes(4096)))


def core_with(*notes, threads=1, cputype=CPU_TYPE_ARM64, segments=(STACK,)):
    """Build a core with these notes."""
    state = STATE if cputype == CPU_TYPE_ARM64 else thread_state(4, bytes(168))
    data = assemble_core(cputype, threads=[state] * threads, notes=notes, segments=segments)
    return parse_core(memoryview(data), "test.core")


def image_infos(*images, version=1, entry_size=48):
    """Build an "all image infos" note: (path, uuid, load address, ((segment, address), …))."""

    def payload(at):
        entries_at = at + 24
        segments_at = entries_at + entry_size * len(images)
        paths_at = segments_at + 32 * sum(len(image[3]) for image in images)
        entries, segments, paths = b"", b"", b""
        for path, uuid, address, places in images:
            path_at = UNKNOWN if path is None else paths_at + len(paths)
            entry = pack("<Q16s2Q2I", path_at, uuid, address, segments_at + len(segments),
                         len(places), 1)  # fmt: skip
            entries += entry.ljust(entry_size, b"\xee")
            for name, place in places:
                segments += pack("<16s2Q", name, place, 0)
            paths += b"" if path is None else path + b"\0"
        head = pack("<2IQ2I", version, len(images), entries_at, entry_size, 0)
        return head + entries + segments + paths

    return CoreNote("all image infos", payload)


def metadata(value):
    """Build a "process metadata" note."""
    return CoreNote("process metadata", json.dumps(value).encode())


@pytest.mark.parametrize("entry_size", [48, 64])
def test_all_image_infos(entry_size):
    """Paths, UUIDs, load addresses and segments; entries may be larger than known."""
    core = core_with(
        image_infos(
            (b"/bin/app", UUID_1.bytes, 0x1_0000_0000, ((b"__TEXT", 0x1_0000_0000),)),
            (None, bytes(16), UNKNOWN, ()),
            (b"", UUID_1.bytes, 0x2000, ((b"__sixteen_letters", 5), (b"__DATA", 6))),
            entry_size=entry_size,
        )
    )
    first, second, third = core.noted_images
    assert (first.path, first.uuid, first.load_address) == ("/bin/app", UUID_1, 0x1_0000_0000)
    assert first.segments == (("__TEXT", 0x1_0000_0000),)
    assert (second.path, second.uuid, second.load_address) == ("", None, None)
    assert third.segments == (("__sixteen_letter", 5), ("__DATA", 6))
    assert core.problems == ()


def test_load_binary():
    """Each such note is one more image, after those of the list."""
    binary = pack("<I16s2Q", 1, UUID_1.bytes, 0x5000, 0x4000) + b"firmware.elf\0".ljust(32, b"\0")
    slid = pack("<I16s2Q", 1, bytes(16), UNKNOWN, UNKNOWN)
    core = core_with(
        CoreNote("load binary", binary),
        image_infos((b"/bin/app", UUID_1.bytes, 0x1000, ())),
        CoreNote("load binary", slid),
    )
    _, first, second = core.noted_images
    assert (first.path, first.uuid) == ("firmware.elf", UUID_1)
    assert (first.load_address, first.slide) == (0x5000, 0x4000)
    assert (second.path, second.uuid, second.load_address, second.slide) == ("", None, None, None)


def test_main_bin_spec():
    """Version 1 as xnu writes it, version 2 with slide and platform."""
    first = pack("<2IQ16s2I", 1, 2, 0x7FFF_1000, UUID_1.bytes, 14, 0)
    second = pack("<2I2Q16s2I", 2, 3, UNKNOWN, 0x8000, bytes(16), 0, 6)
    assert core_with(CoreNote("main bin spec", first)).main_binary == MainBinary(
        kind=BinaryKind.USER,
        address=Avma(0x7FFF_1000),
        slide=None,
        uuid=UUID_1,
        page_size=16384,
        platform=None,
    )
    assert core_with(CoreNote("main bin spec", second)).main_binary == MainBinary(
        kind=BinaryKind.STANDALONE,
        address=None,
        slide=0x8000,
        uuid=None,
        page_size=None,
        platform=6,
    )
    odd = pack("<2IQ16s2I", 1, 77, 5, bytes(16), 200, 0)
    assert core_with(CoreNote("main bin spec", odd)).main_binary.kind is BinaryKind.UNSPECIFIED


def test_addressable_bits():
    """Versions 3 and 4 give the mask that pointers are stripped by."""
    third = CoreNote("addrable bits", pack("<2IQ", 3, 39, 0))
    fourth = CoreNote("addrable bits", pack("<4I", 4, 47, 52, 0))
    assert core_with(third).pointer_mask == PacMask.of_width(39)
    assert core_with(fourth).pointer_mask == PacMask.of_width(47)
    assert core_with(fourth, cputype=CPU_TYPE_X86_64).pointer_mask == PacMask()


@pytest.mark.parametrize(
    ("address", "mask"),
    [
        (0x1_6000_0000, PacMask.of_width(39)),
        (0x6000_0000_0000, PacMask.of_width(47)),
        (0xFFFF_FE00_0000_0000, PacMask()),
    ],
    ids=["phone", "computer", "kernel"],
)
def test_without_addressable_bits_the_mask_covers_the_captured_addresses(address, mask):
    segment = CoreSegment(MemoryRegion(Avma(address), bytes(4096)))
    core = core_with(segments=(segment,))
    assert core.pointer_mask == mask
    assert core.pointer_mask.strip(address + 4095) == address + 4095


def test_process_metadata():
    """Ids as lldb writes them; names, queues and more where present; other keys ignored."""
    core = core_with(
        metadata(
            {
                "threads": [
                    {"thread_id": 4711, "name": "main", "queue": "q", "main": True},
                    {"thread_id": 0, "register_info": {"sets": [], "registers": []}},
                    {"thread_id": "12", "name": 5, "crashed": 1},
                    17,
                ],
                "process": {"pid": 99, "path": "/bin/app", "more": []},
                "another": None,
            }
        ),
        threads=4,
    )
    threads = core.metadata.threads
    assert (threads[0].id, threads[0].name, threads[0].queue) == (4711, "main", "q")
    assert [thread.id for thread in threads[1:]] == [None, None, None]
    assert [thread.crashed for thread in threads] == [None] * 4
    assert (core.metadata.pid, core.metadata.path) == (99, "/bin/app")
    assert core.problems == ()


def test_threads_without_a_unique_id_get_a_free_one(opened):
    note = metadata({"threads": [{"thread_id": n} for n in (2, 2, 0, 1 << 64)]})
    target = opened(
        assemble_core(CPU_TYPE_ARM64, threads=[STATE] * 4, notes=[note], segments=[STACK])
    )
    assert [info.id for info in target.threads()] == [2, 1, 3, 4]
    assert [info.index for info in target.threads()] == [1, 2, 3, 4]


def test_metadata_of_another_number_of_threads_is_not_used(opened):
    """Ids are listed in the order of the thread commands, so the counts must match."""
    note = metadata({"threads": [{"thread_id": 77}]})
    target = opened(
        assemble_core(CPU_TYPE_ARM64, threads=[STATE] * 2, notes=[note], segments=[STACK])
    )
    assert [info.id for info in target.threads()] == [1, 2]


def test_notes_of_other_owners_are_skipped():
    core = core_with(
        CoreNote("kern ver str", pack("<I", 1) + b"Darwin Kernel Version 25.0.0\0"),
        CoreNote("panic context", str(UUID_1).encode()),
        CoreNote("exactly16letters", b""),
    )
    assert core.problems == ()


BAD_NOTES = {
    "metadata is no JSON": CoreNote("process metadata", b'{"threads": ['),
    "metadata is a list": CoreNote("process metadata", b"[1, 2]"),
    "metadata is too deep": CoreNote("process metadata", b"[" * 100_000),
    "metadata is one long number": CoreNote("process metadata", b'{"a":' + b"9" * 5000 + b"}"),
    "metadata is empty": CoreNote("process metadata", b""),
    "bits of version 5": CoreNote("addrable bits", pack("<2IQ", 5, 39, 0)),
    "bits are none": CoreNote("addrable bits", pack("<2IQ", 3, 0, 0)),
    "bits are too many": CoreNote("addrable bits", pack("<4I", 4, 39, 65, 0)),
    "bits are cut": CoreNote("addrable bits", pack("<I", 3)),
    "main of version 3": CoreNote("main bin spec", pack("<2I2Q16s2I", 3, 0, 0, 0, b"", 0, 0)),
    "main is cut": CoreNote("main bin spec", pack("<2IQ", 1, 2, 5)),
    "binary of version 2": CoreNote("load binary", pack("<I16s2Q", 2, b"", 0, 0)),
    "binary is cut": CoreNote("load binary", b"\1\0\0\0"),
    "infos of version 2": image_infos((b"/a", b"", 1, ()), version=2),
    "infos are cut": CoreNote("all image infos", pack("<2I", 1, 1)),
    "infos list too many": CoreNote("all image infos", pack("<2IQ2I", 1, 1 << 31, 4096, 48, 0)),
    "infos are elsewhere": CoreNote("all image infos", pack("<2IQ2I", 1, 1, 1 << 63, 48, 0)),
    "infos have giant entries": CoreNote(
        "all image infos", pack("<2IQ2I", 1, 1 << 20, 4096, 0xFFFF_FFFF, 0)
    ),
    "an image's segments are elsewhere": CoreNote(
        "all image infos",
        lambda at: (
            pack("<2IQ2I", 1, 1, at + 24, 48, 0)
            + pack("<Q16s2Q2I", UNKNOWN, b"", 1, 1 << 62, 1 << 30, 0)
        ),
    ),
    "an image's path is elsewhere": CoreNote(
        "all image infos",
        lambda at: (
            pack("<2IQ2I", 1, 1, at + 24, 48, 0) + pack("<Q16s2Q2I", 1 << 50, b"", 1, 0, 0, 0)
        ),
    ),
}


@pytest.mark.parametrize("name", sorted(BAD_NOTES))
def test_a_bad_note_is_a_problem_and_the_rest_is_read(name):
    """One bad note takes neither the threads nor the other notes."""
    good = metadata({"threads": [{"thread_id": 5}], "process": {"pid": 6}})
    bits = CoreNote("addrable bits", pack("<2IQ", 3, 40, 0))
    owner = BAD_NOTES[name].owner
    core = core_with(BAD_NOTES[name], *(n for n in (good, bits) if n.owner != owner))
    problem, *_ = core.problems
    assert isinstance(problem, CoreFileError)
    assert "test.core at 0x" in str(problem)
    assert core.threads[0].state.registers.sp == 31
    if owner != good.owner:
        assert core.metadata.pid == 6
    if owner != bits.owner:
        assert core.pointer_mask == PacMask.of_width(40)


def test_a_note_beyond_the_file_is_a_problem():
    """The problem names the note."""
    data = assemble_core(
        CPU_TYPE_ARM64, threads=[STATE], notes=[metadata({"threads": [{"thread_id": 5}]})]
    )
    core = parse_core(memoryview(data[:-1]), "test.core")
    assert "process metadata" in str(core.problems[0])
    assert core.threads[0].state.registers.sp == 31


def test_images_that_share_a_long_segment_list_take_bounded_memory_and_time():
    count = 2000

    def payload(at):
        entry = pack("<Q16s2Q2I", UNKNOWN, b"", 7, at, count * 48 // 32, 0)
        return pack("<2IQ2I", 1, count, at + 24, 48, 0) + entry * count

    core = core_with(CoreNote("all image infos", payload))
    assert sum(len(image.segments) for image in core.noted_images) < 2 * count
    assert len(core.problems) > count // 2


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        ["all image infos", "process metadata", "main bin spec", "load binary", "addrable bits"]
    ),
    st.integers(1, 4),
    st.binary(max_size=200),
)
def test_any_note_is_read_or_a_problem(owner, version, payload):
    core = core_with(CoreNote(owner, pack("<I", version) + payload))
    assert core.threads[0].state.registers.sp == 31
    assert all(isinstance(problem, CoreFileError) for problem in core.problems)
