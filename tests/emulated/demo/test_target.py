"""emulated:demo as a target: opening, copying, refusing, closing."""

import sys
import time

import pytest

from machtrace.errors import (
    MissingExtraError,
    TargetError,
    TargetGoneError,
    TargetSpecError,
    ThreadGoneError,
)
from machtrace.model.snapshot import ThreadId
from machtrace.targets.emulator import target as emulated
from machtrace.targets.emulator.machine import StopPlace
from machtrace.targets.emulator.target import EmulatedTarget
from machtrace.targets.open import open_target


def test_spec_opens_it():
    """The words that the command line takes."""
    with open_target("emulated:demo") as target:
        assert target.process.name == "Demo"
        assert target.process.pid is None
        assert target.process.pointer_mask.bits == (1 << 47) - 1


def test_unknown_name_says_what_there_is():
    """A misspelt name is answered with the right ones."""
    with pytest.raises(TargetSpecError) as raised:
        EmulatedTarget("dmeo")
    assert "dmeo" in str(raised.value)
    assert "emulated:demo" in raised.value.remedy


def test_without_the_emulator_the_extra_is_named(monkeypatch):
    """If it is not installed, the error states it, and how to get it."""
    for module in [m for m in sys.modules if m.startswith("machtrace.targets.emulator.machine")]:
        monkeypatch.delitem(sys.modules, module)
    for module in [m for m in sys.modules if m.partition(".")[0] == "unicorn"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "unicorn", None)

    with pytest.raises(MissingExtraError) as raised:
        EmulatedTarget("demo")
    assert "emulated:demo" in str(raised.value)
    assert "machtrace[emulator]" in raised.value.remedy


def test_stop_times_are_measured(demo):
    """Each thread's own, inside the time that the whole snapshot took."""
    begun = time.monotonic_ns()
    snapshot = demo.snapshot()
    took = time.monotonic_ns() - begun
    stopped = [thread.stopped_for_ns for thread in snapshot.threads]
    assert all(time_ns > 0 for time_ns in stopped)
    assert sum(stopped) <= took
    taken = [thread.taken_at_ns for thread in snapshot.threads]
    assert [begun, *taken] == sorted([begun, *taken])


def test_snapshot_twice_gives_the_same(demo, snapshot):
    """Nothing runs in between, and copying changes nothing."""
    again = demo.snapshot()
    assert [(t.info, t.registers, t.stack) for t in snapshot.threads] == [
        (t.info, t.registers, t.stack) for t in again.threads
    ]
    assert snapshot.memory.regions == again.memory.regions


def test_only_the_threads_asked_for_are_copied(demo):
    """One that is not there is a problem of the snapshot, not its end."""
    second = demo.threads()[1].id
    snapshot = demo.snapshot([second, ThreadId(7)])
    assert [second] == [thread.info.id for thread in snapshot.threads]
    (problem,) = snapshot.problems
    assert problem.thread == 7
    assert isinstance(problem.error, ThreadGoneError)


def test_stack_limit_is_kept(demo, threads):
    """The copy begins below the stack pointer, by the red zone."""
    whole = threads["com.machtrace.render"]
    (short,) = demo.snapshot([whole.info.id], stack_limit=1024).threads
    assert len(short.stack.data) == 1024
    assert whole.stack.start == short.stack.start == whole.registers.sp - 128


def test_calls_are_known_only_where_they_were_recorded(demo):
    """A mistake of the caller's, as is a thread that is not there."""
    with EmulatedTarget("demo") as target, pytest.raises(ValueError, match="record_calls"):
        target.true_stack(target.threads()[0].id)
    with pytest.raises(ThreadGoneError):
        demo.true_stack(ThreadId(7))


def test_closed_target_is_gone():
    """Closing twice is closing once; everything else then fails."""
    target = EmulatedTarget("demo")
    target.close()
    target.close()
    for use in (target.threads, target.snapshot, target.images):
        with pytest.raises(TargetGoneError, match="closed"):
            use()


@pytest.mark.parametrize(
    ("thread", "place", "message"),
    [
        ("com.machtrace.leaf", StopPlace("_objc_msgSendSuper2"), "com.machtrace.leaf"),
        ("com.machtrace.nobody", StopPlace("_main"), "com.machtrace.nobody"),
        ("main", StopPlace("_scramble", arrival=10_000_000), "main"),
    ],
)
def test_thread_that_goes_astray_is_named(monkeypatch, thread, place, message):
    """A place that no thread comes to, and a loop that never ends."""
    places = emulated.demo_places() | {thread: place}
    monkeypatch.setattr(emulated, "demo_places", lambda: places)
    with pytest.raises(TargetError, match=message):
        EmulatedTarget("demo")
