"""lldb as the peer: it reads the cores written here, and the cores that it writes are read."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from machtrace.formats.macho.core.writer import core_bytes
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import ImageList
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo, ThreadSnapshot
from machtrace.targets.core.macho import open_corefile
from tests.support.writers.processes import synthetic_process

pytestmark = pytest.mark.peer

THREAD = re.compile(r"thread #(\d+): tid = (0x[0-9a-f]+), (0x[0-9a-f]+)")
IMAGE = re.compile(r"\[ *\d+\] ([0-9A-F-]{36}) (0x[0-9a-f]+) (\S+)")
FRAME = re.compile(r"frame #\d+: (0x[0-9a-f]+)")
REGISTER = re.compile(r"^ +(\w+) = (0x[0-9a-f]+)", re.MULTILINE)


def threads_of(text):
    """Return (index, id, pc) of each thread that lldb lists."""
    return [(int(i), int(t, 16), int(pc, 16)) for i, t, pc in THREAD.findall(text)]


def images_of(text):
    """Return (UUID, load address, path) of each image that lldb lists."""
    return [(uuid, int(at, 16), path) for uuid, at, path in IMAGE.findall(text)]


@pytest.fixture(scope="module")
def core_path(process, tmp_path_factory):
    """Save a core of ``process`` as a file."""
    path = tmp_path_factory.mktemp("lldb") / "written.core"
    path.write_bytes(process.core())
    return path


def test_lldb_reads_the_threads_and_images_of_a_saved_core(process, core_path, lldb):
    """Ids, pcs and images are the same."""
    text = lldb(f"target create --core {core_path}", "thread list", "image list")
    snapshot = process.snapshot
    assert threads_of(text) == [
        (thread.info.index, thread.info.id, thread.registers.pc) for thread in snapshot.threads
    ]
    assert sorted(images_of(text)) == sorted(
        (image.identifier, image.load_address, image.path) for image in snapshot.images
    )
    # The program is the first of lldb's images, too.
    assert images_of(text)[0][2] == snapshot.process.path


def test_lldb_unwinds_the_same_stacks_from_a_saved_core(process, core_path, lldb):
    """It has no other file."""
    text = lldb(f"target create --core {core_path}", "thread backtrace all")
    parts = text.partition("thread backtrace all")[2].split("thread #")[1:]
    found = [tuple(int(frame, 16) for frame in FRAME.findall(part)) for part in parts]
    assert found == list(process.stacks.values())
    innermost = process.function_at(process.snapshot.threads[0].registers.pc).removeprefix("_")
    assert innermost in parts[0]


def test_lldb_strips_pointers_by_the_written_mask(tmp_path, lldb):
    """Signed return addresses are read by the width in "addrable bits"."""
    process = synthetic_process(threads=1, images=2, depth=6, signature=0xA5)
    path = tmp_path / "signed.core"
    path.write_bytes(process.core())
    text = lldb(f"target create --core {path}", "thread backtrace all")
    found = tuple(int(frame, 16) for frame in FRAME.findall(text))
    assert found == next(iter(process.stacks.values()))


@pytest.mark.parametrize(
    "arch",
    [Arch.ARM64, Arch.ARM64E, Arch.ARM64_32, Arch.ARMV7, Arch.I386, Arch.X86_64, Arch.X86_64H],
    ids=lambda arch: arch.value,
)
def test_lldb_names_the_same_registers(arch, tmp_path, lldb):
    """By name, lldb has every register that was written by number."""
    names = arch.registers.names
    general = {
        n: 0x100 + n
        for n, name in enumerate(names[:31])
        if name not in ("", "rip", "eip", "pc") and not re.fullmatch(r"d\d+", name)
    }
    registers = RegisterSet.of(arch, pc=0x4010, sp=0x21000, general=general)
    info = ThreadInfo(id=ThreadId(77), index=1, is_main=True)
    stack = MemoryRegion(Avma(0x20000), bytes(0x2000))
    snapshot = Snapshot(
        process=ProcessInfo(pid=None, path="", arch=arch, pointer_mask=PacMask()),
        threads=(ThreadSnapshot(info=info, registers=registers, stack=stack),),
        images=ImageList(),
    )
    path = tmp_path / "registers.core"
    path.write_bytes(core_bytes(snapshot))
    text = lldb(f"target create --core {path}", "thread list", "register read")
    assert threads_of(text) == [(1, 77, 0x4010)]
    shown = {name: int(value, 16) for name, value in REGISTER.findall(text)}
    expected = {names[n]: value for n, value in enumerate(registers.values) if value is not None}
    assert {name: shown.get(name) for name in expected} == expected


@pytest.mark.parametrize("style", ["full", "modified-memory", "stack"])
def test_a_core_saved_by_lldb_gives_the_same_process(process, core_path, lldb, tmp_path, style):
    """With all memory or with stacks alone."""
    saved = tmp_path / "saved.core"
    snapshot = process.snapshot
    text = lldb(
        f"target create --arch {snapshot.process.arch.value}-apple-macosx13.0.0 --core {core_path}",
        f"process save-core --plugin-name=mach-o --style {style} {saved}",
    )
    if not saved.exists():
        pytest.skip(f"this lldb saves no Mach-O core here: {text.strip().splitlines()[-1]}")
    read = open_corefile(saved).snapshot()
    assert read.problems == ()
    assert read.process == replace(snapshot.process, pid=None)
    assert [thread.registers for thread in read.threads] == [
        thread.registers for thread in snapshot.threads
    ]
    assert [thread.info.id for thread in read.threads] == [
        thread.info.id for thread in snapshot.threads
    ]
    for ours, theirs in zip(read.threads, snapshot.threads, strict=True):
        assert bytes(ours.stack.data) == theirs.stack.data
    assert list(read.images) == list(snapshot.images)
