"""Truncated, mutated and hostile cores: valid parts are read, problems reported, time bounded."""

from __future__ import annotations

import os
from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import CoreFileError, FormatError, MachOError, MachtraceError
from machtrace.formats.macho.core.file import parse_core
from machtrace.formats.macho.core.images import find_images
from machtrace.formats.macho.header import CPU_TYPE_ARM64
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.targets.core.macho import CorefileTarget
from tests.support.writers.macho_core import CoreSegment, assemble_core, loaded_dyld, thread_state
from tests.support.writers.processes import synthetic_process

PROCESS = synthetic_process(threads=3, images=3, depth=6)
CORE = PROCESS.core()
COMMANDS = 32 + int.from_bytes(CORE[20:24], "little")
STATE = thread_state(6, pack("<33Q2I", *[0x1_0000_0000] * 33, 0, 0))


def read_all(data):
    """Read everything of a core: the parse, its images, its snapshot's parts."""
    core = parse_core(memoryview(data), "test.core")
    return core, find_images(core)


def segments_in(data):
    """Return (vmaddr, size, fileoff) of each segment, unpacked by hand."""
    at, segments = 32, []
    for _ in range(int.from_bytes(data[16:20], "little")):
        cmd, size = (int.from_bytes(data[at + i : at + i + 4], "little") for i in (0, 4))
        if cmd == 0x19:
            fields = [int.from_bytes(data[at + i : at + i + 8], "little") for i in (24, 32, 40)]
            segments.append(tuple(fields))
        at += size
    return segments


@pytest.mark.parametrize("share", [0, 1, 7, 25, 50, 75, 99])
def test_a_truncated_core_has_the_memory_before_the_cut(share):
    """The message counts the missing bytes, and all threads are read."""
    size = COMMANDS + 4096 + (len(CORE) - COMMANDS - 4096) * share // 100
    core, _ = read_all(CORE[:size])
    missing = sum(max(0, min(n, at + n - size)) for _, n, at in segments_in(CORE))
    (problem,) = [p for p in core.problems if "cut off" in str(p)]
    assert f"{missing} bytes are missing" in str(problem)
    assert "copy or write the core again" in problem.remedy
    assert [thread.state.registers.pc for thread in core.threads] == [
        thread.registers.pc for thread in PROCESS.snapshot.threads
    ]
    for address, length, at in segments_in(CORE):
        there = max(0, min(length, size - at))
        if there:
            kept = core.memory.regions.read(Avma(address), there)
            assert bytes(kept) == CORE[at : at + there]
    assert core.memory.size == sum(n for _, n, _ in segments_in(CORE)) - missing


def test_a_core_one_byte_short_lacks_only_that_byte():
    core, images = read_all(CORE[:-1])
    (problem,) = core.problems
    assert "1 bytes are missing, of 1 of" in str(problem)
    assert len(images.images) == 3


def test_truncated_load_commands_give_an_error_or_a_core_with_problems():
    for size in range(COMMANDS):
        try:
            core, _ = read_all(CORE[:size])
        except MachOError:
            assert size < 32
            continue
        assert core.problems
        assert len(core.threads) <= 3


def test_threads_before_the_cut_are_read():
    """The core ends between two thread commands."""
    whole = assemble_core(CPU_TYPE_ARM64, threads=[STATE] * 3)
    core, _ = read_all(whole[: 32 + 2 * (8 + len(STATE)) + 4])
    assert len(core.threads) == 2
    assert "after 2 of 3 load commands" in str(core.problems[0])


def test_a_command_of_impossible_size_ends_the_list():
    """Commands after an invalid size cannot be located; those before are read."""
    data = bytearray(assemble_core(CPU_TYPE_ARM64, threads=[STATE] * 3))
    at = 32 + 8 + len(STATE)
    for size in (0, 7, 9):
        data[at + 4 : at + 8] = pack("<I", size)
        core, _ = read_all(data)
        assert len(core.threads) == 1
        assert f"load command 1 of 3 has the size {size}" in str(core.problems[0])


def test_a_count_of_commands_beyond_the_file_ends_with_the_file():
    data = bytearray(assemble_core(CPU_TYPE_ARM64, threads=[STATE]))
    data[16:20] = pack("<I", 0xFFFF_FFFF)
    core, _ = read_all(data)
    assert len(core.threads) == 1
    assert "4294967294 of 4294967295 load commands" in str(core.problems[0])


def test_segments_that_share_bytes_are_limited_by_the_file_size():
    """A small file cannot claim unbounded memory by mapping the same bytes repeatedly."""
    segment = CoreSegment(MemoryRegion(Avma(0), bytes(65536)))
    data = bytearray(assemble_core(CPU_TYPE_ARM64, threads=[STATE], segments=[segment] * 500))
    for number in range(500):
        at = 32 + number * 72
        data[at + 24 : at + 32] = pack("<Q", number * 65536)
        data[at + 40 : at + 48] = pack("<Q", 65536)
    data = data[: 65536 * 3]
    core, _ = read_all(data)
    assert core.memory.size <= len(data)
    assert "shares its bytes" in str(core.problems[0])


def test_overlapping_segments_have_one_owner_per_byte():
    parts = [(0x1000, b"a" * 0x3000), (0x2000, b"b" * 0x800), (0x3800, b"c" * 0x1000)]
    segments = [CoreSegment(MemoryRegion(Avma(at), data)) for at, data in parts]
    core, _ = read_all(assemble_core(CPU_TYPE_ARM64, threads=[STATE], segments=segments))
    read = bytes(core.memory.regions.read(Avma(0x1000), 0x3800))
    assert read == b"a" * 0x3000 + b"c" * 0x800


def test_segments_at_the_end_of_the_address_space():
    """Ranges that wrap are refused; ranges that end at the last address are accepted."""
    last = CoreSegment(MemoryRegion(Avma((1 << 64) - 4096), bytes(4096)))
    beyond = CoreSegment(MemoryRegion(Avma((1 << 64) - 4095), bytes(4096)))
    core, _ = read_all(
        assemble_core(CPU_TYPE_ARM64, threads=[STATE], segments=[last, beyond, last])
    )
    assert core.memory.size == 4096
    assert "address space" in str(core.problems[0])


def test_a_core_without_threads_has_a_problem(opened):
    """Its memory is readable."""
    snapshot = opened(assemble_core(CPU_TYPE_ARM64)).snapshot()
    assert snapshot.threads == ()
    assert "without threads" in str(snapshot.problems[0].error)


def test_a_bad_thread_is_named_and_left_out(opened):
    """Its problem has its id; the others have their stacks."""
    bad = thread_state(6, bytes(64))
    stack = CoreSegment(MemoryRegion(Avma(0x1_0000_0000), bytes(4096)))
    target = opened(assemble_core(CPU_TYPE_ARM64, threads=[STATE, bad, STATE], segments=[stack]))
    assert [info.id for info in target.threads()] == [1, 2, 3]
    snapshot = target.snapshot()
    assert [thread.info.id for thread in snapshot.threads] == [1, 3]
    assert {len(thread.stack.data) for thread in snapshot.threads} == {4096}
    (problem,) = snapshot.problems
    assert problem.thread == 2
    assert isinstance(problem.error, CoreFileError)


def test_a_thread_without_its_stack_has_registers_and_a_problem(opened):
    """The stack is empty, and the problem has its address."""
    target = opened(assemble_core(CPU_TYPE_ARM64, threads=[STATE]))
    snapshot = target.snapshot()
    (thread,) = snapshot.threads
    assert (thread.registers.sp, len(thread.stack.data)) == (0x1_0000_0000, 0)
    assert snapshot.problems[0].thread == 1
    assert "0x100000000" in str(snapshot.problems[0].error)


def test_a_stack_in_several_segments_is_joined(opened):
    """The segments need not be adjacent in the file."""
    parts = [
        (0x1_0000_0000, b"a" * 4096),
        (0x1_0000_2000, b"c" * 4096),
        (0x1_0000_1000, b"b" * 4096),
        (0x1_0000_4000, b"z" * 4096),
    ]
    segments = [CoreSegment(MemoryRegion(Avma(at), data)) for at, data in parts]
    target = opened(assemble_core(CPU_TYPE_ARM64, threads=[STATE], segments=segments))
    (thread,) = target.snapshot().threads
    assert bytes(thread.stack.data) == b"a" * 4096 + b"b" * 4096 + b"c" * 4096
    (thread,) = target.snapshot(stack_limit=5000).threads
    assert bytes(thread.stack.data) == b"a" * 4096 + b"b" * 904


RICH = assemble_core(
    CPU_TYPE_ARM64,
    threads=[STATE, STATE],
    segments=[
        CoreSegment(region, 5)
        for region in (
            *PROCESS.regions,
            loaded_dyld(
                Avma(0x7FFF_0000_0000),
                [(r.start, i.path) for r, i in zip(PROCESS.regions, PROCESS.images, strict=True)],
                Arch.ARM64,
            ),
        )
    ],
)
"""A core without notes, so that images are searched for."""

mutations = st.lists(
    st.tuples(st.integers(0, 8191), st.binary(min_size=1, max_size=8)), min_size=1, max_size=8
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([CORE, RICH]), mutations, st.integers(0, 100))
def test_any_mutation_is_a_core_or_an_error(data, changes, cut):
    """Random bytes at random offsets and a random end give a result in bounded time."""
    mutated = bytearray(data)
    for at, change in changes:
        mutated[at : at + len(change)] = change
    if cut < 50:
        mutated = mutated[: len(mutated) * cut // 50]
    try:
        core, images = read_all(mutated)
    except MachtraceError:
        return
    assert all(isinstance(problem, FormatError) for problem in core.problems)
    assert all(isinstance(problem, MachtraceError) for problem in images.problems)
    assert core.memory.size <= len(mutated)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(RICH) // 4096 - 1), st.integers(0, 1023), st.binary(max_size=64))
def test_mutated_memory_gives_a_core_or_an_error(page, word, change):
    """Random headers of images and a random list of dyld."""
    mutated = bytearray(RICH)
    at = page * 4096 + word * 4
    mutated[at : at + len(change)] = change
    try:
        _, images = read_all(mutated)
    except MachtraceError:
        return
    assert all(isinstance(problem, MachtraceError) for problem in images.problems)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([b"", CORE[:16], CORE[:32]]))
def test_any_bytes_are_refused_or_read(data, prefix):
    with suppress(MachtraceError):
        core, _ = read_all(prefix + data)
        assert core.problems


def test_a_damaged_file_opens_as_a_target(tmp_path):
    """The same checks for a file on disk."""
    path = tmp_path / "cut.core"
    path.write_bytes(CORE[: len(CORE) * 2 // 3])
    with CorefileTarget(path) as target:
        snapshot = target.snapshot()
    assert len(snapshot.threads) == 3
    assert os.fspath(path) in str(snapshot.problems[0].error)
