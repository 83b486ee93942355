"""The threads that the Darwin core stops, the mechanism, and the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion

pytest.importorskip("unicorn", reason="unicorn runs the core")
from machtrace.model.address import Avma
from tests.support.emulated.inprocess_core import CALLER_ID, CaptureCore, Outcome
from tests.support.emulated.libsystem import HANDLE_OFFSET, SELF
from tests.support.emulated.mach import KernReturn, MachRegion, MachThread

ARCHES = pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
STACK = 0x16F000000
SIZE = 0x8000
SP = STACK + 0x4000
FAULTS = {4, 5, 6, 8, 10, 11, 12}
"""Signals: SIGILL, SIGTRAP, SIGABRT, SIGFPE, SIGBUS, SIGSEGV, SIGSYS."""
Library = Callable[[Arch], MachOFileContents]


def core_with(library: Library, arch: Arch, ids: range | list[int], sp: int = SP) -> CaptureCore:
    """Return a core with threads that share one stack, which it does not read."""
    size, place = (272, 31 * 8) if arch is Arch.ARM64 else (168, 7 * 8)
    state = bytearray(size)
    state[place : place + 8] = sp.to_bytes(8, "little")
    threads = [
        MachThread(one, bytes(state), handle=0x70000000 + 0x1000 * one + HANDLE_OFFSET)
        for one in ids
    ]
    core = CaptureCore(library(arch), threads)
    stack = MemoryRegion(Avma(STACK), bytes(index % 251 for index in range(SIZE)))
    core.task.regions = [
        MachRegion(STACK - 0x4000, STACK, None),
        MachRegion(STACK, STACK + SIZE, stack),
    ]
    return core


@ARCHES
def test_one_stands_still_at_a_time(arch: Arch, core_library: Library) -> None:
    """Each for its own copy; the times show from when to when."""
    core = core_with(core_library, arch, range(1, 9))
    copies = core.capture(range(1, 9), stack_limit=0x1000)
    assert core.task.most_suspended == 1
    at = 0
    for copy in copies:
        assert copy.outcome is Outcome.COPIED
        assert at < copy.requested_at < copy.stopped_at < copy.resumed_at
        at = copy.resumed_at
        assert copy.pthread == 0x70000000 + 0x1000 * copy.id


@ARCHES
def test_together_all_are_stopped_before_any_is_copied(arch: Arch, core_library: Library) -> None:
    """They are resumed after the last copy."""
    core = core_with(core_library, arch, range(1, 9))
    copies = core.capture(range(1, 9), stack_limit=0x1000, together=True)
    assert core.task.most_suspended == 8
    core.assert_released()
    assert max(copy.stopped_at for copy in copies) < min(copy.resumed_at for copy in copies)
    calls = [name for name in core.task.calls if name in ("_thread_suspend", "_thread_get_state")]
    # The first of each binds it, with no thread's port.
    assert calls[2:] == ["_thread_suspend"] * 8 + ["_thread_get_state"] * 8


@pytest.mark.parametrize("together", [False, True])
@ARCHES
def test_hundreds_of_threads(arch: Arch, core_library: Library, *, together: bool) -> None:
    """Each is found once, and its id queried once, whatever the order."""
    ids = list(range(5000, 5300))
    core = core_with(core_library, arch, ids)
    core.capture(ids[:1], stack_limit=0x100)
    core.task.calls.clear()
    wanted = ids[::-1]
    copies = core.capture(wanted, stack_limit=0x100, together=together)
    core.assert_released()
    assert [copy.id for copy in copies] == wanted
    assert {copy.outcome for copy in copies} == {Outcome.COPIED}
    calls = Counter(core.task.calls)
    assert calls["_task_threads"] == 1
    assert calls["_thread_info"] <= len(ids) + 2
    assert calls["_thread_suspend"] == calls["_thread_resume"] == len(ids)
    if together:
        assert core.task.most_suspended == len(ids)


@ARCHES
def test_batches_share_one_list_of_ports(arch: Arch, core_library: Library) -> None:
    """Between begin and end the kernel is queried again only for a thread that is not in it."""
    core = core_with(core_library, arch, range(1, 100))
    core.begin()
    for start in range(1, 97, 16):
        copies = core.copy(range(start, start + 16), stack_limit=0x100)
        assert {copy.outcome for copy in copies} == {Outcome.COPIED}
    assert core.task.calls.count("_task_threads") == 1
    young = MachThread(1000, core.task.threads[0].state, port=0x99903)
    core.task.threads.append(young)
    (copy,) = core.copy([1000], stack_limit=0x100)
    assert copy.outcome is Outcome.COPIED
    assert core.task.calls.count("_task_threads") == 2
    (copy,) = core.copy([2000], stack_limit=0x100)
    assert copy.outcome is Outcome.GONE
    core.end()
    core.assert_released()


@ARCHES
def test_of_one_thread_few_are_asked(arch: Arch, core_library: Library) -> None:
    """The main thread comes first in the kernel's list."""
    core = core_with(core_library, arch, range(1, 300))
    core.capture([1], stack_limit=0x100)
    core.task.calls.clear()
    core.capture([1], stack_limit=0x100)
    assert core.task.calls.count("_thread_info") == 2  # with the caller's own, for pthreads


@pytest.mark.parametrize("together", [False, True])
@ARCHES
def test_the_caller_is_never_suspended(
    arch: Arch, core_library: Library, *, together: bool
) -> None:
    """Not even if it is requested, nor if its id is unknown."""
    core = core_with(core_library, arch, [1, 2])
    for _ in range(2):
        copies = core.capture([1, CALLER_ID, 2], stack_limit=0x100, together=together)
        core.assert_released()
        assert [copy.outcome for copy in copies] == [
            Outcome.COPIED,
            Outcome.REFUSED,
            Outcome.COPIED,
        ]
        assert copies[1].error == KernReturn.INVALID_ARGUMENT
        core.task.fault = lambda name, _: (
            KernReturn.FAILURE if name == "_pthread_threadid_np" else None
        )


@ARCHES
def test_a_thread_that_was_suspended_before_stays_so(arch: Arch, core_library: Library) -> None:
    """By a debugger, or by the program itself: suspensions are counted."""
    core = core_with(core_library, arch, [1, 2])
    core.thread(2).suspend_count = 3
    copies = core.capture([1, 2], stack_limit=0x100)
    assert {copy.outcome for copy in copies} == {Outcome.COPIED}
    assert core.thread(2).suspend_count == 3
    core.assert_released()


@ARCHES
def test_ids_are_listed(arch: Arch, core_library: Library) -> None:
    """All of them, of which as many are given as there is room for; rights are given back."""
    core = core_with(core_library, arch, [5, 3, 9])
    assert core.list_ids(64) == (4, [5, CALLER_ID, 3, 9])
    assert core.list_ids(2) == (4, [5, CALLER_ID])
    core.assert_released()
    core.task.fault = lambda name, _: KernReturn.FAILURE if name == "_task_threads" else None
    assert core.list_ids(64) == (-1, [])
    core.assert_released()
    assert core.library.call("_machtrace_inprocess_id") == CALLER_ID


@ARCHES
def test_nothing_is_bound_while_a_thread_is_stopped(arch: Arch, core_library: Library) -> None:
    """The loader binds under a lock that the thread may hold; so all was bound before."""
    core = core_with(core_library, arch, [1])
    core.capture([1], stack_limit=0x1000, together=True)
    calls = core.task.calls
    stops = [index for index, name in enumerate(calls) if name == "_thread_suspend"]
    lets_go = [index for index, name in enumerate(calls) if name == "_thread_resume"]
    assert calls[stops[0] - 1] == "dyld_stub_binder"
    assert "dyld_stub_binder" not in calls[stops[1] : lets_go[-1]]


@ARCHES
def test_signals_are_kept_out_but_for_faults(arch: Arch, core_library: Library) -> None:
    """A handler runs code of others, and may never return."""
    core = core_with(core_library, arch, [1])
    core.libsystem.signals_blocked = before = 1 << 29
    seen = []

    def look(_name: str, _: object) -> None:
        if core.task.suspended.total():
            seen.append(core.libsystem.signals_blocked)

    core.begin()
    core.task.fault = look
    core.copy([1], stack_limit=0x1000)
    core.end()
    allowed = sum(1 << signal - 1 for signal in FAULTS)
    assert set(seen) == {(1 << 32) - 1 & ~allowed}
    assert core.libsystem.signals_blocked == before


@ARCHES
def test_the_clock_is_exact_and_does_not_overflow(arch: Arch, core_library: Library) -> None:
    """125/3 ns a tick, as on Apple's own processors, after a year and after centuries."""
    core = core_with(core_library, arch, [1])
    for years in (0, 1, 250):
        core.task.ticks = years * 365 * 86400 * 24_000_000 + 7
        (copy,) = core.capture([1], stack_limit=0x100)
        assert copy.resumed_at == core.task.ticks * 125 // 3


@ARCHES
def test_the_child_of_a_fork_begins_anew(arch: Arch, core_library: Library) -> None:
    """It has one thread; a lock that another held is free, and ports are nobody's."""
    core = core_with(core_library, arch, [1])
    core.begin()
    core.copy([1], stack_limit=0x100)
    (handler,) = core.libsystem.fork_handlers
    core.task.rights.clear()
    core.task.arrays.clear()
    core.library.run(core.begin_call(handler))
    core.libsystem.locked.clear()  # the mutex was initialised again
    (copy,) = core.capture([1], stack_limit=0x100)
    assert copy.outcome is Outcome.COPIED
    core.assert_released()


@ARCHES
def test_where_a_stack_is(arch: Arch, core_library: Library) -> None:
    """Up to its end or the limit, across adjoining parts; from the guard, where it overflowed."""
    core = core_with(core_library, arch, [1])
    (copy,) = core.capture([1], stack_limit=1 << 20)
    assert (copy.stack_start, len(copy.stack)) == (SP - 128, STACK + SIZE - SP + 128)
    (copy,) = core.capture([1], stack_limit=0x123)
    assert (copy.stack_start, len(copy.stack)) == (SP - 128, 0x123 + 128)
    (copy,) = core.capture([1], stack_limit=0)
    assert (copy.outcome, copy.stack) == (Outcome.COPIED, b"")

    stack = MemoryRegion(Avma(STACK), bytes(2 * SIZE))
    core.task.regions = [
        MachRegion(STACK + part, STACK + part + 0x4000, stack, depth=1)
        for part in range(0, 2 * SIZE, 0x4000)
    ]
    core.task.regions.append(
        MachRegion(STACK + 2 * SIZE, STACK + 3 * SIZE, MemoryRegion(Avma(STACK), b""), tag=1)
    )
    (copy,) = core.capture([1], stack_limit=1 << 20)
    assert copy.stack_start + len(copy.stack) == STACK + 2 * SIZE

    core = core_with(core_library, arch, [1], sp=STACK - 0x40)
    (copy,) = core.capture([1], stack_limit=1 << 20)
    assert (copy.stack_start, len(copy.stack)) == (STACK, SIZE)

    for nowhere in (0, 0x1000, STACK + SIZE, (1 << 64) - 8):
        core = core_with(core_library, arch, [1], sp=nowhere)
        (copy,) = core.capture([1], stack_limit=1 << 20)
        assert (copy.outcome, copy.error, copy.stack) == (Outcome.COPIED, 0, b"")
        core.assert_released()


@ARCHES
def test_the_calling_thread_is_copied_where_it_stands(arch: Arch, core_library: Library) -> None:
    """By the call itself, on its own stack, without a stop."""
    core = core_with(core_library, arch, [1])
    low, high = 0x8_0000_0000, 0x8_1000_0000  # where the emulator has its stacks

    class OwnMemory:
        def read(self, address: Avma, size: int, /) -> bytes:
            return core.memory.read(address, size)

    begin = core.library.stack_of_next_call
    core.task.regions = [MachRegion(begin.start, begin.stop, OwnMemory())]
    core.libsystem.stack_end = begin.stop
    copy = core.copy_here(stack_limit=1 << 16)
    assert copy.outcome is Outcome.COPIED
    assert copy.pthread == SELF
    assert low < copy.stack_start < copy.stack_start + len(copy.stack) == begin.stop < high
    place = 31 * 8 if arch is Arch.ARM64 else 7 * 8
    sp = int.from_bytes(copy.registers[place : place + 8], "little")
    assert copy.stack_start == sp - 128
    assert core.task.most_suspended == 0
    assert core.library.call("_machtrace_inprocess_stack_end") == begin.stop


@ARCHES
def test_memory_that_is_not_there_is_no_fault(arch: Arch, core_library: Library) -> None:
    """As much of a range is read as possible, from its start."""
    core = core_with(core_library, arch, [1])
    to = core.library.allocate(SIZE)
    assert core.library.call("_machtrace_inprocess_read", STACK + 0x7000, to, 0x2000) == 0x1000
    assert core.memory.read(to, 3) == bytes(index % 251 for index in range(0x7000, 0x7003))
    assert core.library.call("_machtrace_inprocess_read", STACK + SIZE, to, 8) == 0
    assert core.library.call("_machtrace_inprocess_read", 0, to, 8) == 0


@ARCHES
def test_there_is_no_signal_to_choose(arch: Arch, core_library: Library) -> None:
    """Darwin's threads are not stopped by one."""
    core = core_with(core_library, arch, [1])
    assert core.library.call("_machtrace_inprocess_signal") == 0
    with pytest.raises(OSError, match="machtrace_inprocess_begin"):
        core.begin(signal=30)
    assert not core.libsystem.locked
