"""``save_snapshot``: the file is complete or absent, and holds the whole snapshot."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

import machtrace
from machtrace.atomic_write import replace_file
from machtrace.errors import CoreFileError, FileAccessError, TargetError
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import ImageFormat, ImageList
from machtrace.model.memory import RegionMemory
from machtrace.model.options import NameOptions
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import Problem
from machtrace.pipeline.backtraces import build_capture
from machtrace.render import text
from machtrace.targets.core.macho import open_corefile
from machtrace.unwinder.unwinder import unwind
from tests.support.writers.processes import synthetic_process


def printed(snapshot, **options):
    """Return the output of ``machtrace backtrace``."""
    sink = StringIO()
    text.write(build_capture(snapshot, names=NameOptions(**options)), sink)
    return sink.getvalue()


def read(path):
    """Open the core at ``path`` as a snapshot."""
    with open_corefile(path) as target:
        return target.snapshot()


def stacks(snapshot):
    """Return the unwound addresses of each thread."""
    return [
        (walked.thread.info, walked.addresses, walked.stop, walked.physical_remainder)
        for walked in unwind(snapshot)
    ]


@pytest.fixture(scope="module")
def demo():
    """A snapshot of the emulated program, none of whose files is on this machine."""
    pytest.importorskip("unicorn", reason="emulated:demo needs the extra 'emulator'")
    return machtrace.snapshot("emulated:demo")


@pytest.mark.emulated
def test_the_demo_prints_the_same_when_read_back(demo, tmp_path):
    """Frames, names, sources of frames, async continuations, queues and stop times."""
    path = tmp_path / "demo.core"
    machtrace.save_snapshot(demo, path)
    assert printed(read(path)) == printed(demo)
    assert stacks(read(path)) == stacks(demo)
    assert any(walked.physical_remainder for walked in unwind(demo))
    assert {thread.stopped_for_ns for thread in demo.threads} != {None}
    for ours, theirs in zip(read(path).threads, demo.threads, strict=True):
        assert ours.registers == theirs.registers
        assert (ours.taken_at_ns, ours.stopped_for_ns) == (
            theirs.taken_at_ns,
            theirs.stopped_for_ns,
        )


@pytest.mark.emulated
def test_one_saved_thread_keeps_its_number(demo, tmp_path):
    third = replace(demo, threads=demo.threads[2:3])
    path = tmp_path / "third.core"
    machtrace.save_snapshot(third, path)
    assert "Thread 3 " in printed(third)
    assert printed(read(path)) == printed(third)


@pytest.mark.emulated
@pytest.mark.peer
def test_lldb_opens_the_demo(demo, tmp_path, lldb):
    """The same threads at the same pcs, with the same image and its names."""
    path = tmp_path / "demo.core"
    machtrace.save_snapshot(demo, path)
    said = lldb(f"target create --core {path}", "thread list", "image list", "bt all")
    threads = re.findall(r"thread #(\d+): tid = (0x[0-9a-f]+), (0x[0-9a-f]+)", said)
    assert [(int(i), int(tid, 16), int(pc, 16)) for i, tid, pc in threads] == [
        (thread.info.index, thread.info.id, thread.registers.pc) for thread in demo.threads
    ]
    (image,) = demo.images
    assert f"{image.identifier} {image.load_address:#018x} {image.path}" in said
    frames = re.findall(r"frame #(\d+): (0x[0-9a-f]+) Demo`", said.partition("bt all")[2])
    (first, *_) = unwind(demo)
    assert [int(at, 16) for _, at in frames[: len(first.addresses)]] == [
        frame.address for frame in first.addresses
    ]


@pytest.mark.emulated
def test_without_images_their_files_are_needed(demo, tmp_path):
    """The core is smaller, and prints the same with the program on the search path."""
    from machtrace.targets.emulator import PROGRAM

    whole, bare = tmp_path / "whole.core", tmp_path / "bare.core"
    machtrace.save_snapshot(demo, whole)
    machtrace.save_snapshot(demo, bare, images="none")
    assert bare.stat().st_size < whole.stat().st_size
    assert list(read(bare).images) == list(demo.images)
    assert printed(read(bare)) != printed(demo)
    renamed = tmp_path / "Demo"
    renamed.write_bytes(PROGRAM.read_bytes())
    assert printed(read(bare), search=(str(renamed),)) == printed(demo)


def test_only_the_parts_of_images_for_unwinding_are_saved(tmp_path):
    """The process has two hundred images."""
    process = synthetic_process(threads=2, images=200, depth=6, functions=200)
    path = tmp_path / "small.core"
    machtrace.save_snapshot(process.snapshot, path)
    assert stacks(read(path)) == stacks(process.snapshot)
    assert printed(read(path)) == printed(process.snapshot)
    assert path.stat().st_size < len(process.core()) / 10


@pytest.mark.parametrize("name", ["saved.core", Path("saved.core")], ids=["str", "Path"])
def test_a_path_may_be_a_string_or_a_path(tmp_path, monkeypatch, name):
    """It is relative to the current folder."""
    monkeypatch.chdir(tmp_path)
    machtrace.save_snapshot(synthetic_process(threads=1, images=1).snapshot, name)
    assert open_corefile(tmp_path / "saved.core").process.arch is Arch.ARM64


def test_problems_of_the_capture_are_problems_of_the_core(tmp_path):
    """Threads that could not be copied, with their remedies."""
    snapshot = synthetic_process(threads=2, images=1).snapshot
    error = TargetError("thread 7 did not stop in time", remedy="capture again, later")
    missing = replace(
        snapshot, problems=(Problem(thread=snapshot.threads[0].info.id, error=error),)
    )
    path = tmp_path / "missing.core"
    machtrace.save_snapshot(missing, path)
    (problem,) = read(path).problems
    assert problem.thread == snapshot.threads[0].info.id
    assert str(problem.error) == str(error)
    assert problem.error.remedy == error.remedy


def test_registers_that_no_thread_state_has_room_for(tmp_path):
    """Halves of vector registers, registers that were not captured, a pc that is no address."""
    snapshot = synthetic_process(Arch.ARM64, threads=1, images=1).snapshot
    (thread,) = snapshot.threads
    values = [*thread.registers.values, *[None] * 100][:80]
    values[72], values[20] = 0x1122334455667788, None
    odd = RegisterSet(Arch.ARM64, Avma(0xDEAD << 48 | 0x1234), tuple(values[:73]))
    path = tmp_path / "odd.core"
    machtrace.save_snapshot(replace(snapshot, threads=(replace(thread, registers=odd),)), path)
    assert read(path).threads[0].registers == odd


@pytest.mark.parametrize(
    "mask", [PacMask(), PacMask.of_width(39), PacMask((1 << 47) - 1 | 1 << 55)]
)
def test_any_address_mask_reads_back(tmp_path, mask):
    """Even one that the note for it cannot express."""
    snapshot = synthetic_process(Arch.ARM64, threads=1, images=1).snapshot
    path = tmp_path / "mask.core"
    machtrace.save_snapshot(
        replace(snapshot, process=replace(snapshot.process, pointer_mask=mask)), path
    )
    assert read(path).process.pointer_mask == mask


def test_images_of_two_formats_are_refused_before_writing(tmp_path):
    snapshot = synthetic_process(Arch.X86_64, threads=1, images=2).snapshot
    first, second = snapshot.images
    mixed = replace(snapshot, images=ImageList([first, replace(second, format=ImageFormat.ELF)]))
    with pytest.raises(CoreFileError):
        machtrace.save_snapshot(mixed, tmp_path / "mixed.core")
    assert list(tmp_path.iterdir()) == []


def test_only_the_owner_may_read_a_core(tmp_path):
    """Memory can hold secrets; kernels, too, write cores with this mode."""
    path = tmp_path / "mine.core"
    machtrace.save_snapshot(synthetic_process(threads=1, images=1).snapshot, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_existing_file_is_replaced_atomically(tmp_path):
    """Open descriptors still read the old file; a symbolic link still leads to the file."""
    path, link = tmp_path / "real.core", tmp_path / "link.core"
    path.write_bytes(b"the old one")
    link.symlink_to(path)
    with path.open("rb") as old:
        machtrace.save_snapshot(synthetic_process(threads=1, images=1).snapshot, link)
        assert old.read() == b"the old one"
    assert link.is_symlink()
    assert open_corefile(path).process.arch is Arch.ARM64
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.core", "real.core"]


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_save_leaves_the_old_file(tmp_path, trouble):
    """No temporary file remains."""
    path = tmp_path / "kept.core"
    path.write_bytes(b"the old one")

    def parts():
        yield b"x" * 100_000
        raise trouble

    with pytest.raises((KeyboardInterrupt, FileAccessError)):
        replace_file(str(path), parts())
    assert path.read_bytes() == b"the old one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/x.core", "no such file or directory"),
        ("", "directory"),
        ("file/x.core", "not a directory"),
        ("x" * 300, "too long"),
        ("a\0b", "null"),
    ],
)
def test_an_unwritable_path_has_the_systems_message_and_a_remedy(tmp_path, name, words):
    (tmp_path / "file").touch()
    snapshot = synthetic_process(threads=1, images=1).snapshot
    with pytest.raises(FileAccessError, match=words) as caught:
        machtrace.save_snapshot(snapshot, f"{tmp_path}/{name}")
    assert "writable" in caught.value.remedy
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_device_is_written_to_and_not_replaced(tmp_path):
    """A full one is an error."""
    snapshot = synthetic_process(threads=1, images=1).snapshot
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(FileAccessError, match="no space left"):
        machtrace.save_snapshot(snapshot, link)
    machtrace.save_snapshot(snapshot, "/dev/null")
    for device in ("/dev/full", "/dev/null"):
        assert stat.S_ISCHR(Path(device).stat().st_mode)


def test_memory_not_needed_for_unwinding_is_not_saved(tmp_path):
    process = synthetic_process(threads=1, images=2)
    heap = process.regions[-1]
    far = replace(heap, start=Avma(0x7_0000_0000), data=bytes(1 << 20))
    snapshot = replace(process.snapshot, memory=RegionMemory([*process.regions, far]))
    path = tmp_path / "x.core"
    machtrace.save_snapshot(snapshot, path)
    assert path.stat().st_size < 1 << 19
    assert stacks(read(path)) == stacks(snapshot)
