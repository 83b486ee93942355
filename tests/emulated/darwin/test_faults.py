"""If any call fails, or a thread ends at any time, nothing stays suspended and nothing leaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion

pytest.importorskip("unicorn", reason="unicorn runs the core")
from machtrace.model.address import Avma
from tests.support.emulated.inprocess_core import CaptureCore, NthFault, Outcome
from tests.support.emulated.mach import KernReturn, MachRegion, MachThread

ARCHES = pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
STACKS = 0x16F000000
SIZE = 0x4000
IDS = [11, 12, 13]
CODES = [
    KernReturn.FAILURE,
    KernReturn.RESOURCE_SHORTAGE,
    KernReturn.ABORTED,
    KernReturn.TERMINATED,
    KernReturn.SEND_INVALID_DEST,
    KernReturn.MIG_SERVER_DIED,
]
GONE = {KernReturn.TERMINATED, KernReturn.SEND_INVALID_DEST}
GIVING_BACK = {"_mach_port_deallocate", "_vm_deallocate"}
Library = Callable[[Arch], MachOFileContents]


def core_of_three(library: Library, arch: Arch) -> CaptureCore:
    """Three threads, each on a stack of its own with a guard below it."""
    size, place = (272, 31 * 8) if arch is Arch.ARM64 else (168, 7 * 8)
    threads = []
    regions = []
    for index, thread_id in enumerate(IDS):
        start = STACKS + 2 * SIZE * index
        state = bytearray(size)
        state[place : place + 8] = (start + SIZE - 0x400).to_bytes(8, "little")
        threads.append(MachThread(thread_id, bytes(state)))
        bytes_of = MemoryRegion(Avma(start), bytes([thread_id]) * SIZE)
        regions += [
            MachRegion(start - SIZE, start, None),
            MachRegion(start, start + SIZE, bytes_of),
        ]
    core = CaptureCore(library(arch), threads)
    core.task.regions = regions
    return core


@pytest.mark.parametrize("together", [False, True])
@ARCHES
def test_a_failing_call_leaves_no_thread_suspended(
    arch: Arch, core_library: Library, *, together: bool
) -> None:
    """Each call of a capture fails once with each error; each thread reports its state then."""
    core = core_of_three(core_library, arch)
    core.capture(IDS, stack_limit=0x1000, together=together)
    tried = set()
    for code in CODES:
        for number in range(200):
            core.task.fault = fault = NthFault(number, code)
            copies = core.capture(IDS, stack_limit=0x1000, together=together)
            core.task.fault = None
            failed = fault.failed
            if failed is None:
                break
            tried.add(failed)
            core.task.assert_all_run()
            assert not core.libsystem.locked
            if failed in GIVING_BACK:  # what the system would not take back is here yet
                core.task.rights.clear()
                core.task.arrays.clear()
            if failed == "_pthread_sigmask":
                core.libsystem.signals_blocked = 0
            core.assert_released()
            outcomes = [copy.outcome for copy in copies]
            others = [copy for copy in copies if copy.outcome is not Outcome.COPIED]
            match failed:
                case "_task_threads":
                    assert outcomes == [Outcome.REFUSED] * 3
                    assert {copy.error for copy in copies} == {code}
                case "_thread_suspend" | "_thread_get_state":
                    (thread,) = others
                    assert thread.error == code
                    stopped = Outcome.REFUSED if failed == "_thread_suspend" else Outcome.FAILED
                    assert thread.outcome is (Outcome.GONE if code in GONE else stopped)
                case "_vm_region_recurse_64":  # for the stack, or for what may adjoin it
                    assert [(thread.outcome, thread.error, thread.stack) for thread in others] in (
                        [],
                        [(Outcome.FAILED, code, b"")],
                    )
                case "_thread_info":  # of the thread's id, or of the caller's own
                    assert all(
                        thread.outcome is (Outcome.GONE if code in GONE else Outcome.REFUSED)
                        for thread in others
                    )
                    assert len(others) <= 1
                case _:  # tried again, or done otherwise
                    assert not others, failed
        else:
            pytest.fail("captures make ever more calls")
    assert {"_thread_suspend", "_thread_resume", "_vm_read_overwrite", *GIVING_BACK} <= tried


@ARCHES
def test_the_first_capture_fails_as_well_as_any(arch: Arch, core_library: Library) -> None:
    """It binds its calls, and gets its memory."""
    for number in range(200):
        core = core_of_three(core_library, arch)
        core.task.fault = fault = NthFault(number, KernReturn.RESOURCE_SHORTAGE)
        try:
            copies = core.capture(IDS, stack_limit=0x1000)
        except OSError:
            assert fault.failed == "_pthread_atfork"
        else:
            if fault.failed == "_malloc":
                assert {copy.outcome for copy in copies} == {Outcome.REFUSED}
                assert {copy.error for copy in copies} == {KernReturn.RESOURCE_SHORTAGE}
        if fault.failed is None:
            break
        core.task.assert_all_run()
        assert not core.libsystem.locked
        if fault.failed not in {*GIVING_BACK, "_pthread_sigmask"}:
            core.assert_released()
    else:
        pytest.fail("captures make ever more calls")


@pytest.mark.parametrize("answer", [KernReturn.SEND_INVALID_DEST, KernReturn.TERMINATED])
@pytest.mark.parametrize("together", [False, True])
@ARCHES
def test_a_thread_may_end_at_any_call(
    arch: Arch, answer: KernReturn, core_library: Library, *, together: bool
) -> None:
    """The others are copied, and its port and the array are given back."""
    core = core_of_three(core_library, arch)
    core.task.answer_of_ended = answer
    core.capture(IDS, stack_limit=0x1000, together=together)
    for victim in range(3):
        thread = core.thread(IDS[victim])
        for number in range(200):
            asked = 0

            def ends(_name: str, _: object, thread: MachThread = thread, at: int = number) -> None:
                nonlocal asked
                thread.is_ended |= asked == at
                asked += 1

            core.task.fault = ends
            copies = core.capture(IDS, stack_limit=0x1000, together=together)
            core.assert_released()
            for index, copy in enumerate(copies):
                if index != victim:
                    assert copy.outcome is Outcome.COPIED
                    assert set(copy.stack) == {IDS[index]}
                else:
                    assert copy.outcome in {Outcome.COPIED, Outcome.GONE}
            if not thread.is_ended:
                break
            thread.is_ended = False
            thread.suspend_count = core.task.suspended[thread.port] = 0


@pytest.mark.parametrize("failures", [1, 3, 7])
@ARCHES
def test_a_resume_that_fails_is_tried_again(
    arch: Arch, failures: int, core_library: Library
) -> None:
    """A state that the program would not survive does not depend on one call."""
    core = core_of_three(core_library, arch)
    left = failures

    def fault(name: str, _: object) -> KernReturn | None:
        nonlocal left
        if name != "_thread_resume" or not left:
            return None
        left -= 1
        return KernReturn.RESOURCE_SHORTAGE

    core.begin()
    core.task.fault = fault
    copies = core.copy(IDS, stack_limit=0x1000)
    core.end()
    core.assert_released()
    assert {copy.outcome for copy in copies} == {Outcome.COPIED}


@pytest.mark.parametrize("together", [False, True])
@ARCHES
def test_a_thread_that_cannot_be_let_go_is_told(
    arch: Arch, core_library: Library, *, together: bool
) -> None:
    """It was copied, and the others continue."""
    core = core_of_three(core_library, arch)
    core.begin()
    stays = core.thread(IDS[1]).port

    def fault(name: str, arguments: Sequence[int]) -> KernReturn | None:
        if name == "_thread_resume" and arguments[0] % (1 << 32) == stays:
            return KernReturn.RESOURCE_SHORTAGE
        return None

    core.task.fault = fault
    core.task.is_checked = False  # what is done after it was left so cannot be right or wrong
    copies = core.copy(IDS, stack_limit=0x1000, together=together)
    assert [copy.outcome for copy in copies] == [
        Outcome.COPIED,
        Outcome.LEFT_STOPPED,
        Outcome.COPIED,
    ]
    assert copies[1].error == KernReturn.RESOURCE_SHORTAGE
    assert set(copies[1].stack) == {IDS[1]}
    assert sum(core.task.suspended.values()) == 1


@ARCHES
def test_a_thread_that_something_else_resumed_is_left_alone(
    arch: Arch, core_library: Library
) -> None:
    """A second resume would undo another's suspension."""
    core = core_of_three(core_library, arch)
    thread = core.thread(IDS[0])

    def resumes(name: str, _: object) -> KernReturn | None:
        if name == "_vm_read_overwrite" and thread.suspend_count:
            thread.suspend_count = 0
            core.task.suspended[thread.port] = 0
        return None

    core.begin()
    core.task.fault = resumes
    (copy,) = core.copy(IDS[:1], stack_limit=0x1000)
    core.end()
    core.assert_released()
    assert copy.outcome is Outcome.COPIED
    assert core.task.calls.count("_thread_resume") == 2  # with the one that bound it


@ARCHES
def test_as_much_of_a_stack_as_can_be_read_is_copied(arch: Arch, core_library: Library) -> None:
    """The kernel reads all of a range or nothing: one that has lost its end is read in parts."""
    core = core_of_three(core_library, arch)
    start = STACKS
    held = MemoryRegion(Avma(start), bytes(SIZE - 0x200))  # not the last 0x200 bytes
    core.task.regions[1] = MachRegion(start, start + SIZE, held)
    (copy,) = core.capture(IDS[:1], stack_limit=0x1000)
    core.assert_released()
    assert copy.outcome is Outcome.FAILED or copy.stack == b""
    big = bytes(range(256)) * (SIZE // 64)  # of four pages
    lost = MemoryRegion(Avma(start), big[: 3 * SIZE])
    core.task.regions = [MachRegion(start, start + 4 * SIZE, lost)]
    thread = core.thread(IDS[0])
    place = 31 * 8 if arch is Arch.ARM64 else 7 * 8
    state = bytearray(thread.state)
    state[place : place + 8] = (start + 0x1234).to_bytes(8, "little")
    thread.state = bytes(state)
    (copy,) = core.capture(IDS[:1], stack_limit=1 << 20)
    core.assert_released()
    assert copy.outcome is Outcome.COPIED
    assert copy.stack_start == start + 0x1234 - 128
    assert copy.stack == big[0x1234 - 128 : 3 * SIZE]
