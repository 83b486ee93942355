"""This process as a target on macOS, on fakes of both extensions."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable
from uuid import UUID

import pytest

from machtrace.errors import MemoryReadError, TargetSpecError
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.targets import open as open_module
from machtrace.targets.inprocess import copier, darwin
from machtrace.targets.inprocess.darwin import DarwinSelfTarget
from machtrace.targets.open import open_target
from machtrace.unwinder.unwinder import unwind
from tests.support.stand_ins.darwin_task import SnapshotTask
from tests.support.writers.macho_core import loaded_dyld
from tests.support.writers.processes import SyntheticProcess, synthetic_process

DYLD_AT = Avma(0x1_9000_0000)


class OwnExtension:
    """A fake ``_inprocess`` of macOS with the threads of a task."""

    def __init__(self, task: SnapshotTask) -> None:
        self.task = task
        self.changes = 1
        self.listed = 0
        self.signals: list[int] = []

    def copy_threads(
        self,
        threads: tuple[int, ...],
        ranges: array[int],
        stack_limit: int,
        answer_limit: int,
        sleep_limit: int,
        signal: int,
        together: bool,  # noqa: FBT001 - as the extension has it
        current_frames: Callable[[], dict[int, object]] | None,
        /,
    ) -> tuple[list[tuple[object, ...]], dict[int, list[object]]]:
        """Return rows of nine columns, with the pthread."""
        del ranges, answer_limit, sleep_limit, together, current_frames
        self.signals.append(signal)
        _, _, rows = self.task.copy_threads(0x1303, threads, stack_limit, (1 << 47) - 1, False)  # noqa: FBT003
        return [(*row[:9], 0x16F000000 + row[0]) for row in rows], {}

    def own_images(self) -> list[tuple[object, ...]]:
        """Return the images in arbitrary order, as dyld's callbacks do."""
        self.listed += 1
        cpu = 0x100000C if self.task.snapshot.process.arch.is_arm64 else 0x1000007
        return [
            (
                image.load_address,
                image.slide % (1 << 64),
                image.size,
                cpu,
                0,
                image.uuid.bytes if isinstance(image.uuid, UUID) else None,
                image.path.encode(),
            )
            for image in reversed(list(self.task.snapshot.images))
        ]

    def image_changes(self) -> int:
        """Return the counter."""
        return self.changes


@pytest.fixture(scope="module", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def process(request: pytest.FixtureRequest) -> SyntheticProcess:
    """The facts of this process."""
    return synthetic_process(request.param, threads=4, images=3, depth=7)


@pytest.fixture
def own(process: SyntheticProcess, monkeypatch: pytest.MonkeyPatch) -> OwnExtension:
    """The extension for this process."""
    pytest.importorskip("machtrace._native._inprocess", reason="built without its extensions")
    snapshot = process.snapshot
    listed = [(image.load_address, image.path) for image in snapshot.images]
    dyld = loaded_dyld(DYLD_AT, listed, snapshot.process.arch)
    found = OwnExtension(SnapshotTask(snapshot, dyld, pid=os.getpid()))
    monkeypatch.setattr(copier, "_inprocess", found)
    return found


@pytest.fixture
def target(own: OwnExtension):
    """This process as a target of macOS."""
    with DarwinSelfTarget(extension=own.task, images=own) as opened:  # type: ignore[arg-type]
        yield opened


def test_threads_of_this_process_have_their_true_stacks(
    target: DarwinSelfTarget, process: SyntheticProcess
) -> None:
    """The extension copies this process, with dyld's images."""
    snapshot = target.snapshot()
    assert [image.path for image in snapshot.images] == [
        image.path for image in process.snapshot.images
    ]
    for walked in unwind(snapshot):
        found = tuple(address.address for address in walked.addresses)
        assert found == process.stacks[walked.thread.info.id]
    assert snapshot.threads[0].info.queue == "com.apple.main-thread"


def test_code_of_images_can_be_read_later_and_stacks_cannot(
    target: DarwinSelfTarget, process: SyntheticProcess
) -> None:
    """A stack that was not copied must not be read from the running thread."""
    snapshot = target.snapshot(stack_limit=0)
    image = next(iter(snapshot.images))
    assert len(snapshot.memory.read(image.load_address, image.size)) == image.size
    stack = process.snapshot.threads[0].stack
    with pytest.raises(MemoryReadError):
        snapshot.memory.read(stack.start, 8)
    with pytest.raises(MemoryReadError):
        snapshot.memory.read(Avma(image.end - 4), 1 << 30)


def test_images_are_queried_again_only_after_a_change(
    target: DarwinSelfTarget, own: OwnExtension
) -> None:
    first = target.snapshot().images
    assert target.snapshot().images is first
    assert own.listed == 1
    own.changes += 1
    assert len(target.snapshot().images) == len(first)
    assert own.listed == 2


def test_the_calling_thread_is_not_suspended(
    target: DarwinSelfTarget, process: SyntheticProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would never resume."""
    first, *others = process.stacks
    monkeypatch.setattr(darwin.threading, "get_native_id", lambda: int(first))
    assert [thread.info.id for thread in target.snapshot().threads] == others


def test_threads_have_their_python_names(
    target: DarwinSelfTarget, process: SyntheticProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's names are cut after 63 bytes."""
    second = list(process.stacks)[1]
    thread = threading.Thread(name="a name that only Python knows")
    monkeypatch.setattr(threading.Thread, "native_id", second)
    monkeypatch.setattr(threading, "enumerate", lambda: [thread])
    names = [info.name for info in target.threads()]
    assert names == [None, "a name that only Python knows", "worker 3", "worker 4"]
    assert target.python_threads() == {second: thread}


def test_threads_are_found_by_id_and_by_pthread(
    target: DarwinSelfTarget, process: SyntheticProcess
) -> None:
    third = list(process.stacks)[2]
    assert target.thread_id(int(third)) == third
    assert target.thread_id(0x16F000000 + third) == third
    with pytest.raises(TargetSpecError):
        target.thread_id(0x1234567)


def test_no_signal_is_reserved(
    target: DarwinSelfTarget, own: OwnExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no real-time signals on macOS, and none is needed."""
    monkeypatch.delattr(copier.signal, "SIGRTMIN")
    monkeypatch.setenv(copier.SIGNAL_VARIABLE, "40")
    assert target.snapshot().threads
    assert set(own.signals) == {0}


def test_the_spec_self_opens_this_target_on_a_mac(
    monkeypatch: pytest.MonkeyPatch, own: OwnExtension
) -> None:
    monkeypatch.setattr(open_module, "this_system", lambda: open_module.System.DARWIN)
    monkeypatch.setattr(darwin, "own_images", lambda: own)
    monkeypatch.setattr("machtrace.targets.darwin.task.task_extension", lambda: own.task)
    with open_target("self") as opened:
        assert isinstance(opened, DarwinSelfTarget)
        assert opened.process.pid == os.getpid()
    assert own.task.open_ports == 0
