"""Truncated, mutated and hostile ELF cores: valid parts are read, problems reported."""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from struct import pack, pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import machtrace as mt
from machtrace.errors import CoreFileError, ElfError, MachtraceError
from machtrace.formats.elf.core.file import parse_elf_core
from machtrace.formats.elf.core.images import find_core_images
from machtrace.formats.elf.core.writer import core_bytes
from machtrace.model.address import Avma, FileOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, BuildId, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import (
    FileMapping,
    LinuxFacts,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.targets.core.macho import open_corefile
from machtrace.unwinder.unwinder import unwind

IMAGE = 0x40_0000
STACK = 0x7F_0000


def a_core():
    """A core of two threads that contains a program's first bytes."""
    identification = b"\x7fELF\2\1\1".ljust(16, b"\0")
    head = pack("<16sHHIQQQIHHHHHH", identification, 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    head += pack("<IIQQQQQQ", 6, 4, 64, 64, 64, 112, 112, 8)  # PT_PHDR
    head += pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 0x2000, 0x2000, 0x1000)  # PT_LOAD
    head = head.ljust(0x2000, b"\0")
    stack = bytes(range(256)) * 16
    threads = tuple(
        ThreadSnapshot(
            info=ThreadInfo(id=ThreadId(10 + n), index=n, is_main=n == 1),
            registers=RegisterSet.of(
                Arch.X86_64, pc=IMAGE + 0x1000, sp=STACK * n + 128, fp=STACK * n + 256
            ),
            stack=MemoryRegion(Avma(STACK * n), stack),
        )
        for n in (1, 2)
    )
    image = BinaryImage(
        path="/bin/program",
        uuid=BuildId(b"12345678"),
        arch=Arch.X86_64,
        format=ImageFormat.ELF,
        load_address=Avma(IMAGE),
        header_svma=Svma(0),
        size=0x2000,
    )
    mappings = (
        FileMapping(Avma(IMAGE), Avma(IMAGE + 0x1000), FileOffset(0), "/bin/program"),
        FileMapping(Avma(IMAGE + 0x1000), Avma(IMAGE + 0x2000), FileOffset(0x1000), "/bin/program"),
        FileMapping(Avma(IMAGE * 4), Avma(IMAGE * 5), FileOffset(0), sys.executable),
    )
    vector = pack("<10Q", 3, IMAGE + 64, 4, 56, 5, 2, 33, IMAGE * 7, 0, 0)
    snapshot = Snapshot(
        process=ProcessInfo(pid=11, path="/bin/program", arch=Arch.X86_64),
        threads=threads,
        images=ImageList([image]),
        linux=LinuxFacts(
            auxiliary_vector=vector, file_mappings=mappings, name="program", signal=11
        ),
    )
    return core_bytes(snapshot, [MemoryRegion(Avma(IMAGE), head)])


OURS = a_core()
FOREIGN = OURS.replace(b"machtrace\0", b"another-1\0")
"""As another writer would have it: the images are to be found."""
HEADERS = 64 + 56 * 4
NOTES_AT = HEADERS


def read_all(data):
    """Read everything of a core: the parse and its images."""
    core = parse_elf_core(memoryview(data), "test.core")
    return core, find_core_images(core)


def test_the_undamaged_core_has_its_image_and_no_problems():
    for data in (OURS, FOREIGN):
        core, images = read_all(data)
        assert core.problems == ()
        assert [thread.id for thread in core.threads] == [11, 12]
        assert images.images[0].load_address == IMAGE
        assert images.program == "/bin/program"
    assert len(core.facts.file_mappings) == 3


@pytest.mark.parametrize("share", [0, 1, 25, 50, 75, 99])
def test_a_truncated_core_has_all_threads_and_the_memory_before_the_cut(share):
    """One problem counts the missing bytes."""
    start = len(OURS) - 0x2000 - 2 * 0x1000
    size = start + (len(OURS) - start) * share // 100
    core, _ = read_all(OURS[:size])
    (problem,) = core.problems
    assert f"{len(OURS) - size} bytes are missing" in str(problem)
    assert len(core.threads) == 2
    assert core.memory.size == size - start


def test_truncated_headers_and_notes_give_an_error_or_a_core_with_problems():
    for size in range(len(OURS) - 0x4000):
        try:
            core, _ = read_all(OURS[:size])
        except ElfError:
            assert size < 64
        else:
            assert core.problems


def note(kind, data, owner=b"CORE\0\0\0\0"):
    """Build a note with a padded owner."""
    return pack("<3I", 5, len(data), kind) + owner + data.ljust(-(-len(data) // 4) * 4, b"\0")


def with_notes(notes, *, count=1, segments=b""):
    """Build a core with ``count`` headers for the same notes, and other segments."""
    headers = count + len(segments) // 56
    at = 64 + 56 * headers
    head = bytearray(OURS[:64])
    pack_into("<H", head, 56, headers)
    entry = pack("<IIQQQQQQ", 4, 0, at, 0, 0, len(notes), 0, 4)
    return bytes(head) + entry * count + segments + notes


def test_file_counts_are_checked_against_the_notes_size():
    """The check precedes any allocation."""
    lying = note(0x46494C45, pack("<2Q3Q", 1 << 60, 4096, 1, 2, 0) + b"name\0")
    core, _ = read_all(with_notes(lying))
    assert [mapping.path for mapping in core.facts.file_mappings] == ["name"]
    assert any("that ends after 1" in str(problem) for problem in core.problems)


def test_notes_shared_by_headers_are_read_once():
    """The headers cover more bytes than the file has."""
    status = note(1, bytes(336))
    core, _ = read_all(with_notes(status * 100, count=1000))
    assert len(core.threads) < 300
    assert any("share their bytes" in str(problem) for problem in core.problems)


def test_memory_is_limited_by_the_bytes_of_the_file():
    segment = pack("<IIQQQQQQ", 1, 7, 0, 0, 0, 4096, 4096, 1)
    segments = b"".join(
        segment[:16] + pack("<Q", 0x10000 * n) + segment[24:] for n in range(1, 1000)
    )
    data = with_notes(note(1, bytes(336)), segments=segments)
    core, _ = read_all(data)
    assert core.memory.size <= len(data)


def test_short_statuses_are_reported_and_skipped():
    """A note too short for its type is one problem; hundreds are one more."""
    bad = note(1, bytes(100)) + note(3, b"") + note(0x46494C45, b"x")
    core, _ = read_all(with_notes(bad * 100 + note(1, bytes(336))))
    assert len(core.threads) == 1
    assert len(core.problems) < 70
    assert any("236 more notes" in str(problem) for problem in core.problems)


def test_malformed_metadata_is_not_trusted():
    """JSON of another shape, sizes beyond the address space, indexes given twice."""
    documents = (
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"threads": 5, "images": {}, "problems": [1], "process": []}',
        b'{"threads": [{"index": 1, "registers": {"7": null, "x": 1, "999": 1, "3": 5}}]}',
        b'{"threads": [{"index": 7}, {"index": 7}]}',
        b'{"images": [{"load_address": 18446744073709551615, "header_svma": 0, "arch": "vax"}]}',
        b'{"images": [{"load_address": 99, "header_svma": 0, "size": 18446744073709551615}]}',
        b'{"images": [{"load_address": 9, "size": 1, "build_id": "zz", "path": 5}]}',
        b'{"process": {"pointer_mask": 0, "pid": 1e999}}',
    )
    for document in documents:
        ours = pack("<3I", 10, len(document), 0x4D414348) + b"machtrace\0\0\0"
        ours += document.ljust(-(-len(document) // 4) * 4, b"\0")
        core, found = read_all(with_notes(note(1, bytes(336)) * 2 + ours))
        assert len(core.threads) == 2
        for image in found.images:
            assert image.end <= 1 << 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({4: 9}, "class"),
        ({16: 9}, "type"),
        ({18: 99}, "machine 99"),
        ({18: 183, 5: 1, 4: 1}, "arm64_32"),
        ({16: 3}, "not a core"),
    ],
)
def test_other_elf_files_are_refused_by_kind(change, words):
    """The error names the kind of file, or the unknown field."""
    data = bytearray(OURS)
    for place, value in change.items():
        data[place] = value
    if change.get(4) == 1:
        data[42:44] = pack("<H", 32)  # e_phentsize of the 32-bit header
    with pytest.raises((CoreFileError, ElfError), match=words):
        read_all(bytes(data))


mutations = st.lists(
    st.tuples(
        st.integers(0, len(OURS) - 1),
        st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)) | st.integers(0, 255),
        st.sampled_from((1, 2, 4, 8)),
    ),
    max_size=12,
)


@pytest.mark.timeout(120)
@settings(max_examples=300, deadline=None)
@given(st.booleans(), mutations, st.integers(0, len(OURS)) | st.none())
def test_mutated_cores_are_read_or_refused(ours, changes, cut):
    data = bytearray(OURS if ours else FOREIGN)
    for place, value, size in changes:
        # Three quarters of them are in headers and notes.
        at = place if place % 4 == 0 else place % (NOTES_AT + 2048)
        data[at : at + size] = bytes([value]) * len(data[at : at + size])
    with suppress(MachtraceError):
        read_all(bytes(data[:cut]))


@settings(max_examples=60, deadline=None)
@given(st.booleans(), mutations)
def test_mutated_cores_are_walked_and_saved(ours, changes):
    """From the file to the stacks, and saved as another file."""
    data = bytearray(OURS if ours else FOREIGN)
    for place, value, size in changes:
        at = place % (NOTES_AT + 2048)
        data[at : at + size] = bytes([value]) * size
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.core"
        path.write_bytes(data)
        with suppress(MachtraceError), open_corefile(path) as target:
            snapshot = target.snapshot()
            walks = unwind(snapshot)
            assert len(walks) == len(snapshot.threads) == len(target.threads())
            mt.save_snapshot(snapshot, path)
            assert len(open_corefile(path).threads()) == len(snapshot.threads)


@pytest.mark.timeout(60)
def test_overlapping_image_headers_are_searched_in_linear_time():
    """Thousands of images begin 64 bytes apart, each with the maximum of program headers."""
    head = bytearray(64)
    head[:20] = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + pack("<2H", 3, 62)
    pack_into("<Q", head, 32, 64)
    pack_into("<2H", head, 54, 56, 60_000)
    count = 20_000
    memory = bytes(head) * count + bytes(60_000 * 56)
    entries = b"".join(pack("<3Q", IMAGE + 64 * n, IMAGE + 64 * n + 64, 0) for n in range(count))
    files = note(0x46494C45, pack("<2Q", count, 4096) + entries + b"/x\0" * count)
    notes = note(1, bytes(336)) + files
    size = len(notes)
    segment = pack("<IIQQQQQQ", 1, 5, 64 + 2 * 56 + size, IMAGE, 0, len(memory), len(memory), 1)
    _, found = read_all(with_notes(notes, segments=segment) + memory)
    assert len(found.images) <= count
