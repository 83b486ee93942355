"""The core that captures other tasks, run in an emulator: nothing stays suspended or leaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from struct import pack

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion

pytest.importorskip("unicorn", reason="unicorn runs the core")
from tests.support.emulated.darwin_task_core import TaskCopy, TaskCore
from tests.support.emulated.inprocess_core import NthFault
from tests.support.emulated.library import EmulatedMemoryBlock, Function
from tests.support.emulated.mach import KernReturn, MachRegion, MachThread
from tests.support.emulated.task import OWN_PID, SYSTEM_NS, USER_NS, WAITING

NATIVE = Path(__file__).parents[3] / "native"
STACKS = 0x16F000000
SIZE = 0x4000
BELOW_END = 0x400
"""Bytes of each stack that are in use."""
RED_ZONE = 128
QUEUES = 0x1_5F00_0000
IDS = [11, 12, 13]
PID = 4711
COPIED, GONE, REFUSED, FAILED = 0, 1, 2, 4
EPERM, ESRCH = 1, 3
MINUS_ONE = (1 << 64) - 1
READ, CONTROL = 1, 2
CODES = [
    KernReturn.FAILURE,
    KernReturn.RESOURCE_SHORTAGE,
    KernReturn.ABORTED,
    KernReturn.TERMINATED,
    KernReturn.SEND_INVALID_DEST,
    KernReturn.MIG_SERVER_DIED,
]
ENDED = {KernReturn.TERMINATED, KernReturn.SEND_INVALID_DEST}
GIVING_BACK = {"_mach_port_deallocate", "_vm_deallocate"}
TOGETHER = pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])


@pytest.fixture(scope="module", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> MachOFileContents:
    """The core, built."""
    pytest.importorskip("ziglang", reason="ziglang compiles and links for Darwin")
    from tests.support.compilers.darwin import build_library

    core = (path for path in NATIVE.glob("darwin_task/*.c") if path.name != "module.c")
    sources = [*sorted(core), NATIVE / "common/darwin/memory.c"]
    sources.append(Path(__file__).parent / "task_layout.c")
    output = tmp_path_factory.mktemp(request.param.value) / "task.dylib"
    build_library(sources, output, arch=request.param, includes=[NATIVE])
    return MachOFileContents(output.read_bytes(), output.name)


def state_of(library: MachOFileContents, sp: int, number: int) -> bytes:
    """Registers that are like no other thread's."""
    size, place = (272, 31 * 8) if library.image.arch is Arch.ARM64 else (168, 7 * 8)
    state = bytearray(bytes([number]) * size)
    state[place : place + 8] = sp.to_bytes(8, "little")
    return bytes(state)


def stack_bytes(number: int) -> bytes:
    """A stack that is like no other thread's."""
    return b"".join(pack("<2I", number, place) for place in range(SIZE // 8))


def core_of_three(library: MachOFileContents) -> TaskCore:
    """Three threads, each on a stack of its own with a guard below it; the second has a queue."""
    threads = []
    regions = [MachRegion(QUEUES, QUEUES + 8, MemoryRegion(Avma(QUEUES), pack("<Q", 0xABCD)))]
    for index, number in enumerate(IDS):
        start = STACKS + 2 * SIZE * index
        threads.append(MachThread(number, state_of(library, start + SIZE - BELOW_END, number)))
        regions += [
            MachRegion(start - SIZE, start, None),
            MachRegion(start, start + SIZE, MemoryRegion(Avma(start), stack_bytes(number))),
        ]
    core = TaskCore(library, threads)
    core.task.regions = regions
    core.task.queue_addresses[IDS[1]] = QUEUES
    core.task.names[IDS[2]] = b"x" * 64
    return core


def check_whole(core: TaskCore, library: MachOFileContents, copies: Sequence[TaskCopy]) -> None:
    """Registers, stacks and queues are what the threads have."""
    for index, copy in enumerate(copies):
        if copy.outcome != COPIED:
            continue
        start = STACKS + 2 * SIZE * IDS.index(copy.id)
        sp = start + SIZE - BELOW_END
        assert copy.registers == state_of(library, sp, copy.id), index
        if copy.stack:
            assert copy.stack_start == sp - RED_ZONE
            assert copy.stack == stack_bytes(copy.id)[-BELOW_END - RED_ZONE :]
        assert copy.queue in (0, 0xABCD if copy.id == IDS[1] else 0)
        assert copy.requested_at <= copy.stopped_at <= copy.resumed_at
    core.task.assert_all_run()


# --- ports ---


def test_a_read_port_is_enough(library: MachOFileContents) -> None:
    """The other ones are not queried."""
    core = core_of_three(library)
    opened = core.open(PID)
    assert opened["port"]
    assert (opened["kind"], opened["read_error"]) == (READ, 0)
    assert "_task_for_pid" not in core.task.calls
    core.close(opened["port"])
    core.task.assert_released()


def test_the_control_port_is_asked_for_where_there_is_no_other(library: MachOFileContents) -> None:
    """As on a system that knows no read ports."""
    core = core_of_three(library)
    core.task.read_errno = 78  # ENOSYS of Darwin
    opened = core.open(PID)
    assert (opened["kind"], opened["read_error"], opened["control_error"]) == (CONTROL, 78, 0)
    core.close(opened["port"])
    core.task.assert_released()


@pytest.mark.parametrize("name_answer", [KernReturn.SUCCESS, KernReturn.FAILURE])
def test_a_refusal_tells_all_answers(library: MachOFileContents, name_answer: KernReturn) -> None:
    """And leaves no right, that to the name neither."""
    core = core_of_three(library)
    core.task.read_errno = EPERM
    core.task.control_answer = KernReturn.FAILURE
    core.task.name_answer = name_answer
    assert core.open(PID) == {
        "port": 0,
        "kind": 0,
        "read_error": EPERM,
        "control_error": KernReturn.FAILURE,
        "name_error": name_answer,
    }
    core.task.assert_released()


def test_a_process_that_ends_gives_no_port(library: MachOFileContents) -> None:
    """Though nothing fails."""
    core = core_of_three(library)
    core.task.is_exiting = True
    opened = core.open(PID)
    assert (opened["port"], opened["read_error"]) == (0, ESRCH)
    assert core.open(PID + 1)["read_error"] == ESRCH
    core.task.assert_released()


def test_its_own_port_is_not_asked_for(library: MachOFileContents) -> None:
    """It has that, and gives back no more than it took."""
    core = core_of_three(library)
    opened = core.open(OWN_PID)
    assert opened["kind"] == CONTROL
    core.close(opened["port"])
    core.task.assert_released()
    assert not any("for_pid" in call for call in core.task.calls)


# --- threads ---


@pytest.mark.parametrize("room", [0, 2, 3, 10])
def test_threads_are_listed_as_far_as_there_is_room(library: MachOFileContents, room: int) -> None:
    """Their number is returned in any case; a name that is too long is terminated all the same."""
    core = core_of_three(library)
    port = core.open(PID)["port"]
    result, count, rows = core.threads(port, room)
    named = [(11, 0, b""), (12, QUEUES, b""), (13, 0, b"x" * 63)]
    expected = [(*row, WAITING, USER_NS + SYSTEM_NS) for row in named]
    assert (result, count, rows) == (0, 3, expected[:room])
    core.close(port)
    core.task.assert_released()


@TOGETHER
def test_threads_are_copied_as_they_are(library: MachOFileContents, *, together: bool) -> None:
    """In the requested order; an id without a thread is gone."""
    core = core_of_three(library)
    port = core.open(PID)["port"]
    ids = [13, 99, 11, 12]
    result, left, copies = core.copy(port, ids, stack_limit=SIZE, together=together)
    assert (result, left) == (0, 0)
    assert [copy.id for copy in copies] == ids
    assert [copy.outcome for copy in copies] == [COPIED, GONE, COPIED, COPIED]
    assert all(copy.stack for copy in copies if copy.outcome == COPIED)
    assert [copy.queue for copy in copies] == [0, 0, 0, 0xABCD]
    check_whole(core, library, copies)
    assert core.task.most_suspended == (0 if together else 1)
    assert core.task.calls.count("_task_suspend2") == together
    core.close(port)
    core.task.assert_released()


@TOGETHER
def test_stacks_share_the_room_that_there_is(library: MachOFileContents, *, together: bool) -> None:
    """The last one is cut short, or empty; its registers are there."""
    core = core_of_three(library)
    port = core.open(PID)["port"]
    whole = BELOW_END + RED_ZONE
    _, _, copies = core.copy(port, IDS, stack_limit=SIZE, together=together, room=whole + 16)
    assert [len(copy.stack) for copy in copies] == [whole, 16, 0]
    assert all(copy.outcome == COPIED and copy.registers for copy in copies)
    _, _, copies = core.copy(port, IDS, stack_limit=64, together=together)
    assert [len(copy.stack) for copy in copies] == [64 + RED_ZONE] * 3
    _, _, copies = core.copy(port, IDS, stack_limit=0, together=together)
    assert [copy.stack for copy in copies] == [b""] * 3
    core.close(port)
    core.task.assert_released()


def test_a_signed_stack_pointer_is_an_address(library: MachOFileContents) -> None:
    """By the mask that the caller gives."""
    core = core_of_three(library)
    port = core.open(PID)["port"]
    start = STACKS + SIZE - BELOW_END
    core.task.threads[0].state = state_of(library, start | 0x2A << 50, 11)
    _, _, (copy,) = core.copy(port, IDS[:1], stack_limit=SIZE, together=True)
    assert copy.stack_start == start - RED_ZONE
    core.close(port)


@TOGETHER
def test_a_thread_that_ends_meanwhile_leaves_the_others(
    library: MachOFileContents, *, together: bool
) -> None:
    """Between any two calls."""
    core = core_of_three(library)
    port = core.open(PID)["port"]
    fault = NthFault(10_000, KernReturn.FAILURE)
    core.task.fault = fault
    core.copy(port, IDS, stack_limit=SIZE, together=together)
    for number in range(len(fault.asked)):
        core = core_of_three(library)
        port = core.open(PID)["port"]
        asked = 0

        def ends(_name: str, _: Sequence[int]) -> None:
            nonlocal asked
            asked += 1
            if asked == number + 1:  # noqa: B023 - called within this turn only
                core.task.threads[1].is_ended = True  # noqa: B023

        core.task.fault = ends
        _, left, copies = core.copy(port, IDS, stack_limit=SIZE, together=together)
        core.task.fault = None
        assert left == 0
        assert [copy.outcome for copy in copies if copy.id != IDS[1]] == [COPIED, COPIED]
        check_whole(core, library, copies)
        core.close(port)
        core.task.assert_released()


@TOGETHER
def test_whatever_call_fails_nothing_stays_suspended(
    library: MachOFileContents, *, together: bool
) -> None:
    """Each fails once with each error; each thread reports the effect on it."""
    core = core_of_three(library)
    port = core.open(PID)["port"]
    core.copy(port, IDS, stack_limit=SIZE, together=together)
    tried = set()
    for code in CODES:
        for number in range(200):
            core.task.fault = fault = NthFault(number, code)
            result, left, copies = core.copy(port, IDS, stack_limit=SIZE, together=together)
            core.task.fault = None
            failed = fault.failed
            if failed is None:
                break
            tried.add(failed)
            core.task.assert_all_run()
            assert left == 0
            if failed in GIVING_BACK:  # what the system would not take back is here yet
                core.task.arrays.clear()
                for name in set(core.task.rights) - {port}:
                    core.task.rights[name] = 0
            assert not core.libsystem.blocks
            assert not core.task.arrays
            assert {name for name, count in core.task.rights.items() if count} == {port}
            check_whole(core, library, copies)
            others = [copy for copy in copies if copy.outcome != COPIED]
            match failed:
                case "_calloc" | "_malloc":
                    assert result == KernReturn.RESOURCE_SHORTAGE
                    assert [copy.outcome for copy in copies] == [REFUSED] * 3
                case "_task_threads" | "_task_suspend2":
                    assert result == code % (1 << 32)
                    assert {copy.error for copy in copies} == {result}
                    assert [copy.outcome for copy in copies] == [REFUSED] * 3
                case "_thread_suspend" | "_thread_get_state":
                    (thread,) = others
                    assert thread.error == code % (1 << 32)
                    stopped = REFUSED if failed == "_thread_suspend" else FAILED
                    assert thread.outcome == (GONE if code in ENDED else stopped)
                case "_thread_info":
                    assert [thread.outcome for thread in others] in ([], [GONE])
                case _:
                    assert not others, failed
        else:
            pytest.fail("captures make ever more calls")
    assert {"_thread_get_state", "_vm_read_overwrite", "_task_threads", *GIVING_BACK} <= tried
    stopping = {"_task_suspend2", "_task_resume2"} if together else {"_thread_suspend"}
    assert stopping <= tried


def test_what_cannot_be_let_go_of_is_told(library: MachOFileContents) -> None:
    """The kernel never resumes it, whatever is tried."""
    core = core_of_three(library)
    port = core.open(PID)["port"]
    core.task.is_checked = False
    core.task.fault = lambda name, _: KernReturn.FAILURE if name == "_thread_resume" else None
    _, left, copies = core.copy(port, IDS, stack_limit=SIZE, together=False)
    assert left == KernReturn.FAILURE
    assert [copy.outcome for copy in copies] == [COPIED] * 3


# --- the system's facts about processes ---


class System:
    """A system's facts about process 4711, and about the caller."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses
        self.core: TaskCore | None = None

    @property
    def memory(self) -> EmulatedMemoryBlock:
        """The caller's facts."""
        assert self.core is not None
        return self.core.memory

    @property
    def functions(self) -> dict[str, Function]:
        """By the symbols that they are imported by."""
        return {
            "_proc_pidinfo": self.proc_pidinfo,
            "_proc_pidpath": self.proc_pidpath,
            "_csops": self.csops,
            "_csr_get_active_config": self.csr_get_active_config,
            "_sysctlbyname": self.sysctlbyname,
            "_memcmp": self.memcmp,
            "_bcmp": self.memcmp,
            "_geteuid": lambda _: 501,
        }

    def proc_pidinfo(self, arguments: Sequence[int]) -> int:
        """``PROC_PIDT_SHORTBSDINFO`` of all, ``PROC_PIDARCHINFO`` of one's own."""
        pid, flavour, place, size = (arguments[index] for index in (0, 1, 3, 4))
        if pid != PID:
            assert self.core is not None
            self.memory.set_word(self.core.task.errno_at, ESRCH, 4)
            return 0
        if flavour == 13:
            users = (501, 20, 501, 20, 0, 20, 0)
            name = b"a-long-name-of-1"
            data = pack("<4I16s8I", PID, 1, PID, 2, name, 0x2000010, *users)
        else:
            assert flavour == 19
            data = b"" if self.refuses else pack("<2I", 0x100000C, 2)
        assert len(data) in (0, size)
        self.memory.write(place, data)
        return len(data)

    def proc_pidpath(self, arguments: Sequence[int]) -> int:
        """Without an end, as if it just fitted."""
        path = b"" if self.refuses else b"/Applications/Demo.app/Demo"
        self.memory.write(arguments[1], path)
        return len(path)

    def csops(self, arguments: Sequence[int]) -> int:
        """Flags, or a property list of entitlements."""
        _, operation, place, size = arguments[:4]
        if self.refuses:
            return MINUS_ONE
        if operation == 0:
            self.memory.set_word(place, 0x10004, 4)
            return 0
        blob = b"<dict><key>com.apple.security.cs.debugger</key><true/></dict>"
        assert size > len(blob)
        self.memory.write(place, pack(">2I", 0xFADE7171, len(blob) + 8) + blob)
        return 0

    def csr_get_active_config(self, arguments: Sequence[int]) -> int:
        """All off."""
        self.memory.set_word(arguments[0], 0x7F, 4)
        return MINUS_ONE if self.refuses else 0

    def sysctlbyname(self, arguments: Sequence[int]) -> int:
        """Two numbers."""
        name, place, size = arguments[:3]
        assert self.memory.word(size) == 4
        if self.refuses:
            return MINUS_ONE
        numbers = {b"sysctl.proc_translated": 1, b"machdep.virtual_address_size": 47}
        self.memory.set_word(place, numbers[self.memory.string(name)], 4)
        return 0

    def memcmp(self, arguments: Sequence[int]) -> int:
        """Whether they differ."""
        one, other, size = arguments[:3]
        return self.memory.read(one, size) != self.memory.read(other, size)


@pytest.fixture(params=[False, True], ids=["told", "not told"])
def system(request: pytest.FixtureRequest, library: MachOFileContents) -> System:
    """One that returns everything, and one that refuses whatever it may."""
    found = System(refuses=request.param)
    found.core = TaskCore(library, [], found.functions)
    return found


def test_what_is_known_of_a_process(system: System) -> None:
    """A fact that the system does not return is zero or empty."""
    core, refuses = system.core, system.refuses
    assert core is not None
    error, place = core.process(PID)
    assert error == 0
    assert core.word("process", place, "parent") == 1
    assert core.word("process", place, "user") == 501
    assert core.word("process", place, "flags") == 0x2000010
    assert core.word("process", place, "status") == 2
    assert core.text("process", place, "name") == b"a-long-name-of-"
    path = b"" if refuses else b"/Applications/Demo.app/Demo"
    assert core.text("process", place, "path") == path
    assert core.word("process", place, "cpu_type") == (0 if refuses else 0x100000C)
    assert core.word("process", place, "code_signing") == (0 if refuses else 0x10004)
    assert core.process(PID + 1)[0] == ESRCH


def test_what_is_known_of_who_asks(system: System) -> None:
    """Its rights, and whether it is translated."""
    core, refuses = system.core, system.refuses
    assert core is not None
    place = core.rights()
    assert core.word("rights", place, "user") == 501
    assert core.word("rights", place, "integrity_known", 1) == (not refuses)
    assert core.word("rights", place, "has_debugger_entitlement", 1) == (not refuses)
    assert core.word("rights", place, "is_translated", 1) == (not refuses)
    assert core.word("rights", place, "address_bits") == (0 if refuses else 47)
