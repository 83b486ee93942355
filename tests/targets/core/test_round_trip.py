"""A written core is read back unchanged."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from machtrace.errors import CoreFileError
from machtrace.formats.macho.core.writer import core_bytes, core_chunks
from machtrace.model.address import Avma, PacMask, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, BuildId, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from tests.support.writers.processes import synthetic_process


def test_a_core_reads_back_the_whole_process(process, opened):
    """Process, threads, registers, stacks, images and memory."""
    with opened(process.core()) as target:
        read = target.snapshot()
    written = process.snapshot
    assert read.problems == ()
    assert read.process == written.process
    assert [thread.info for thread in read.threads] == [thread.info for thread in written.threads]
    for ours, theirs in zip(read.threads, written.threads, strict=True):
        assert ours.registers == theirs.registers
        assert (ours.stack.start, bytes(ours.stack.data)) == (theirs.stack.start, theirs.stack.data)
        assert ours.taken_at_ns is None
        assert ours.stopped_for_ns is None
    assert list(read.images) == list(written.images)
    for region in process.regions:
        assert bytes(read.memory.read(region.start, len(region.data))) == region.data


def test_writing_a_core_that_was_read_changes_no_byte(process, opened):
    first = process.core()
    target = opened(first)
    assert core_bytes(target.snapshot(), process.regions) == first


def test_memory_of_a_snapshot_is_not_copied(process, opened):
    """Stacks and memory are views of the mapped file, and outlive the target."""
    target = opened(process.core())
    snapshot = target.snapshot()
    target.close()
    target.close()
    for thread in snapshot.threads:
        assert isinstance(thread.stack.data, memoryview)
        assert thread.stack.data.readonly
        assert bytes(thread.stack.data[:0]) == b""


def test_headers_of_images_are_written_by_default(process, opened):
    """Without further memory a core still has the end of each image's code."""
    read = opened(core_bytes(process.snapshot)).snapshot()
    assert list(read.images) == list(process.snapshot.images)
    assert len(core_bytes(process.snapshot)) < len(process.core())


def test_an_image_without_a_header_reads_back_with_its_extent(process, opened):
    bare = replace(process.snapshot, memory=RegionMemory())
    read = opened(core_bytes(bare)).snapshot()
    assert list(read.images) == list(process.snapshot.images)
    assert read.process.path == process.snapshot.process.path


def test_a_snapshot_of_chosen_threads_has_them_in_the_cores_order(process, opened):
    """An unknown thread is a problem."""
    target = opened(process.core())
    first, second, third, _ = (info.id for info in target.threads())
    snapshot = target.snapshot([third, first])
    assert [thread.info.id for thread in snapshot.threads] == [first, third]
    assert snapshot.problems == ()
    snapshot = target.snapshot([second, ThreadId(5)])
    assert [thread.info.id for thread in snapshot.threads] == [second]
    assert [problem.thread for problem in snapshot.problems] == [5]
    assert "no thread 5" in str(snapshot.problems[0].error)


def test_a_core_without_the_main_thread_marks_none_as_main(process, opened):
    target = opened(process.core())
    others = [info.id for info in target.threads() if not info.is_main]
    read = opened(core_bytes(target.snapshot(others)))
    assert [info.is_main for info in read.threads()] == [False] * len(others)


def test_the_crashed_thread_is_marked_when_read_back(process, opened):
    first, second, *rest = process.snapshot.threads
    crashed = replace(second, info=replace(second.info, crashed=True))
    snapshot = replace(process.snapshot, threads=(first, crashed, *rest))
    read = opened(core_bytes(snapshot))
    assert [info.crashed for info in read.threads()] == [False, True, False, False]


@pytest.mark.parametrize("arch", list(Arch), ids=lambda arch: arch.value)
def test_general_registers_of_every_architecture_read_back(arch, opened):
    """They have their DWARF numbers."""
    numbers = arch.registers
    general = {
        number: 0x4000_0000 + number
        for number, name in enumerate(numbers.names[:31])
        if name not in ("pc", "rip", "eip")
    }
    registers = RegisterSet.of(
        arch, pc=0x5000_0004, sp=0x7000_0100, fp=0x7000_0140, lr=0x5000_0008, general=general
    )
    stack = MemoryRegion(Avma(0x7000_0000), bytes(range(256)) * 16)
    info = ThreadInfo(id=ThreadId(9), index=1, is_main=True)
    snapshot = Snapshot(
        process=ProcessInfo(pid=None, path="", arch=arch, pointer_mask=PacMask()),
        threads=(ThreadSnapshot(info=info, registers=registers, stack=stack),),
        images=ImageList(),
    )
    read = opened(core_bytes(snapshot)).snapshot()
    (thread,) = read.threads
    assert read.problems == ()
    assert read.process.arch is arch
    assert thread.registers.arch is arch
    assert (thread.registers.pc, thread.registers.sp) == (0x5000_0004, 0x7000_0100)
    assert thread.registers == registers
    red_zone = 128 if arch.is_arm64 or arch.value.startswith("x86_64") else 0
    assert thread.stack.start == 0x7000_0100 - red_zone


def test_unknown_registers_are_written_as_zero(process, opened):
    """Even the stack pointer may be unknown."""
    first = process.snapshot.threads[0]
    arch = process.snapshot.process.arch
    blank = replace(first, registers=RegisterSet(arch, Avma(0), (None,) * 33))
    read = opened(core_bytes(replace(process.snapshot, threads=(blank,)))).snapshot()
    assert read.threads[0].registers.sp == 0
    assert len(read.threads[0].stack.data) == 0
    assert "stack of thread 1" in str(read.problems[0].error)


def test_regions_may_overlap(process, opened):
    """A stack's bytes have precedence; other regions fill the rest, each byte once."""
    thread = process.snapshot.threads[0]
    start, size = thread.stack.start, len(thread.stack.data)
    around = MemoryRegion(Avma(start - 64), b"\xaa" * (size + 128))
    again = MemoryRegion(Avma(start - 32), b"\xbb" * (size + 128))
    snapshot = replace(process.snapshot, threads=(thread,), memory=RegionMemory())
    read = opened(core_bytes(snapshot, [again, around])).snapshot()
    whole = bytes(read.memory.read(Avma(start - 64), size + 160))
    assert whole == b"\xaa" * 64 + thread.stack.data + b"\xaa" * 64 + b"\xbb" * 32


def test_chunks_concatenate_to_the_bytes(process):
    chunks = list(core_chunks(process.snapshot, process.regions))
    assert b"".join(chunks) == process.core()
    assert len(chunks) > len(process.regions)


def test_a_linux_process_is_refused():
    """A Mach-O core cannot hold an ELF image."""
    image = BinaryImage(
        path="/lib/libc.so.6",
        uuid=BuildId(b"1234"),
        arch=Arch.X86_64,
        format=ImageFormat.ELF,
        load_address=Avma(0x1000),
        header_svma=Svma(0),
        size=0x1000,
    )
    snapshot = replace(
        synthetic_process(Arch.X86_64, threads=1, images=1).snapshot, images=ImageList([image])
    )
    with pytest.raises(CoreFileError, match=r"libc\.so\.6"):
        core_chunks(snapshot)


def test_64_bit_addresses_in_a_32_bit_core_are_refused():
    snapshot = Snapshot(
        process=ProcessInfo(pid=1, path="", arch=Arch.I386), threads=(), images=ImageList()
    )
    with pytest.raises(CoreFileError, match="i386"):
        core_bytes(snapshot, [MemoryRegion(Avma(1 << 32), b"x")])


def test_paths_and_names_with_invalid_characters_are_written_readably(process, opened):
    """Half a surrogate pair, a NUL, a quote."""
    first = process.snapshot.threads[0]
    named = replace(first, info=replace(first.info, name='a"\ud800\n', queue="\0"))
    image = replace(next(iter(process.snapshot.images)), path="/x\ud800\0y", uuid=UUID(int=5))
    snapshot = replace(process.snapshot, threads=(named,), images=ImageList([image]))
    read = opened(core_bytes(replace(snapshot, memory=RegionMemory()))).snapshot()
    assert read.threads[0].info.name == 'a"?\n'
    assert [one.path for one in read.images] == ["/x?y"]


def test_at_most_the_stack_limit_is_read(process, opened):
    """A limit of 0 is not a problem."""
    target = opened(process.core())
    for limit in (1, 100, 4000):
        stacks = [thread.stack for thread in target.snapshot(stack_limit=limit).threads]
        assert {len(stack.data) for stack in stacks} == {limit}
    snapshot = target.snapshot(stack_limit=0)
    assert {len(thread.stack.data) for thread in snapshot.threads} == {0}
    assert snapshot.problems == ()


def test_a_thousand_threads_among_two_hundred_images(opened):
    """The largest core of the benchmark is read whole."""
    process = synthetic_process(threads=1000, images=200, depth=30)
    read = opened(process.core()).snapshot()
    assert read.problems == ()
    assert len(read.threads) == 1000
    assert list(read.images) == list(process.snapshot.images)
