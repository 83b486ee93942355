"""ELF cores of every architecture, with lldb and readelf as the peers that read them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from struct import pack

import pytest

from machtrace.errors import CoreFileError, FileAccessError, TargetError
from machtrace.formats.elf.core.file import parse_elf_core
from machtrace.formats.elf.core.loader_memory import loaded_objects
from machtrace.formats.elf.core.writer import core_bytes, core_chunks
from machtrace.formats.elf.structs import LAYOUTS
from machtrace.model.address import Avma, FileOffset, PacMask, Svma
from machtrace.model.arch import Arch
from machtrace.model.cause import Cause, linux_cause
from machtrace.model.image import BinaryImage, BuildId, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import (
    FileMapping,
    LinuxFacts,
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.targets.core.macho import open_corefile
from tests.support.writers.processes import synthetic_process

ARCHITECTURES = [Arch.X86_64, Arch.I386, Arch.ARM64, Arch.ARM]


def words(arch, *values):
    """Pack words of the width of ``arch``."""
    return pack(f"<{len(values)}{'Q' if arch.pointer_size == 8 else 'I'}", *values)


def thread_of(arch, index, *, crashed=False):
    """Build a thread with every general register known and a page of stack."""
    numbers = arch.registers
    general = {
        number: 0x1000 * index + number
        for number, name in enumerate(numbers.names[:33])
        if name not in ("", "pc", "rip", "eip") and not re.fullmatch(r"d\d+", name)
    }
    sp = 0x20000 * index + 0x100
    registers = RegisterSet.of(arch, pc=0x4010 + 4 * index, sp=sp, general=general)
    return ThreadSnapshot(
        info=ThreadInfo(
            id=ThreadId(100 + index),
            index=index,
            name=f"worker {index}",
            queue="com.example.queue" if index == 2 else None,
            is_main=index == 1,
            crashed=crashed,
            cause=linux_cause(11, 1, 0x1234) if crashed else None,
        ),
        registers=registers,
        stack=MemoryRegion(Avma(sp - 0x100), bytes(range(256)) * 16),
        taken_at_ns=1_000_000 + index,
        stopped_for_ns=50 + index,
    )


def snapshot_of(arch, *, crashed=None, mask=PacMask()):
    """Build three threads and two images; if one crashed, the process ended by a signal."""
    images = [
        BinaryImage(
            path=path,
            uuid=build_id,
            arch=arch,
            format=ImageFormat.ELF,
            load_address=Avma(address),
            header_svma=Svma(0),
            size=0x3000,
        )
        for path, build_id, address in (
            ("/usr/lib/libone.so", BuildId(bytes(range(20))), 0x4000),
            ("/usr/lib/lib\udcfftwo.so", None, 0x9000),
        )
    ]
    return Snapshot(
        process=ProcessInfo(pid=101, path="/usr/bin/program", arch=arch, pointer_mask=mask),
        threads=tuple(thread_of(arch, index, crashed=index == crashed) for index in (1, 2, 3)),
        images=ImageList(images),
        linux=LinuxFacts(
            auxiliary_vector=words(arch, 9, 0x4010, 0, 0),
            file_mappings=(
                FileMapping(Avma(0x4000), Avma(0x6000), FileOffset(0), "/usr/lib/libone.so"),
                FileMapping(Avma(0x6000), Avma(0x7000), FileOffset(0x2000), "/usr/lib/libone.so"),
                FileMapping(Avma(0x9000), Avma(0xC000), FileOffset(0), "/usr/lib/lib\udcfftwo.so"),
            ),
            name="program",
            arguments="program --of tests",
            parent=7,
            user=1000,
            group=100,
            signal=11 if crashed else 0,
        ),
    )


@pytest.fixture
def saved(tmp_path):
    """Write a snapshot as a core and open it."""

    def save(snapshot, regions=()):
        path = tmp_path / "saved.core"
        path.write_bytes(core_bytes(snapshot, regions))
        return open_corefile(path).snapshot()

    return save


@pytest.mark.parametrize("crashed", [None, 2])
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: arch.value)
def test_a_core_reads_back_the_whole_snapshot(saved, arch, crashed):
    """The process, threads in order, registers, stacks, images, times, and Linux's metadata."""
    mask = PacMask.of_width(48) if arch is Arch.ARM64 else PacMask()
    snapshot = snapshot_of(arch, crashed=crashed, mask=mask)
    read = saved(snapshot)
    assert read.problems == ()
    assert read.process == snapshot.process
    assert read.linux == snapshot.linux
    assert list(read.images) == list(snapshot.images)
    for ours, theirs in zip(read.threads, snapshot.threads, strict=True):
        sp = theirs.registers.sp
        assert ours.info == theirs.info
        assert ours.registers == theirs.registers
        assert (ours.taken_at_ns, ours.stopped_for_ns) == (
            theirs.taken_at_ns,
            theirs.stopped_for_ns,
        )
        assert bytes(ours.stack.read(sp, 0x100)) == bytes(theirs.stack.read(sp, 0x100))


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: arch.value)
def test_the_crashed_thread_is_written_first(arch):
    """Debuggers show the first one; its signal is the process' signal."""
    snapshot = snapshot_of(arch, crashed=3)
    core = parse_elf_core(memoryview(core_bytes(snapshot)), "test.core")
    assert [thread.id for thread in core.threads] == [103, 101, 102]
    assert {thread.signal for thread in core.threads} == {11}
    assert (core.pid, core.facts.name, core.facts.parent) == (101, "program", 7)


@pytest.mark.peer
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: arch.value)
def test_readelf_understands_the_notes(arch, tmp_path):
    """Each has the size of its type on that architecture, and the files are listed."""
    program = shutil.which("llvm-readelf-19") or shutil.which("llvm-readelf")
    if program is None:
        pytest.skip("llvm-readelf, the peer that lists notes, is not installed")
    path = tmp_path / "x.core"
    path.write_bytes(core_bytes(snapshot_of(arch, crashed=1)))
    command = [program, "-hln", path]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True)
    assert done.stderr == ""
    assert "Type:                              CORE (Core file)" in done.stdout
    sizes = {
        Arch.X86_64: (336, 136),
        Arch.I386: (144, 124),
        Arch.ARM64: (392, 136),
        Arch.ARM: (148, 124),
    }
    found = re.findall(r"CORE +(0x[0-9a-f]+)\s+(NT_PRSTATUS|NT_PRPSINFO) ", done.stdout)
    status, info = sizes[arch]
    assert [(kind, int(size, 16)) for size, kind in found] == [
        ("NT_PRSTATUS", status),
        ("NT_PRPSINFO", info),
        ("NT_PRSTATUS", status),
        ("NT_PRSTATUS", status),
    ]
    assert re.search(r"0x0*4000\s+0x0*6000\s+0x0+\n\s+/usr/lib/libone.so", done.stdout)
    assert re.search(r"0x0*6000\s+0x0*7000\s+0x0*2\n\s+/usr/lib/libone.so", done.stdout)


REGISTER = re.compile(r"^ +(\w+) = (0x[0-9a-f]+)", re.MULTILINE)


@pytest.mark.peer
@pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: arch.value)
def test_lldb_reads_the_same_registers(arch, tmp_path, lldb):
    """By name, of the first thread; and the same program counters of all threads."""
    snapshot = snapshot_of(arch)
    path = tmp_path / "x.core"
    path.write_bytes(core_bytes(snapshot))
    said = lldb(f"target create --core {path}", "thread list", "register read")
    threads = re.findall(r"thread #\d+: tid = (\d+), (0x[0-9a-f]+)", said)
    assert [(int(tid), int(pc, 16)) for tid, pc in threads] == [
        (thread.info.id, thread.registers.pc) for thread in snapshot.threads
    ]
    shown = {name: int(value, 16) for name, value in REGISTER.findall(said)}
    registers, names = snapshot.threads[0].registers, arch.registers.names
    expected = {names[n]: value for n, value in enumerate(registers.values) if value is not None}
    assert {name: shown.get(name) for name in expected} == expected


@pytest.mark.peer
def test_lldb_strips_pointers_by_the_written_mask(tmp_path, lldb):
    """Signed return addresses are followed by the width in NT_ARM_PAC_MASK."""
    snapshot = snapshot_of(Arch.ARM64, mask=PacMask.of_width(48))
    thread = snapshot.threads[0]
    signed = 0x12 << 48 | 0x4444
    stack = bytearray(0x200)
    stack[0x180:0x190] = pack("<QQ", 0, signed)
    fp = thread.stack.start + 0x180
    registers = RegisterSet.of(Arch.ARM64, pc=0x4010, sp=fp, fp=fp, lr=signed)
    one = replace(thread, registers=registers, stack=MemoryRegion(thread.stack.start, bytes(stack)))
    path = tmp_path / "x.core"
    path.write_bytes(core_bytes(replace(snapshot, threads=(one,))))
    said = lldb(f"target create --core {path}", "bt")
    assert "frame #1: 0x0000000000004444" in said


def test_unknown_registers_are_written_as_zero_and_read_as_unknown(saved):
    """The thread's status has no room for unknown values."""
    snapshot = snapshot_of(Arch.X86_64)
    blank = RegisterSet.of(Arch.X86_64, pc=0x4010, sp=0x20100)
    one = replace(snapshot.threads[0], registers=blank)
    partly = replace(snapshot, threads=(one,))
    assert saved(partly).threads[0].registers == blank
    core = parse_elf_core(memoryview(core_bytes(partly)), "test.core")
    assert core.threads[0].registers.get(3) == 0


def test_registers_not_needed_for_unwinding_are_written(saved):
    """Flags and segment bases have the system's values."""
    given = pack("<27Q", *range(1, 28))
    snapshot = snapshot_of(Arch.X86_64)
    one = replace(snapshot.threads[0], native_registers=given)
    assert saved(replace(snapshot, threads=(one,))).threads[0].native_registers == given


def test_more_segments_than_the_header_can_count(saved):
    """Seventy thousand segments: the count is in a section header (gABI, chapter 4)."""
    pieces = [MemoryRegion(Avma(0x100_0000 + 64 * n), pack("<I", n)) for n in range(70_000)]
    read = saved(snapshot_of(Arch.X86_64), pieces)
    assert read.problems == ()
    for n in (0, 65_533, 65_534, 69_999):
        assert bytes(read.memory.read(Avma(0x100_0000 + 64 * n), 4)) == pack("<I", n)
    assert len(read.threads) == 3


def test_a_core_without_threads_has_images_and_a_problem(saved):
    read = saved(replace(snapshot_of(Arch.ARM64), threads=()))
    assert read.process.pid == 101
    assert len(read.images) == 2
    assert ["without threads" in str(problem.error) for problem in read.problems] == [True]


def test_problems_of_the_capture_and_of_the_core_are_reported(saved):
    snapshot = snapshot_of(Arch.I386)
    first, *rest = snapshot.threads
    error = TargetError("thread 9 did not stop", remedy="capture again")
    bare = replace(first, stack=MemoryRegion(Avma(0), b""))
    read = saved(
        replace(
            snapshot,
            threads=(bare, *rest),
            problems=(Problem(thread=ThreadId(9), error=error),),
        )
    )
    missing, noted = read.problems
    assert missing.thread == first.info.id
    assert "is not in the core" in str(missing.error)
    assert (noted.thread, str(noted.error), noted.error.remedy) == (9, str(error), error.remedy)


def test_only_requested_threads_are_read(tmp_path):
    """A missing thread is a problem."""
    path = tmp_path / "x.core"
    path.write_bytes(core_bytes(snapshot_of(Arch.ARM64, crashed=3)))
    with open_corefile(path) as target:
        assert [info.id for info in target.threads()] == [101, 102, 103]
        snapshot = target.snapshot([ThreadId(103), ThreadId(5)])
    assert [thread.info.id for thread in snapshot.threads] == [103]
    assert [problem.thread for problem in snapshot.problems] == [5]
    with pytest.raises(TargetError, match="closed"):
        target.threads()


def test_snapshots_that_an_elf_core_cannot_hold_are_refused():
    """Images of another format, architectures without Linux, addresses that do not fit."""
    macho = synthetic_process(Arch.X86_64, threads=1, images=1).snapshot
    with pytest.raises(CoreFileError, match="Synthetic"):
        core_chunks(macho)
    with pytest.raises(CoreFileError, match="arm64e"):
        core_chunks(snapshot_of(Arch.ARM64E))
    with pytest.raises(CoreFileError, match="i386"):
        core_chunks(snapshot_of(Arch.I386), [MemoryRegion(Avma(1 << 32), b"x")])


def test_an_elf_program_is_not_a_core(tmp_path):
    """The type is checked before anything else is read."""
    path = tmp_path / "x"
    data = bytearray(core_bytes(snapshot_of(Arch.X86_64)))
    data[16] = 2
    path.write_bytes(data)
    with pytest.raises(CoreFileError, match="not a core"):
        open_corefile(path)
    path.unlink()
    with pytest.raises(FileAccessError):
        open_corefile(path)


@pytest.mark.parametrize("arch", [Arch.X86_64, Arch.I386], ids=lambda arch: arch.value)
def test_the_loaders_list_is_followed_and_cycles_end(arch):
    """From the auxiliary vector to each object's name."""
    word = arch.pointer_size
    layout = LAYOUTS[2 if word == 8 else 1, 1]
    headers, dynamic, debug, first, second, name = 0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6FFA

    def header(kind, address, size):
        if word == 8:
            return pack("<IIQQQQQQ", kind, 0, 0, address, 0, size, size, 8)
        return pack("<IIIIIIII", kind, 0, address, 0, size, size, 0, 4)

    table = header(6, headers - 0x800, 0) + header(2, dynamic - 0x800, 4 * word)
    memory = RegionMemory(
        [
            MemoryRegion(Avma(headers), table),
            MemoryRegion(Avma(dynamic), words(arch, 21, debug, 0, 0)),
            MemoryRegion(Avma(debug), words(arch, 1, first, 0, 0, 0)),
            MemoryRegion(Avma(first), words(arch, 0x800, 0, dynamic, second, 0)),
            MemoryRegion(Avma(second), words(arch, 0x7000, name, 0x7800, first, first)),
            MemoryRegion(Avma(name), b"/lib/libx.so\0"),
            MemoryRegion(Avma(name + 13), bytes(100)),
        ]
    )
    vector = words(arch, 3, headers, 4, layout.program_header.size, 5, 2, 0, 0)
    found = loaded_objects(memory, vector, layout)
    assert [(one.bias, one.dynamic, one.name) for one in found] == [
        (0x800, dynamic, ""),
        (0x7000, 0x7800, "/lib/libx.so"),
    ]
    assert loaded_objects(memory, vector[:word], layout) == ()


@pytest.mark.parametrize("arch", ARCHITECTURES, ids=lambda arch: arch.value)
@pytest.mark.parametrize(
    "cause",
    [
        linux_cause(11, 2, 0x1000),
        linux_cause(11, 0x80, 0),
        linux_cause(6, -6, 0, 101, 1000),
        linux_cause(5),
    ],
    ids=str,
)
def test_a_signal_s_information_is_read_without_metadata(tmp_path, arch, cause):
    """Each writer has NT_SIGINFO in its own order; without metadata it is all that is known."""
    snapshot = snapshot_of(arch, crashed=2)
    threads = [
        replace(t, info=replace(t.info, cause=cause if t.info.crashed else None))
        for t in snapshot.threads
    ]
    data = core_bytes(replace(snapshot, threads=tuple(threads)))
    path = tmp_path / "without.core"
    # The name of the note's owner is changed, so that nobody reads it.
    path.write_bytes(data.replace(b"machtrace\0", b"othertool\0"))
    read = open_corefile(path).snapshot()
    assert [(t.info.id, t.info.crashed) for t in read.threads] == [
        (102, True),
        (101, False),
        (103, False),
    ]
    assert [replace(t.info.cause, region="") if t.info.cause else None for t in read.threads] == [
        replace(cause, region=""),
        None,
        None,
    ]


@pytest.mark.parametrize("arch", [Arch.X86_64, Arch.I386])
@pytest.mark.parametrize("size", [0, 12, 19])
def test_a_signal_s_information_that_is_cut_short_is_reported(tmp_path, arch, size):
    data = core_bytes(snapshot_of(arch, crashed=1)).replace(b"machtrace\0", b"othertool\0")
    at = data.index(pack("<II", 128, 0x53494749))
    path = tmp_path / "cut.core"
    path.write_bytes(data[:at] + pack("<II", size, 0x53494749) + data[at + 8 :])
    read = open_corefile(path).snapshot()
    assert f"a signal's information of {size} bytes" in str(read.problems[0].error)
    assert [t.info.cause for t in read.threads if t.info.crashed] == [linux_cause(11)]


def test_causes_in_metadata_may_be_of_any_json(tmp_path):
    """Hostile values are ignored, fact by fact."""
    snapshot = snapshot_of(Arch.X86_64, crashed=1)
    data = core_bytes(snapshot)
    for old, new in ((b'"code": 1', b'"code":[]'), (b'"SIGSEGV"', b'{"a": 1} ')):
        path = tmp_path / "hostile.core"
        path.write_bytes(data.replace(old, new))
        read = open_corefile(path).snapshot()
        (thread,) = (t.info for t in read.threads if t.info.crashed)
        assert isinstance(thread.cause, Cause)
