"""A process of macOS by its pid, on a fake of the kernel that serves a process' snapshot."""

from __future__ import annotations

import os
from dataclasses import replace
from errno import EPERM, ESRCH
from pathlib import Path
from struct import pack

import pytest

import machtrace as mt
from machtrace.errors import (
    TargetAccessError,
    TargetError,
    TargetGoneError,
    TargetSpecError,
    ThreadGoneError,
)
from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_X86_64
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.snapshot import ThreadState
from machtrace.targets import open as open_module
from machtrace.targets.base import ActivityTarget
from machtrace.targets.darwin import extension
from machtrace.targets.darwin import task as darwin_task
from machtrace.targets.darwin.task import DarwinTaskTarget
from tests.support.stand_ins.darwin_task import SnapshotTask
from tests.support.writers.macho_core import loaded_dyld
from tests.support.writers.processes import SyntheticProcess, synthetic_process

DYLD_AT = Avma(0x1_9000_0000)
PID = 4711


def task_of(process: SyntheticProcess, **options) -> SnapshotTask:
    """Build the process' task, with a dyld that lists its images."""
    snapshot = process.snapshot
    listed = [(image.load_address, image.path) for image in snapshot.images]
    return SnapshotTask(snapshot, loaded_dyld(DYLD_AT, listed, snapshot.process.arch), **options)


@pytest.fixture(scope="module", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def process(request: pytest.FixtureRequest) -> SyntheticProcess:
    """A small process with known contents."""
    return synthetic_process(request.param, threads=4, images=5, depth=12)


@pytest.fixture
def task(process: SyntheticProcess) -> SnapshotTask:
    """Its task, with access granted."""
    return task_of(process)


@pytest.fixture
def on_darwin(task: SnapshotTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch the platform to be macOS."""
    monkeypatch.setattr(open_module, "this_system", lambda: open_module.System.DARWIN)
    monkeypatch.setattr(darwin_task, "task_extension", lambda: task)


# --- end to end ---


@pytest.mark.usefixtures("on_darwin")
def test_a_pid_gives_the_true_stacks_with_names(
    process: SyntheticProcess, task: SnapshotTask
) -> None:
    """Threads, images by dyld's list, stacks and names, by the one public call."""
    stacks = mt.backtraces(PID)
    assert [stack.thread.id for stack in stacks] == list(process.stacks)
    for stack in stacks:
        true = process.stacks[stack.thread.id]
        assert tuple(frame.address.address for frame in stack.frames) == true
        names = [frame.symbol.linkage_name for frame in stack.frames]
        assert names == [process.function_at(frame.address.lookup) for frame in stack.frames]
    assert task.open_ports == 0


@pytest.mark.usefixtures("on_darwin")
def test_a_saved_snapshot_needs_no_mac(process: SyntheticProcess, tmp_path: Path) -> None:
    """It has the bytes that unwinding and symbolication need of images without a file."""
    path = tmp_path / "task.core"
    mt.save_snapshot(mt.snapshot(PID), path)
    for stack in mt.backtraces(path):
        assert tuple(one.address.address for one in stack.frames) == process.stacks[stack.thread.id]
        assert all(frame.symbol is not None for frame in stack.frames)


def test_threads_have_the_names_of_the_kernel_and_the_labels_of_their_queues(
    task: SnapshotTask,
) -> None:
    """Both when threads are listed and in a snapshot."""
    with DarwinTaskTarget(PID, extension=task) as target:
        listed = target.threads()
        copied = tuple(thread.info for thread in target.snapshot().threads)
    assert listed == copied
    assert [thread.name for thread in listed] == [None, "worker 2", "worker 3", "worker 4"]
    assert [thread.queue for thread in listed] == ["com.apple.main-thread", None, None, None]
    assert [thread.is_main for thread in listed] == [True, False, False, False]


def test_pointers_are_stripped_by_the_kernels_address_width(task: SnapshotTask) -> None:
    """An Intel Mac has no signatures."""
    with DarwinTaskTarget(PID, extension=task) as target:
        mask = target.process.pointer_mask
        assert mask == (PacMask.of_width(47) if target.process.arch.is_arm64 else PacMask())


def test_signed_registers_and_return_addresses_are_stripped() -> None:
    """An arm64e caller gets signed registers, sp included."""
    process = synthetic_process(Arch.ARM64, threads=2, depth=9, signature=0x5A)
    signed = tuple(
        replace(
            thread,
            registers=replace(
                thread.registers,
                pc=Avma(thread.registers.pc | 0x2A << 48),
                values=(*thread.registers.values[:31], thread.registers.values[31] | 0x11 << 48),
            ),
        )
        for thread in process.snapshot.threads
    )
    task = task_of(process)
    task.snapshot = replace(process.snapshot, threads=signed)
    with DarwinTaskTarget(PID, extension=task) as target:
        for stack in mt.backtraces(target):
            found = tuple(frame.address.address for frame in stack.frames)
            assert found == process.stacks[stack.thread.id]


@pytest.mark.emulated
def test_the_emulated_process_has_its_true_stacks() -> None:
    """Its code ran: its threads are in leaves, prologues and epilogues, and one is signed."""
    pytest.importorskip("unicorn", reason="the process runs in unicorn")
    from machtrace.targets.emulator.target import EmulatedTarget

    with EmulatedTarget("demo", record_calls=True) as demo:
        snapshot = demo.snapshot()
        listed = [(image.load_address, image.path) for image in snapshot.images]
        task = SnapshotTask(snapshot, loaded_dyld(DYLD_AT, listed, Arch.ARM64))
        with DarwinTaskTarget(PID, extension=task) as target:
            for stack in mt.backtraces(target):
                addresses = [frame.address.address for frame in stack.frames if not frame.inlined]
                kinds = [frame.address.kind.value for frame in stack.frames]
                physical = [a for a, kind in zip(addresses, kinds, strict=True) if kind == "return"]
                true = list(demo.true_stack(stack.thread.id))
                if "async" not in (stack.thread.name or ""):
                    assert physical == true, stack.thread.name


def test_states_and_processor_times_are_those_of_the_list(
    process: SyntheticProcess, task: SnapshotTask
) -> None:
    """A thread of which the kernel returned nothing has neither."""
    ids = [*process.stacks]
    task.run_states = dict(zip(ids, [1, 3, 4, 0], strict=True))
    task.cpu_ns = dict(zip(ids, [5000, 7000, 0, 0], strict=True))
    with DarwinTaskTarget(PID, extension=task) as target:
        assert isinstance(target, ActivityTarget)
        target.observe_activity()
        threads = target.snapshot().threads
    assert [(thread.state, thread.cpu_ns) for thread in threads] == [
        (ThreadState.RUNNING, 5000),
        (ThreadState.SLEEPING, 7000),
        (ThreadState.UNINTERRUPTIBLE, 0),
        (None, None),
    ]


# --- selections and partial failures ---


def test_only_requested_threads_are_copied(process: SyntheticProcess, task: SnapshotTask) -> None:
    """A missing one is reported by id."""
    wanted = list(process.stacks)[1]
    with DarwinTaskTarget(PID, extension=task) as target:
        snapshot = target.snapshot((wanted, 99))
    assert [thread.info.id for thread in snapshot.threads] == [wanted]
    assert [(problem.thread, type(problem.error)) for problem in snapshot.problems] == [
        (99, ThreadGoneError)
    ]


def test_threads_that_start_during_the_capture_are_copied(
    process: SyntheticProcess, task: SnapshotTask
) -> None:
    late = list(process.stacks)[-1]
    task.hidden = {late}
    task.on_copy = task.hidden.clear
    with DarwinTaskTarget(PID, extension=task) as target:
        snapshot = target.snapshot()
    assert [thread.info.id for thread in snapshot.threads] == list(process.stacks)
    assert snapshot.threads[-1].info.index == len(process.stacks)


@pytest.mark.parametrize(
    ("outcome", "result", "words"),
    [(1, 37, "has exited"), (2, 5, "KERN_FAILURE"), (4, 4, "KERN_INVALID_ARGUMENT")],
)
def test_a_thread_that_cannot_be_copied_leaves_the_others(
    process: SyntheticProcess, task: SnapshotTask, outcome: int, result: int, words: str
) -> None:
    """Its reason is a problem."""
    first, *others = process.stacks
    task.outcomes[first] = outcome, result
    with DarwinTaskTarget(PID, extension=task) as target:
        snapshot = target.snapshot()
    assert [thread.info.id for thread in snapshot.threads] == others
    assert [problem.thread for problem in snapshot.problems] == [first]
    assert words in str(snapshot.problems[0].error)


def test_stacks_are_no_longer_than_the_limit(task: SnapshotTask) -> None:
    """The red zone is not counted."""
    with DarwinTaskTarget(PID, extension=task) as target:
        for thread in target.snapshot(stack_limit=64).threads:
            assert thread.stack.end - thread.registers.sp == 64


def test_images_are_read_once_while_the_list_does_not_change(task: SnapshotTask) -> None:
    with DarwinTaskTarget(PID, extension=task) as target:
        target.snapshot()
        before = len(task.calls)
        first = target.snapshot().images
        assert len(task.calls) - before < before
        assert [image.path for image in target.snapshot().images] == [one.path for one in first]


# --- errors ---


def test_everything_is_released(task: SnapshotTask) -> None:
    """Also if closed twice, or used afterwards."""
    target = DarwinTaskTarget(PID, extension=task)
    assert task.open_ports == 1
    target.close()
    target.close()
    assert task.open_ports == 0
    with pytest.raises(TargetGoneError):
        target.threads()


@pytest.mark.parametrize("pid", [0, -1])
def test_invalid_process_ids_are_refused(task: SnapshotTask, pid: int) -> None:
    """0 is the kernel's, and negative ones are groups."""
    with pytest.raises(TargetSpecError):
        DarwinTaskTarget(pid, extension=task)


def test_the_pid_of_this_process_is_refused(task: SnapshotTask) -> None:
    """Suspended as a whole, this process would never resume."""
    with pytest.raises(TargetSpecError) as refused:
        DarwinTaskTarget(os.getpid(), extension=task)
    assert "self" in refused.value.remedy


def test_a_process_that_does_not_exist_or_has_ended(task: SnapshotTask) -> None:
    with pytest.raises(TargetGoneError):
        DarwinTaskTarget(PID + 1, extension=task)
    task.status = 5
    with pytest.raises(TargetGoneError, match="has exited"):
        DarwinTaskTarget(PID, extension=task)
    assert task.open_ports == 0


@pytest.mark.usefixtures("on_darwin")
def test_a_refusal_reaches_the_public_call(task: SnapshotTask) -> None:
    """With the missing right and the remedy."""
    task.failing = {"task_read_for_pid": EPERM, "task_for_pid": 5}
    with pytest.raises(TargetAccessError) as refused:
        mt.backtraces(PID)
    assert "task_read_for_pid: EPERM, task_for_pid: KERN_FAILURE" in str(refused.value)
    assert "sudo" in refused.value.remedy
    assert (refused.value.pid, refused.value.errno) == (PID, EPERM)


def test_a_process_that_exits_before_its_port_is_opened_is_gone(task: SnapshotTask) -> None:
    """It is not an access error."""
    task.failing = {"task_read_for_pid": ESRCH, "task_for_pid": 5}
    with pytest.raises(TargetGoneError):
        DarwinTaskTarget(PID, extension=task)


def test_a_system_without_read_ports_gives_control_ports(task: SnapshotTask) -> None:
    """As before macOS 11."""
    task.knows_read_port = False
    with DarwinTaskTarget(PID, extension=task) as target:
        assert target.snapshot().threads


@pytest.mark.parametrize("result", [16, 37, 0x10000003])
def test_a_process_that_exits_before_its_threads_are_listed_is_gone(
    task: SnapshotTask, result: int
) -> None:
    """The kernel's result is then that the task does not exist."""
    with DarwinTaskTarget(PID, extension=task) as target:
        task.failing = {"task_threads": result}
        with pytest.raises(TargetGoneError):
            target.threads()
        with pytest.raises(TargetGoneError):
            target.snapshot()


def test_a_process_that_exits_before_it_is_suspended_is_gone(task: SnapshotTask) -> None:
    with DarwinTaskTarget(PID, extension=task) as target:
        task.failing = {"task_suspend2": 0x10000003}
        with pytest.raises(TargetGoneError):
            target.snapshot()
        task.failing = {"task_suspend2": 5}
        with pytest.raises(TargetError, match="KERN_FAILURE"):
            target.snapshot()


def test_a_process_that_may_stay_suspended_is_reported(task: SnapshotTask) -> None:
    """The stacks are returned, too."""
    task.failing = {"task_resume2": 5}
    with DarwinTaskTarget(PID, extension=task) as target:
        snapshot = target.snapshot()
    assert snapshot.threads
    assert [str(problem.error) for problem in snapshot.problems if problem.thread is None] == [
        f"process {PID} may have been left stopped (KERN_FAILURE)"
    ]


@pytest.mark.parametrize("broken", ["no address", "no such structure", "cut off"])
def test_threads_are_copied_without_a_list_of_images(
    process: SyntheticProcess, task: SnapshotTask, broken: str
) -> None:
    """The list may be gone, or not exist yet."""
    if broken == "no address":
        task.failing = {"task_info": 5}
    else:
        data = bytes(task.dyld.data)
        infos = data.index(pack("<2I", 17, len(process.images)))  # version and count
        kept = data[: infos + 8] if broken == "cut off" else data[:infos] + bytes(4) + data[infos:]
        task.dyld = MemoryRegion(task.dyld.start, kept)
    with DarwinTaskTarget(PID, extension=task) as target:
        snapshot = target.snapshot()
    assert len(snapshot.threads) == len(process.stacks)
    assert len(snapshot.images) == 0
    assert bool(snapshot.problems) == (broken != "no address")


# --- processes that cannot be captured from here ---


def test_a_translated_process_is_refused_before_it_is_touched(task: SnapshotTask) -> None:
    """The registers of its threads are Rosetta's."""
    task.flags |= 0x2000000
    with pytest.raises(TargetSpecError, match="Rosetta") as refused:
        DarwinTaskTarget(PID, extension=task)
    assert "gdb://" in refused.value.remedy
    assert "open_task" not in task.calls


def test_a_process_of_the_other_cpu_is_captured(task: SnapshotTask) -> None:
    """A Python that Rosetta translates captures a native process, for example."""
    is_arm64 = task.snapshot.process.arch.is_arm64
    task.own_cpu = CPU_TYPE_X86_64 if is_arm64 else CPU_TYPE_ARM64
    with pytest.raises(TargetSpecError) as refused:
        DarwinTaskTarget(PID, extension=task)
    assert f"arch -{task.snapshot.process.arch.value}" in refused.value.remedy


def test_the_remedy_without_the_extension_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on this machine, unless it is a Mac."""
    monkeypatch.setitem(__import__("sys").modules, "machtrace._native._darwin_task", None)
    with pytest.raises(TargetSpecError, match="_darwin_task") as refused:
        extension.task_extension()
    assert "Mac" in refused.value.remedy
