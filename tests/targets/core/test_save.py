"""``Snapshot.save``: a file that is whole or not there, and holds all that a snapshot knows."""

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
    """As ``machtrace backtrace`` prints it."""
    sink = StringIO()
    text.write(build_capture(snapshot, names=NameOptions(**options)), sink)
    return sink.getvalue()


def read(path):
    """The core at ``path`` as a snapshot."""
    with open_corefile(path) as target:
        return target.snapshot()


def stacks(snapshot):
    """The unwound addresses of each thread."""
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
def test_the_demo_reads_back_to_the_letter(demo, tmp_path):
    """Frames, names, how each is known, async continuations, queues and stop times."""
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
def test_a_part_of_the_demo_keeps_its_numbers(demo, tmp_path):
    """One thread, saved alone, is printed as it was among the others."""
    third = replace(demo, threads=demo.threads[2:3])
    path = tmp_path / "third.core"
    machtrace.save_snapshot(third, path)
    assert "Thread 3 " in printed(third)
    assert printed(read(path)) == printed(third)


@pytest.mark.emulated
@pytest.mark.peer
def test_lldb_opens_the_demo(demo, tmp_path, lldb):
    """The same threads at the same places, with the same image and its names."""
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
    """Smaller; and the same again, once the program is pointed to."""
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


def test_what_is_saved_is_small(tmp_path):
    """Only the parts of two hundred images that unwinding reads are saved."""
    process = synthetic_process(threads=2, images=200, depth=6, functions=200)
    path = tmp_path / "small.core"
    machtrace.save_snapshot(process.snapshot, path)
    assert stacks(read(path)) == stacks(process.snapshot)
    assert printed(read(path)) == printed(process.snapshot)
    assert path.stat().st_size < len(process.core()) / 10


@pytest.mark.parametrize("name", ["saved.core", Path("saved.core")], ids=["str", "Path"])
def test_names_of_both_kinds(tmp_path, monkeypatch, name):
    """A string or a path; relative to the current folder."""
    monkeypatch.chdir(tmp_path)
    machtrace.save_snapshot(synthetic_process(threads=1, images=1).snapshot, name)
    assert open_corefile(tmp_path / "saved.core").process.arch is Arch.ARM64


def test_what_was_missing_is_still_said(tmp_path):
    """Threads that could not be copied are problems of the core, too, with their remedies."""
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
def test_masks_of_any_shape(tmp_path, mask):
    """Also one that the note for it cannot hold."""
    snapshot = synthetic_process(Arch.ARM64, threads=1, images=1).snapshot
    path = tmp_path / "mask.core"
    machtrace.save_snapshot(
        replace(snapshot, process=replace(snapshot.process, pointer_mask=mask)), path
    )
    assert read(path).process.pointer_mask == mask


def test_formats_do_not_mix(tmp_path):
    """A core holds images of one format; nothing is written."""
    snapshot = synthetic_process(Arch.X86_64, threads=1, images=2).snapshot
    first, second = snapshot.images
    mixed = replace(snapshot, images=ImageList([first, replace(second, format=ImageFormat.ELF)]))
    with pytest.raises(CoreFileError):
        machtrace.save_snapshot(mixed, tmp_path / "mixed.core")
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_may_read_it(tmp_path):
    """Memory can hold secrets; kernels, too, write cores so."""
    path = tmp_path / "mine.core"
    machtrace.save_snapshot(synthetic_process(threads=1, images=1).snapshot, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_older_file_is_replaced_at_once(tmp_path):
    """Readers of the old file retain it; a link still leads to the file."""
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
def test_what_is_interrupted_leaves_nothing(tmp_path, trouble):
    """The old file is there as it was, and no part of the new one."""
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
def test_where_nothing_can_be_written(tmp_path, name, words):
    """The system's own words, and what to do."""
    (tmp_path / "file").touch()
    snapshot = synthetic_process(threads=1, images=1).snapshot
    with pytest.raises(FileAccessError, match=words) as caught:
        machtrace.save_snapshot(snapshot, f"{tmp_path}/{name}")
    assert "writable" in caught.value.remedy
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_device_is_written_to_and_stays(tmp_path):
    """A full one is an error; neither is replaced by a file."""
    snapshot = synthetic_process(threads=1, images=1).snapshot
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(FileAccessError, match="no space left"):
        machtrace.save_snapshot(snapshot, link)
    machtrace.save_snapshot(snapshot, "/dev/null")
    for device in ("/dev/full", "/dev/null"):
        assert stat.S_ISCHR(Path(device).stat().st_mode)


def test_memory_of_no_use_is_left_out(tmp_path):
    """Memory that unwinding does not read is not saved."""
    process = synthetic_process(threads=1, images=2)
    heap = process.regions[-1]
    far = replace(heap, start=Avma(0x7_0000_0000), data=bytes(1 << 20))
    snapshot = replace(process.snapshot, memory=RegionMemory([*process.regions, far]))
    path = tmp_path / "x.core"
    machtrace.save_snapshot(snapshot, path)
    assert path.stat().st_size < 1 << 19
    assert stacks(read(path)) == stacks(snapshot)
