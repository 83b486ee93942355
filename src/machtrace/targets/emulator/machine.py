"""A process inside an emulator: a Mach-O program on an arm64 CPU of unicorn's, threads and all.

There is one CPU, so threads run one at a time, each until it comes to the place where it is to
stop, waits in the kernel, or ends. Nothing depends on time or on this machine: the same program
comes to the same registers and the same memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Protocol

from unicorn.unicorn_const import UC_HOOK_CODE, UC_HOOK_INTR

from machtrace.errors import MachOError, TargetError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ThreadId
from machtrace.targets.emulator.cpu import (
    NOWHERE,
    Cpu,
    CpuContext,
    CpuError,
    new_cpu,
    program_counter,
    registers_of,
    return_from_system_call,
    start_at,
    system_call,
)
from machtrace.targets.emulator.images import Exports, PlacedImage, loaded_segments

# --- The system calls that the emulated process makes, with Darwin's numbers and arguments ---
#
# Sources: xnu, ``bsd/kern/syscalls.master`` (positive numbers), ``osfmk/mach/syscall_sw.h`` (mach
# traps, negative), ``osfmk/arm64/sleh.c`` (the time) and ``bsd/sys/proc_info.h``; libpthread,
# ``kern/kern_support.c``.

_SUCCESS = 0
_FAILURE = 5
"""KERN_FAILURE, and EIO."""
_MACH_RCV_MSG = 2
_SETCONTROL = 5
_SET_THREAD_NAME = 2
_MAX_THREAD_NAME_LENGTH = 64
_MAX_ALLOCATION_SIZE = 1 << 24
_FIRST_PORT = 0x103
_PORT_STEP = 0x100


class SystemCall(IntEnum):
    """System call numbers in x16 at ``svc #0x80``."""

    MACH_WAIT_UNTIL_TRAP = -90
    MACH_MSG_TRAP = -31
    TASK_SELF_TRAP = -28
    MACH_REPLY_PORT = -26
    MACH_VM_ALLOCATE_TRAP = -10
    MACH_ABSOLUTE_TIME = -3
    EXIT = 1
    PROC_INFO = 336
    BSDTHREAD_CREATE = 360
    BSDTHREAD_TERMINATE = 361
    BSDTHREAD_REGISTER = 366


class Leave(Enum):
    """Why a call does not come back."""

    WAITING = "waiting"
    """It waits for a time."""
    BLOCKED = "blocked"
    """It waits for what nobody will send."""
    ENDED = "ended"
    """The thread is over."""


class CallingProcess(Protocol):
    """The process that calls, by the thread that runs."""

    def read(self, address: Avma, size: int, /) -> bytes:
        """Read bytes of its memory."""
        ...

    def write(self, address: Avma, data: bytes, /) -> None:
        """Change its memory."""
        ...

    def allocate(self, size: int, /) -> Avma:
        """New memory, zeroed."""
        ...

    def start_thread(self, entry: Avma, stack_size: int, arguments: Sequence[int], /) -> None:
        """Make another thread, to run later, with ``arguments`` in x0 and on."""
        ...

    def name_thread(self, name: str, /) -> None:
        """Give the thread that runs a name."""
        ...

    @property
    def now_ns(self) -> int:
        """The time of its clock."""
        ...

    def wait_until(self, time_ns: int, /) -> None:
        """Let the thread that runs continue at a time."""
        ...


class Kernel:
    """As much of a kernel as one process needs."""

    def __init__(self, process: CallingProcess) -> None:
        self._process = process
        self._task_port = _FIRST_PORT
        self._last_port = _FIRST_PORT
        self._thread_start: Avma | None = None

    def call(  # noqa: C901, PLR0911 (one answer a call)
        self, number: int, arguments: Sequence[int]
    ) -> int | Leave:
        """Answer a system call.

        Args:
            number: what x16 holds, signed.
            arguments: x0 to x7.

        Returns:
            What x0 is to hold, or why the call does not come back.

        Raises:
            TargetError: there is no such call here.
        """
        match number:
            case SystemCall.MACH_MSG_TRAP if arguments[1] & _MACH_RCV_MSG:
                return Leave.BLOCKED
            case SystemCall.MACH_WAIT_UNTIL_TRAP:
                self._process.wait_until(arguments[0])
                return Leave.WAITING
            case SystemCall.MACH_ABSOLUTE_TIME:
                return self._process.now_ns
            case SystemCall.TASK_SELF_TRAP:
                return self._task_port
            case SystemCall.MACH_REPLY_PORT:
                return self._new_port()
            case SystemCall.MACH_VM_ALLOCATE_TRAP:
                return self._allocate(Avma(arguments[1]), arguments[2])
            case SystemCall.EXIT | SystemCall.BSDTHREAD_TERMINATE:
                return Leave.ENDED
            case SystemCall.PROC_INFO if (arguments[0], arguments[2]) == (
                _SETCONTROL,
                _SET_THREAD_NAME,
            ):
                return self._name_thread(Avma(arguments[4]), arguments[5])
            case SystemCall.BSDTHREAD_REGISTER:
                self._thread_start = Avma(arguments[0])
                return _SUCCESS
            case SystemCall.BSDTHREAD_CREATE if self._thread_start is not None:
                return self._create_thread(self._thread_start, arguments)
            case _:
                raise TargetError(
                    f"the emulated kernel has no system call {number} for these arguments"
                )

    def _new_port(self) -> int:
        self._last_port += _PORT_STEP
        return self._last_port

    def _allocate(self, place: Avma, size: int) -> int:
        if not 0 < size <= _MAX_ALLOCATION_SIZE:
            return _FAILURE
        self._process.write(place, self._process.allocate(size).to_bytes(8, "little"))
        return _SUCCESS

    def _name_thread(self, name: Avma, length: int) -> int:
        if length >= _MAX_THREAD_NAME_LENGTH:
            return _FAILURE
        self._process.name_thread(self._process.read(name, length).decode("utf-8", "replace"))
        return _SUCCESS

    def _create_thread(self, thread_start: Avma, arguments: Sequence[int]) -> int:
        function, argument, stack_size, thread, flags = arguments[:5]
        if not 0 < stack_size <= _MAX_ALLOCATION_SIZE:
            return _FAILURE
        # As _pthread_start wants them; the stack is ours to give (no PTHREAD_START_CUSTOM).
        self._process.start_thread(
            thread_start,
            stack_size,
            (thread, self._new_port(), function, argument, stack_size, flags),
        )
        return thread


# --- The true stack of an emulated thread, recorded from its calls and returns ---

# Masks and values of encodings: *Arm Architecture Reference Manual*, C4.1, branches.
_BL = (0xFC000000, 0x94000000)
_BLR = (0xFEFFF000, 0xD63F0000)
_RET = (0xFFFFF000, 0xD65F0000)


def is_call(word: int) -> bool:
    """Whether an arm64 instruction leaves its return address in lr.

    ``bl``, ``blr``, and the authenticating ``blraa``, ``blrab``, ``blraaz`` and ``blrabz``.
    """
    return any(word & mask == value for mask, value in (_BL, _BLR))


def is_return(word: int) -> bool:
    """Whether an arm64 instruction is a ``ret``, ``retaa`` or ``retab``."""
    mask, value = _RET
    return word & mask == value


class ShadowStack:
    """Return addresses of one thread: pushed where it calls, popped where it returns.

    :meth:`come_to` is called before each instruction, so the effect of one is known when the
    next one comes.
    """

    __slots__ = ("_called", "_returned", "_stack", "instructions")

    def __init__(self) -> None:
        self._stack: list[Avma] = []
        self._called: Avma | None = None
        self._returned = False
        self.instructions = 0
        """How many the thread has come to."""

    @property
    def return_addresses(self) -> tuple[Avma, ...]:
        """Innermost first."""
        return tuple(reversed(self._stack))

    def come_to(self, address: Avma, word: int) -> None:
        """Take note of the instruction ``word`` at ``address``, which is to run next.

        Raises:
            TargetError: the thread returned to where it was not called from.
        """
        if self._called is not None:
            self._stack.append(self._called)
        elif self._returned and (not self._stack or self._stack.pop() != address):
            raise TargetError(
                f"the emulated thread returned to {address:#x}, which is not its return address"
            )
        self._called = Avma(address + 4) if is_call(word) else None
        self._returned = is_return(word)
        self.instructions += 1

    def forget_next(self) -> None:
        """Undo the last :meth:`come_to`: the thread stops before that instruction."""
        self._called = None
        self._returned = False
        self.instructions -= 1


# --- The machine: CPU, memory and threads ---

PAGE_SIZE = 0x4000
_STACKS_START = Avma(0x16DCA0000)
_MAIN_STACK_SIZE = 1 << 20
_HEAP_START = Avma(0x280000000)
_FIRST_THREAD_ID = 1001
_BUDGET = 1_000_000
"""Instructions after which a thread that came to no place has gone astray."""
_SUPERVISOR_CALL = 2
"""QEMU's EXCP_SWI: the interrupt number of ``svc``."""


_EVENT_NS = 1000


class ThreadState(Enum):
    """The state of an emulated thread."""

    READY = "ready"
    """It has not run yet, or can continue."""
    STOPPED = "stopped"
    """It is at the place where it was to stop."""
    WAITING = "waiting"
    """It waits for a time."""
    BLOCKED = "blocked"
    """It waits in a system call."""
    ENDED = "ended"


_LEFT = {
    Leave.WAITING: ThreadState.WAITING,
    Leave.BLOCKED: ThreadState.BLOCKED,
    Leave.ENDED: ThreadState.ENDED,
}


@dataclass(frozen=True, slots=True)
class StopPlace:
    """Where a thread is to stop: before an instruction, at the n-th time that it comes there."""

    symbol: str
    """As the symbol table spells it."""
    offset: int = 0
    """Bytes from the symbol to the instruction."""
    arrival: int = 1
    """The first time is 1."""


class EmulatedThread:
    """One thread, and its state while another has the CPU."""

    __slots__ = (
        *("arrivals", "context", "id", "index", "name", "shadow", "stack_end", "state"),
        "wakes_at_ns",
    )

    def __init__(
        self, index: int, stack_end: Avma, context: CpuContext, shadow: ShadowStack | None
    ) -> None:
        self.id = ThreadId(_FIRST_THREAD_ID + index - 1)
        self.index = index
        """1-based, in the order that they were made."""
        self.name: str | None = None
        self.stack_end = stack_end
        """The address after its stack."""
        self.context = context
        """Its registers, while it does not run."""
        self.state = ThreadState.READY
        self.wakes_at_ns = 0
        """By the emulated clock: the earliest time at which it runs."""
        self.arrivals = 0
        """How often it came to where it is to stop."""
        self.shadow = shadow
        """None where calls are not recorded."""

    @property
    def registers(self) -> RegisterSet:
        """Its registers, while it does not run."""
        return registers_of(self.context)


class Emulator:
    """Loads a program, and runs its threads to where they are to stop."""

    def __init__(
        self,
        contents: MachOFileContents,
        *,
        slide: int,
        places: Mapping[str, StopPlace],
        record_calls: bool = False,
        watch: Callable[[EmulatedThread], None] | None = None,
        libraries: Sequence[PlacedImage] = (),
    ) -> None:
        """Map the program and make its main thread; :meth:`run` runs it.

        Args:
            contents: an arm64 executable.
            slide: bytes that it is moved by; a multiple of 16 KiB.
            places: by thread name, where to stop; a thread without one runs until it waits.
            record_calls: keep a shadow stack of each thread, at the cost of a callback for every
                instruction.
            watch: called before every instruction with the thread that is to run it, whose shadow
                stack and registers then have its position; only if calls are recorded.
            libraries: images that export what the program and they themselves import. The first
                function is ``_start`` of one of them then, which calls ``_main``.

        Raises:
            MachOError: the program cannot be run here, or has not the symbols of ``places``.
            TargetError: there is no such slide.
        """
        entry = _entry_point(contents)
        if slide % PAGE_SIZE or contents.image.header_svma + slide < PAGE_SIZE:
            raise TargetError(
                f"the emulated program cannot be moved by {slide:#x} bytes",
                remedy=f"pass a multiple of {PAGE_SIZE:#x} that leaves it above the first page",
            )
        self._cpu = new_cpu()
        self._fresh = self._cpu.context_save()
        self._kernel = Kernel(self)
        self._threads: list[EmulatedThread] = []
        self._ready: deque[EmulatedThread] = deque()
        self._record_calls = record_calls
        self._watch = watch
        self._next_stack = _STACKS_START
        self._next_heap = _HEAP_START
        self._regions: list[range] = []
        self._now_ns = 0
        images = (PlacedImage(contents, slide), *libraries)
        exports = Exports(images)
        self._load(images, exports)
        self._places = _resolve(contents, slide, places)
        self._hook(images)
        first = exports.address("_start", contents) if libraries else Avma(entry + slide)
        self.start_thread(first, _MAIN_STACK_SIZE, ())

    def run(self) -> None:
        """Run every thread that can continue: those that wake first, then in order of creation.

        Raises:
            TargetError: a thread faulted, made an unknown system call, or did not reach its stop.
        """
        while self._ready:
            thread = min(self._ready, key=lambda each: each.wakes_at_ns)
            self._ready.remove(thread)
            self._now_ns = max(self._now_ns, thread.wakes_at_ns)
            self._run(thread)
        stopped = {t.name for t in self._threads if t.state is ThreadState.STOPPED}
        for name in self._places.keys() - stopped:
            raise TargetError(f"no thread {name} reached its stop")

    @property
    def threads(self) -> tuple[EmulatedThread, ...]:
        """Those that have not ended, in the order that they were made."""
        return tuple(t for t in self._threads if t.state is not ThreadState.ENDED)

    @property
    def regions(self) -> tuple[MemoryRegion, ...]:
        """Copies of the program's segments and of what it allocated; stacks are not among them."""
        return tuple(
            MemoryRegion(Avma(region.start), self.read(Avma(region.start), len(region)))
            for region in self._regions
        )

    def on_arrival(self, address: Avma, call: Callable[[EmulatedThread], None]) -> None:
        """Call a function before each instruction at an address, with the thread and its registers.

        Each such event takes a microsecond of the emulated clock.
        """

        def arrived(cpu: Cpu, _address: int, _size: int, _: object) -> None:
            self._now_ns += _EVENT_NS
            self._running.context = cpu.context_save()
            call(self._running)

        self._cpu.hook_add(UC_HOOK_CODE, arrived, begin=address, end=address)

    # --- what the kernel may do (CallingProcess) ---

    @property
    def now_ns(self) -> int:
        """The time of the emulated clock, which advances where threads wait."""
        return self._now_ns

    def wait_until(self, time_ns: int, /) -> None:
        """Let the thread that runs continue at a time; others run before that."""
        self._running.wakes_at_ns = time_ns

    def read(self, address: Avma, size: int, /) -> bytes:
        """Read bytes of its memory.

        Raises:
            TargetError: they are not all mapped.
        """
        try:
            return bytes(self._cpu.mem_read(address, size))
        except CpuError as error:
            raise TargetError(f"{size} bytes at {address:#x} are not mapped: {error}") from error

    def write(self, address: Avma, data: bytes, /) -> None:
        """Change its memory.

        Raises:
            TargetError: that is not all mapped.
        """
        try:
            self._cpu.mem_write(address, data)
        except CpuError as error:
            message = f"{len(data)} bytes at {address:#x} are not mapped: {error}"
            raise TargetError(message) from error

    def allocate(self, size: int, /) -> Avma:
        """New memory, zeroed, at an address that is a multiple of a page."""
        start = self._next_heap
        size = _whole_pages(size)
        self._cpu.mem_map(start, size)
        self._regions.append(range(start, start + size))
        self._next_heap = Avma(start + size)
        return start

    def start_thread(self, entry: Avma, stack_size: int, arguments: Sequence[int], /) -> None:
        """Make another thread, to run later, with ``arguments`` in x0 and on."""
        start = self._next_stack
        end = Avma(start + _whole_pages(stack_size))
        self._cpu.mem_map(start, end - start)
        # Between two stacks a page stays unmapped, so that no overflow goes unnoticed.
        self._next_stack = Avma(end + PAGE_SIZE)
        running = self._cpu.context_save()
        self._cpu.context_restore(self._fresh)
        start_at(self._cpu, entry, end, tuple(arguments))
        shadow = ShadowStack() if self._record_calls else None
        thread = EmulatedThread(len(self._threads) + 1, end, self._cpu.context_save(), shadow)
        self._cpu.context_restore(running)
        thread.wakes_at_ns = self._now_ns
        self._threads.append(thread)
        self._ready.append(thread)

    def name_thread(self, name: str, /) -> None:
        """Give the thread that runs a name."""
        self._running.name = name

    # --- loading ---

    def _load(self, images: Sequence[PlacedImage], exports: Exports) -> None:
        for segment in loaded_segments(images, exports):
            size = _whole_pages(segment.size)
            try:
                self._cpu.mem_map(segment.start, size)
            except CpuError as error:
                raise MachOError(
                    f"segment {segment.name} cannot be mapped at {segment.start:#x}: {error}",
                    source=segment.image.contents.source,
                    offset=0,
                ) from error
            self._cpu.mem_write(segment.start, segment.data)
            self._regions.append(range(segment.start, segment.start + size))

    # --- running ---

    def _run(self, thread: EmulatedThread) -> None:
        self._running = thread
        self._cpu.context_restore(thread.context)
        try:
            self._cpu.emu_start(program_counter(self._cpu), NOWHERE, count=_BUDGET)
        except CpuError as error:
            at = program_counter(self._cpu)
            message = f"the emulated thread {thread.name} failed at {at:#x}: {error}"
            raise TargetError(message) from error
        thread.context = self._cpu.context_save()
        if thread.state is ThreadState.WAITING:
            thread.state = ThreadState.READY
            self._ready.append(thread)
        elif thread.state is ThreadState.READY:
            raise TargetError(f"the emulated thread {thread.name} reached no stop")

    def _hook(self, images: Sequence[PlacedImage]) -> None:
        self._cpu.hook_add(UC_HOOK_INTR, self._interrupted)
        # Before the places: what the last instruction did is noted before the thread stops.
        for contents, slide in images if self._record_calls else ():
            text = contents.image.text_segment
            if text is not None:
                begin, end = text.vmaddr + slide, text.end + slide - 1
                self._cpu.hook_add(UC_HOOK_CODE, self._came_to, begin=begin, end=end)
        for place in {address for address, _ in self._places.values()}:
            self._cpu.hook_add(UC_HOOK_CODE, self._arrived, begin=place, end=place)

    def _interrupted(self, cpu: Cpu, interrupt: int, _: object) -> None:
        if interrupt != _SUPERVISOR_CALL:
            at = program_counter(cpu)
            raise TargetError(f"the emulated thread {self._running.name} trapped at {at:#x}")
        outcome = self._kernel.call(*system_call(cpu))
        if not isinstance(outcome, Leave):
            return_from_system_call(cpu, outcome)
            return
        if outcome is Leave.WAITING:
            return_from_system_call(cpu, 0)
        self._running.state = _LEFT[outcome]
        cpu.emu_stop()

    def _arrived(self, cpu: Cpu, address: int, _size: int, _: object) -> None:
        thread = self._running
        place = self._places.get(thread.name)
        if place is None or place[0] != address:
            return
        thread.arrivals += 1
        if thread.arrivals == place[1]:
            thread.state = ThreadState.STOPPED
            if thread.shadow is not None:
                thread.shadow.forget_next()
            cpu.emu_stop()

    def _came_to(self, cpu: Cpu, address: int, _size: int, _: object) -> None:
        thread = self._running
        if thread.shadow is None:
            return
        word = int.from_bytes(self.read(Avma(address), 4), "little")
        thread.shadow.come_to(Avma(address), word)
        if self._watch is not None:
            thread.context = cpu.context_save()
            self._watch(thread)


def _whole_pages(size: int) -> int:
    return -(-size // PAGE_SIZE) * PAGE_SIZE


def _entry_point(contents: MachOFileContents) -> int:
    """Return the stated address of the main thread's first instruction.

    Raises:
        MachOError: the program cannot be run here.
    """
    image = contents.image
    if image.arch is not Arch.ARM64 or image.entry is None or image.text_segment is None:
        raise MachOError("not an arm64 executable", source=contents.source, offset=0)
    return image.header_svma + image.entry.entryoff


def _resolve(
    contents: MachOFileContents, slide: int, places: Mapping[str, StopPlace]
) -> dict[str | None, tuple[int, int]]:
    """By thread name, the address where it is to stop, and the how-manieth arrival that counts."""
    symbols = parse_symbols(contents)
    rows = symbols.is_code.nonzero()[0].tolist()
    addresses = dict(zip(symbols.names(rows), symbols.n_value[rows].tolist(), strict=True))
    definitions: dict[str | None, tuple[int, int]] = {}
    for name, place in places.items():
        if place.symbol not in addresses:
            raise MachOError(
                f"symbol {place.symbol} does not exist", source=contents.source, offset=0
            )
        definitions[name] = (addresses[place.symbol] + slide + place.offset, place.arrival)
    return definitions
