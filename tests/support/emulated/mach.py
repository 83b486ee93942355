"""As much of the Mach kernel as code needs that captures threads, with every right counted.

Sources: xnu's ``osfmk/mach`` (``task.defs``, ``thread_act.defs``, ``vm_map.defs``,
``kern_return.h``, ``thread_info.h``, ``vm_region.h``) for the calls and what they give;
``osfmk/kern/thread_act.c`` for what suspending and resuming do.

It is stricter than the kernel: what leaks, what is given back twice, a thread that suspends
itself, and any call besides a few while a thread is suspended are AssertionErrors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import pack

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader
from tests.support.emulated.library import EmulatedMemoryBlock, Function, packed

TASK = 0x203
"""The name of the task's own port."""
VARIABLES = {
    "_mach_task_self_": TASK.to_bytes(4, "little"),
    "___stack_chk_guard": packed(0x5EED_CA9A_7E11_0000),
}
"""Imported data, by symbol."""
_FIRST_PORT = 0x1003
_PORT_STEP = 0x100
PAGE = 0x4000
_BASIC_INFO = (3, 10)
"""Flavour of thread_info, and its count of words."""
_IDENTIFIER_INFO = (4, 6)
_RUN_STATE, _SUSPEND_COUNT = 6, 8
"""Words of thread_basic_info."""
_SHORT_INFO_COUNT = 12
_TASK_DYLD_INFO = (17, 5)
_READ = 1
_MEMORY_STACK = 30
"""VM_MEMORY_STACK"""


class KernReturn(IntEnum):
    """Results of calls: ``mach/kern_return.h``, ``mach/message.h``, ``mach/mig_errors.h``."""

    SUCCESS = 0
    INVALID_ADDRESS = 1
    INVALID_ARGUMENT = 4
    FAILURE = 5
    RESOURCE_SHORTAGE = 6
    ABORTED = 14
    TERMINATED = 37
    SEND_INVALID_DEST = 0x10000003
    MIG_SERVER_DIED = -308


SAFE_WHILE_SUSPENDED = frozenset(
    {
        "_thread_suspend",
        "_thread_resume",
        "_thread_get_state",
        "_thread_info",
        "_vm_read_overwrite",
        "_vm_region_recurse_64",
        "_mach_absolute_time",
    }
)
"""Calls that come to the kernel, or to a page that it shares, and to nothing else of the program:
the calls that are allowed while any thread is suspended, whatever lock that holds."""


@dataclass(slots=True)
class MachThread:
    """A thread of the task."""

    id: int
    state: bytes = b""
    """The state that thread_get_state returns."""
    handle: int = 0
    suspend_count: int = 0
    is_ended: bool = False
    port: int = 0
    """Its name, given by the task."""
    run_state: int = 1
    """TH_STATE_RUNNING and others."""


@dataclass(frozen=True, slots=True)
class MachRegion:
    """A mapping."""

    start: int
    end: int
    memory: MemoryReader | None
    """None cannot be read: a guard."""
    tag: int = _MEMORY_STACK
    depth: int = 0
    """1 is in a submap."""


Fault = Callable[[str, Sequence[int]], KernReturn | None]
"""Called before a call, with its name and arguments: the error to fail with, without any effect.

Of calls that are not the kernel's the arguments are not given."""


@dataclass(slots=True)
class MachTask:
    """A task, its threads and the rights that are held to them."""

    memory: EmulatedMemoryBlock
    """Where the caller's arguments are."""
    allocate: Callable[[int], int]
    free: Callable[[int, int], None]
    threads: list[MachThread]
    caller: MachThread
    """The thread that calls; one of the threads."""
    regions: list[MachRegion] = field(default_factory=list)
    """By address."""
    dyld_infos: int = 0
    """The address of dyld_all_image_infos."""
    timebase: tuple[int, int] = (125, 3)
    ticks: int = 0
    fault: Fault | None = None
    calls: list[str] = field(default_factory=list)
    """All that were made."""
    rights: Counter[int] = field(default_factory=Counter)
    """Send rights held, by name."""
    arrays: dict[int, int] = field(default_factory=dict)
    """Sizes of memory that came with replies, by address."""
    suspended: Counter[int] = field(default_factory=Counter)
    """How often the caller has suspended a thread and not resumed it, by name."""
    most_suspended: int = 0
    """At once."""
    answer_of_ended: KernReturn = KernReturn.SEND_INVALID_DEST
    """The result of calls for a thread that has ended."""
    is_checked: bool = True
    """Whether calls are watched while a thread is suspended; not once one is left so."""

    def __post_init__(self) -> None:
        for index, thread in enumerate(self.threads):
            thread.port = _FIRST_PORT + _PORT_STEP * index

    # --- what is checked ---

    def observe(self, name: str) -> None:
        """Note a call of anything, and whether it may be made now."""
        self.calls.append(name)
        if self.is_checked and name not in SAFE_WHILE_SUSPENDED:
            assert not self._is_any_suspended(), f"{name} is called while a thread is suspended"

    def assert_released(self) -> None:
        """Assert that no thread is suspended, and no right and no array is left."""
        self.assert_all_run()
        left = {name: count for name, count in self.rights.items() if count}
        assert not left, f"rights are left: {left}"
        assert not self.arrays, f"arrays are left: {self.arrays}"

    def assert_all_run(self) -> None:
        """Assert that no thread is suspended."""
        assert not self._is_any_suspended(), f"suspended: {self.suspended}"

    def _is_any_suspended(self) -> bool:
        return any(self.suspended[thread.port] and not thread.is_ended for thread in self.threads)

    # --- the calls ---

    @property
    def functions(self) -> Mapping[str, Function]:
        """By the symbols that they are imported by."""
        fallible: dict[str, Callable[[Sequence[int]], int]] = {
            "_task_threads": self._task_threads,
            "_task_info": self._task_info,
            "_thread_info": self._thread_info,
            "_thread_get_state": self._thread_get_state,
            "_thread_suspend": self._thread_suspend,
            "_thread_resume": self._thread_resume,
            "_vm_read_overwrite": self._vm_read_overwrite,
            "_vm_region_recurse_64": self._vm_region_recurse,
            "_vm_deallocate": self._vm_deallocate,
            "_mach_port_deallocate": self._mach_port_deallocate,
            "_mach_timebase_info": self._mach_timebase_info,
        }
        functions: dict[str, Function] = {
            name: self._or_fault(name, call) for name, call in fallible.items()
        }
        functions["_mach_absolute_time"] = self._mach_absolute_time
        return functions

    def _or_fault(self, name: str, call: Callable[[Sequence[int]], int]) -> Function:
        def called(arguments: Sequence[int]) -> int:
            failure = None if self.fault is None else self.fault(name, arguments)
            return call(arguments) if failure is None else failure

        return called

    def _named(self, port: int) -> MachThread | None:
        """Return the thread that lives at a port which the caller holds a right to."""
        port %= 1 << 32
        for thread in self.threads:
            if thread.port == port and (self.rights[port] or thread is self.caller):
                return None if thread.is_ended else thread
        return None

    def _answer_without(self, port: int) -> KernReturn:
        return self.answer_of_ended if port % (1 << 32) else KernReturn.SEND_INVALID_DEST

    def _task_threads(self, arguments: Sequence[int]) -> int:
        _, array, count = arguments[:3]
        ports = [thread.port for thread in self.threads if not thread.is_ended]
        self.rights.update(ports)
        place = self.allocate(4 * len(ports))
        self.arrays[place] = 4 * len(ports)
        self.memory.write(place, pack(f"<{len(ports)}I", *ports))
        self.memory.set_word(array, place)
        self.memory.set_word(count, len(ports), 4)
        return KernReturn.SUCCESS

    def _thread_info(self, arguments: Sequence[int]) -> int:
        port, flavour, place, count = arguments[:4]
        thread = self._named(port)
        if thread is None:
            return self._answer_without(port)
        room = self.memory.word(count, 4)
        if (flavour, room) == _BASIC_INFO:
            words = [0] * room
            words[_RUN_STATE] = thread.run_state
            words[_SUSPEND_COUNT] = thread.suspend_count
            data = pack(f"<{room}I", *words)
        else:
            assert (flavour, room) == _IDENTIFIER_INFO, "another flavour"
            data = pack("<3Q", thread.id, thread.handle, 0)
        self.memory.write(place, data)
        return KernReturn.SUCCESS

    def _thread_get_state(self, arguments: Sequence[int]) -> int:
        port, _, place, count = arguments[:4]
        thread = self._named(port)
        if thread is None:
            return self._answer_without(port)
        assert thread.suspend_count, "the state of a running thread"
        room = self.memory.word(count, 4)
        if 4 * room < len(thread.state):
            return KernReturn.INVALID_ARGUMENT
        self.memory.write(place, thread.state)
        self.memory.set_word(count, len(thread.state) // 4, 4)
        return KernReturn.SUCCESS

    def _thread_suspend(self, arguments: Sequence[int]) -> int:
        thread = self._named(arguments[0])
        if thread is None:
            return self._answer_without(arguments[0])
        assert thread is not self.caller, "a thread suspends itself"
        thread.suspend_count += 1
        self.suspended[thread.port] += 1
        self.most_suspended = max(self.most_suspended, self.suspended.total())
        return KernReturn.SUCCESS

    def _thread_resume(self, arguments: Sequence[int]) -> int:
        thread = self._named(arguments[0])
        if thread is None:
            return self._answer_without(arguments[0])
        if not thread.suspend_count:
            return KernReturn.FAILURE
        assert self.suspended[thread.port], "a thread that another suspended"
        thread.suspend_count -= 1
        self.suspended[thread.port] -= 1
        return KernReturn.SUCCESS

    def _mach_port_deallocate(self, arguments: Sequence[int]) -> int:
        task, port = arguments[0] % (1 << 32), arguments[1] % (1 << 32)
        assert task == TASK, "another task's right"
        assert self.rights[port], f"a right that is not held: {port:#x}"
        self.rights[port] -= 1
        return KernReturn.SUCCESS

    def _vm_deallocate(self, arguments: Sequence[int]) -> int:
        _, place, size = arguments[:3]
        assert self.arrays.get(place) == size, "not what was given"
        del self.arrays[place]
        self.free(place, size)
        return KernReturn.SUCCESS

    # --- memory ---

    def _region_from(self, address: int) -> MachRegion | None:
        return next((region for region in self.regions if region.end > address), None)

    def _vm_region_recurse(self, arguments: Sequence[int]) -> int:
        _, address, size, depth, info, count = arguments[:6]
        region = self._region_from(self.memory.word(address))
        if region is None:
            return KernReturn.INVALID_ADDRESS
        assert self.memory.word(count, 4) == _SHORT_INFO_COUNT, "pages are counted"
        wanted = self.memory.word(depth, 4)
        protection = 0 if region.memory is None else _READ
        self.memory.set_word(address, region.start)
        self.memory.set_word(size, region.end - region.start)
        self.memory.set_word(depth, min(wanted, region.depth), 4)
        # protection, max_protection, inheritance, offset, user_tag, …, is_submap, …
        is_submap = wanted < region.depth
        short = pack("<3IQI8xI12x", protection, 7, 1, 0, region.tag, is_submap)
        self.memory.write(info, short)
        return KernReturn.SUCCESS

    def _vm_read_overwrite(self, arguments: Sequence[int]) -> int:
        task, address, size, place, got = arguments[:5]
        assert task % (1 << 32) == TASK, "another task's memory"
        try:
            data = self.read(address, size)
        except MemoryReadError:
            return KernReturn.INVALID_ADDRESS
        self.memory.write(place, data)
        self.memory.set_word(got, size)
        return KernReturn.SUCCESS

    def read(self, address: int, size: int) -> bytes:
        """Read bytes of the task, from one region to the next.

        Raises:
            MemoryReadError: any of them is not there.
        """
        data = b""
        while len(data) < size:
            at = Avma(address + len(data))
            region = self._region_from(at)
            if region is None or region.start > at or region.memory is None:
                raise MemoryReadError(Avma(address), size)
            data += bytes(region.memory.read(at, min(region.end - at, size - len(data))))
        return data

    # --- the rest ---

    def _task_info(self, arguments: Sequence[int]) -> int:
        _, flavour, place, count = arguments[:4]
        assert (flavour, self.memory.word(count, 4)) == _TASK_DYLD_INFO
        self.memory.write(place, pack("<2QI", self.dyld_infos, 0x180, 1))
        return KernReturn.SUCCESS

    def _mach_timebase_info(self, arguments: Sequence[int]) -> int:
        self.memory.write(arguments[0], pack("<2I", *self.timebase))
        return KernReturn.SUCCESS

    def _mach_absolute_time(self, _: Sequence[int]) -> int:
        self.ticks += 24
        return self.ticks
