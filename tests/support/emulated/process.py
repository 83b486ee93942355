"""A process of several Mach-O images and threads in an emulator, with each thread's true stack.

Images call each other as dyld bound them; what no image defines is a function in Python. Threads
take turns where they wait. The truth needs no unwinder: in images that are followed, calls push
what they will return to, and arriving there pops it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unicorn import arm64_const as arm64
from unicorn import x86_const as x86
from unicorn.unicorn_const import (
    UC_HOOK_BLOCK,
    UC_HOOK_CODE,
    UC_HOOK_INSN,
    UC_HOOK_INTR,
    UC_PROT_EXEC,
    UC_PROT_READ,
    UC_PROT_WRITE,
)
from unicorn.unicorn_py3.unicorn import UcContext, UcError

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.model.arch import Arch
from tests.support.emulated.cpu import Transfer, emulated_cpu
from tests.support.emulated.dyld import symbols_of
from tests.support.emulated.library import EmulatedMemoryBlock

_PAGE = 0x4000
_SMALL_PAGE = 0x1000
_OUTSIDE = 0x6_0000_0000
"""A slot for each function in Python, and before them some that are returned to."""
_SLOT = 16
_SLOTS = 0x8000
_SMALL, _ARENA = 0x2000, 0x100000
_VARIABLES = 0x6_1000_0000
_IMAGES = 0x1_0400_0000
_IMAGE_STEP = 0x400_0000
_HEAP = 0x7_0000_0000
_STACKS = 0x1_6000_0000
_STACK_SIZE = 0x80_0000
_GUARD = 0x10_0000
_TSD = 0x1_F000_0000
_TSD_SIZE = 0x4000
TSD_OFFSET = 0xE0
"""Offset of a thread's own words in its pthread."""
_STAY = {True: bytes.fromhex("00000014"), False: bytes.fromhex("ebfe")}
_SYSTEM_CALL = 2
_READ_ONLY = 0x10
"""SG_READ_ONLY"""

Steps = Generator["tuple[int, Sequence[int]] | Waiting", int, int]
Function = Callable[[Sequence[int]], "int | Steps | Waiting"]


@dataclass(slots=True)
class Waiting:
    """A thread waits until this is true, or until a time."""

    until: Callable[[], bool]
    deadline: int | None = None
    """In ns."""
    result: int = 0
    timeout: int = 0
    """The result if the time is over."""


@dataclass(slots=True)
class LoadedImage:
    """An image of the process."""

    path: str
    contents: MachOFileContents
    slide: int
    symbols: Mapping[str, int]
    """Avmas, by name."""
    references: int = 1

    @property
    def header(self) -> int:
        """The address of its Mach-O header."""
        return self.contents.image.header_svma + self.slide

    @property
    def range(self) -> range:
        """All addresses of its segments."""
        segments = [s for s in self.contents.image.segments if s.name != "__PAGEZERO"]
        return range(
            min(s.vmaddr for s in segments) + self.slide,
            max(s.vmaddr + s.vmsize for s in segments) + self.slide,
        )


@dataclass(slots=True)
class Frame:
    """A call in progress."""

    return_address: int


@dataclass(slots=True)
class Thread:
    """A thread of the process."""

    id: int
    tsd: int
    stack: range
    context: UcContext
    steps: list[tuple[Steps | None, int, int, int]] = field(default_factory=list)
    """Functions in Python that wait; with sp, fp and return address (0: a system call)."""
    waiting: Waiting | None = None
    woken: bool = False
    has_ended: bool = False
    is_suspended: bool = False
    result: int = 0
    frames: list[Frame] = field(default_factory=list)
    pending: Frame | None = None
    name: str = ""

    @property
    def pthread(self) -> int:
        """Its ``pthread_t``."""
        return self.tsd - TSD_OFFSET


@dataclass(frozen=True, slots=True)
class TrueCall:
    """A call of a function that is followed, at its first instruction."""

    symbol: str
    thread: int
    stack: tuple[int, ...]
    """Return addresses, innermost first."""


class EmulatedProcess:
    """One process."""

    def __init__(self, arch: Arch) -> None:
        """Create a process without images."""
        self.arch = arch
        self.cpu = emulated_cpu(arch)
        self.uc = self.cpu.uc
        self.memory = EmulatedMemoryBlock(self.uc)
        self.images: list[LoadedImage] = []
        self.functions: dict[str, Function] = {}
        self.system_calls: dict[int, Function] = {}
        self.variables: dict[str, bytes] = {}
        self.threads: list[Thread] = []
        self.watched: set[str] = set()
        """Functions of images that are loaded from now on and followed: their calls are listed."""
        self.calls: list[TrueCall] = []
        """True stacks at the first instructions of watched functions."""
        self.now = 1_000_000_000
        """In ns."""
        self.instructions: Counter[int] = Counter()
        """Those that were run in counted images, by thread."""
        self.page = _PAGE if arch.is_arm64 else _SMALL_PAGE
        """Bytes of a page of the kernel."""
        self._arguments = (5, 4, 1, 2, 8, 9) if not arch.is_arm64 else tuple(range(8))
        self._slots = ["", "back", "ended", "gone"]
        self._places: dict[str, int] = {}
        self._watched: dict[int, str] = {}
        self._blocks: dict[tuple[int, int], tuple[Transfer, int]] = {}
        self._hooks: dict[str, list[int]] = {}
        self._heap_end = _HEAP
        self._arena = range(0)
        self._next_image = _IMAGES
        self._at: int | None = None
        self._failure: BaseException | None = None
        self._stop: Waiting | None = None
        self._running: Thread | None = None
        self.uc.mem_map(_OUTSIDE, _SLOTS, UC_PROT_READ | UC_PROT_EXEC)
        self.uc.mem_map(_VARIABLES, _PAGE)
        self.uc.hook_add(UC_HOOK_CODE, self._come_to_slot, begin=_OUTSIDE, end=_OUTSIDE + _SLOTS)
        if arch.is_arm64:
            self.uc.hook_add(UC_HOOK_INTR, self._interrupted)
        else:
            self.uc.hook_add(UC_HOOK_INSN, self._called_system, None, 1, 0, x86.UC_X86_INS_SYSCALL)
        self._fresh = self.uc.context_save()

    # --- memory ---

    def allocate(self, size: int) -> int:
        """New memory, zeroed, with a gap behind it if it is large."""
        if size <= _SMALL:
            if self._arena.stop - self._arena.start < _SMALL + _SLOT:
                start = self.allocate(_ARENA)
                self._arena = range(start, start + _ARENA)
            start = self._arena.start
            self._arena = range(start + -(-max(size, 1) // _SLOT) * _SLOT + _SLOT, self._arena.stop)
            return start
        start = self._heap_end
        pages = -(-max(size, 1) // _PAGE) * _PAGE
        self.uc.mem_map(start, pages, UC_PROT_READ | UC_PROT_WRITE)
        self._heap_end = start + pages + _PAGE
        return start

    def reserve(self, size: int) -> int:
        """Return addresses that nothing is at."""
        start = self._heap_end
        self._heap_end = start + -(-size // _PAGE) * _PAGE + _PAGE
        return start

    def free(self, start: int, size: int) -> None:
        """Unmap memory, or overwrite it."""
        if size <= _SMALL:
            self.memory.write(start, b"\xdd" * size)
            return
        self.uc.mem_unmap(start, -(-max(size, 1) // _PAGE) * _PAGE)

    # --- images ---

    def load(
        self,
        path: str,
        file: Path,
        *,
        at: int | None = None,
        is_followed: bool = True,
        signed: Iterable[tuple[int, int, int, bool]] = (),
    ) -> LoadedImage:
        """Map an image and bind it, as dyld does.

        Args:
            path: its path in the process.
            file: its contents.
            at: the address; by default one that nothing was at.
            is_followed: whether calls in it are part of the truth.
            signed: pointers to sign: Svma, key, discriminator, whether the address is mixed in.
        """
        contents = MachOFileContents(file.read_bytes(), path)
        slide = (at or self._next_image) - contents.image.header_svma
        if at is None:
            self._next_image += _IMAGE_STEP
        symbols = {name: svma + slide for name, svma in symbols_of(contents).items()}
        image = LoadedImage(path, contents, slide, symbols)
        self.images.append(image)
        segments = [s for s in contents.image.segments if s.name != "__PAGEZERO" and s.vmsize]
        for segment in segments:
            start = segment.vmaddr + slide
            self.uc.mem_map(start, -(-segment.vmsize // self.page) * self.page)
            data = contents.read_svma(segment.vmaddr, min(segment.filesize, segment.vmsize))
            self.memory.write(start, bytes(data))
        self._bind(image, signed)
        for segment in segments:
            protection = segment.initprot
            if segment.flags & _READ_ONLY:
                protection = UC_PROT_READ
            size = -(-segment.vmsize // self.page) * self.page
            self.uc.mem_protect(segment.vmaddr + slide, size, protection)
        hooks = []
        if is_followed:
            end = image.range.stop - 1
            self._watched |= {symbols[name]: name for name in self.watched & symbols.keys()}
            hooks.append(self.uc.hook_add(UC_HOOK_BLOCK, self._block, None, image.header, end))
        self._hooks[path] = hooks
        return image

    def unload(self, image: LoadedImage) -> None:
        """Unmap an image."""
        for hook in self._hooks.pop(image.path):
            self.uc.hook_del(hook)
        self.images.remove(image)
        self._watched = {k: v for k, v in self._watched.items() if k not in image.range}
        for segment in image.contents.image.segments:
            if segment.name != "__PAGEZERO" and segment.vmsize:
                size = -(-segment.vmsize // self.page) * self.page
                self.uc.mem_unmap(segment.vmaddr + image.slide, size)
        self._blocks = {k: v for k, v in self._blocks.items() if k[0] not in image.range}

    def count_instructions(self, image: LoadedImage) -> None:
        """Count the instructions that run in an image (of arm64)."""
        text = image.contents.image.text_segment
        assert text is not None
        begin, end = text.vmaddr + image.slide, text.end + image.slide - 1

        def count(_uc: object, _address: int, size: int, _: object) -> None:
            self.instructions[self.running.id] += size // 4

        self.uc.hook_add(UC_HOOK_BLOCK, count, None, begin, end)

    def lookup(self, name: str) -> int | None:
        """Return the address of a symbol of any image, or of a function in Python."""
        for image in self.images:
            if name in image.symbols:
                return image.symbols[name]
        name = name.removesuffix("$INODE64")
        if name in self.variables:
            return self._variable(name)
        return self._slot(name) if name in self.functions else None

    def _bind(self, image: LoadedImage, signed: Iterable[tuple[int, int, int, bool]]) -> None:
        pointers = parse_pointers(image.contents)
        rebases, binds = pointers.rebases, pointers.binds
        for place, target in zip(rebases.places.tolist(), rebases.targets.tolist(), strict=True):
            self.memory.set_word(place + image.slide, target + image.slide)
        rows = zip(binds.places.tolist(), binds.symbols.tolist(), strict=True)
        for place, symbol in rows:
            self.memory.set_word(place + image.slide, self._target(binds.names[symbol], image))
        for svma, key, number, is_diverse in signed:
            place = svma + image.slide
            mixed = place & (1 << 48) - 1 | number << 48 if number else place
            value = self.memory.word(place)
            if value:  # not a weak import that nothing defines
                value = self.cpu.signed(value, key, mixed if is_diverse else number)
                self.memory.set_word(place, value)

    def _target(self, name: str, image: LoadedImage) -> int:
        address = self.lookup(name)
        if address is None and name in image.symbols:
            address = image.symbols[name]
        if address is None and "weak" in name:
            return 0
        return self._slot(name.removesuffix("$INODE64")) if address is None else address

    def _variable(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = _VARIABLES + 64 * len(self._places)
            self.memory.write(self._places[name], self.variables[name])
        return self._places[name]

    def _slot(self, name: str) -> int:
        if name not in self._slots:
            self._slots.append(name)
        address = _OUTSIDE + _SLOT * self._slots.index(name)
        assert address < _OUTSIDE + _SLOTS
        self.memory.write(address, _STAY[self.arch.is_arm64])
        return address

    # --- threads ---

    def start_thread(self, function: int, *arguments: int) -> Thread:
        """Create a thread that runs a function."""
        number = len(self.threads)
        tsd, top = _TSD + _TSD_SIZE * number, _STACKS + (number + 1) * (_STACK_SIZE + _GUARD)
        stack = range(top - _STACK_SIZE, top)
        self.uc.mem_map(tsd - _TSD_SIZE // 2, _TSD_SIZE, UC_PROT_READ | UC_PROT_WRITE)
        self.uc.mem_map(stack.start, _STACK_SIZE, UC_PROT_READ | UC_PROT_WRITE)
        saved = self.uc.context_save()
        self.uc.context_restore(self._fresh)
        cpu = self.cpu
        cpu.enter(top - 64, self._slot("ended"))
        cpu.write(cpu.arch.registers.fp, 0)
        for register, value in zip(self._arguments, arguments, strict=False):
            cpu.write(register, value % (1 << 64))
        self.uc.reg_write(cpu.pc, function)
        if self.arch.is_arm64:
            # The low bits are the processor's number.
            self.uc.reg_write(arm64.UC_ARM64_REG_TPIDRRO_EL0, tsd | 3)
        else:
            self.uc.reg_write(x86.UC_X86_REG_GS_BASE, tsd)
        thread = Thread(0x1000 + number, tsd, stack, self.uc.context_save())
        self.uc.context_restore(saved)
        self.threads.append(thread)
        return thread

    @property
    def running(self) -> Thread:
        """The thread that runs now."""
        assert self._running is not None
        return self._running

    def run(self, thread: Thread) -> int:
        """Run until a thread has ended; its result."""
        while not thread.has_ended:
            self._run_some(self._choose())
        return thread.result

    def registers_of(self, thread: Thread) -> tuple[list[int], int]:
        """Registers by DWARF number, and pc, of a thread that does not run."""
        saved = self.uc.context_save()
        self.uc.context_restore(thread.context)
        values = [value or 0 for value in self.cpu.registers().values]
        pc = self.cpu.program_counter
        self.uc.context_restore(saved)
        return values, thread.steps[-1][3] or pc if thread.steps else pc

    def true_stack(self, thread: Thread) -> tuple[int, ...]:
        """The return addresses of a thread that waits, innermost first."""
        frames = [*thread.frames, *filter(None, (thread.pending,))]
        return tuple(frame.return_address for frame in reversed(frames))

    def _choose(self) -> Thread:
        alive = [t for t in self.threads if not t.has_ended and not t.is_suspended]
        while True:
            for thread in alive:
                waiting = thread.waiting
                if waiting is None or waiting.until():
                    # Round-robin.
                    self.threads.remove(thread)
                    self.threads.append(thread)
                    return thread
                if waiting.deadline is not None and waiting.deadline <= self.now:
                    waiting.result = waiting.timeout
                    waiting.until = lambda: True
                    return thread
            deadlines = [t.waiting.deadline for t in alive if t.waiting and t.waiting.deadline]
            assert deadlines, "a deadlock"
            self.now = min(deadlines)

    def _run_some(self, thread: Thread) -> None:
        self._running = thread
        self.uc.context_restore(thread.context)
        waiting, thread.waiting = thread.waiting, None
        if waiting is not None:
            self._resume(thread, waiting.result)
        while not thread.has_ended and thread.waiting is None:
            self._at = self._stop = None
            try:
                self.uc.emu_start(self.cpu.program_counter, 0)
            except UcError as error:
                where = self.cpu.program_counter
                raise AssertionError(f"{error} at {self.describe(where)}") from error
            if self._failure is not None:
                raise self._failure
            if self._at is not None:
                self._outside(thread, self._slots[(self._at - _OUTSIDE) // _SLOT])
            elif self._stop is not None:
                thread.waiting = self._stop
                thread.steps.append((None, 0, 0, 0))
        thread.context = self.uc.context_save()

    def describe(self, address: int) -> str:
        """An address by image and symbol, for messages."""
        for image in self.images:
            if address in image.range:
                below = {value: name for name, value in image.symbols.items() if value <= address}
                nearest = max(below, default=image.header)
                return f"{below.get(nearest, image.path)}+{address - nearest:#x}"
        return hex(address)

    # --- functions in Python ---

    def _come_to_slot(self, _uc: object, address: int, _size: int, _: object) -> None:
        self._at = address
        self.uc.emu_stop()

    def _outside(self, thread: Thread, name: str) -> None:
        cpu = self.cpu
        if name == "ended":
            thread.result = cpu.read(0)
            self._continue(thread, self.end_of(thread), None, self._slot("gone"))
        elif name == "gone":
            thread.has_ended = True
        elif name == "back":
            steps, sp, fp, back = thread.steps.pop()
            assert steps is not None
            result = cpu.read(0)
            cpu.write(cpu.arch.registers.sp, sp)
            cpu.write(cpu.arch.registers.fp, fp)
            assert thread.frames.pop().return_address == self._slot("back")
            self._continue(thread, steps, result, back)
        else:
            assert name in self.functions, f"{name} is not provided"
            self.observe(name)
            values = cpu.registers().values
            arguments = [values[number] or 0 for number in self._arguments]
            back = self._pop_return_address()
            self._finish(thread, self.functions[name](arguments), back)

    end_of: Callable[[Thread], Steps]
    """Steps of a thread at its end."""
    observe: Callable[[str], None]
    """Called with the name of each function of the system, before it."""

    def _finish(self, thread: Thread, returned: int | Steps | Waiting, back: int) -> None:
        if isinstance(returned, int):
            self._return(returned, back)
        elif isinstance(returned, Waiting):
            self._wait(thread, returned, None, back)
        else:
            self._continue(thread, returned, None, back)

    def _wait(self, thread: Thread, waiting: Waiting, steps: Steps | None, back: int) -> None:
        thread.waiting = waiting
        cpu = self.cpu
        thread.steps.append((steps, cpu.sp, cpu.read(cpu.arch.registers.fp), back))

    def _continue(self, thread: Thread, steps: Steps, result: int | None, back: int) -> None:
        try:
            step = next(steps) if result is None else steps.send(result)
        except StopIteration as ended:
            self._return(ended.value, back)
            return
        if isinstance(step, Waiting):
            self._wait(thread, step, steps, back)
            return
        function, arguments = step
        # With a frame of its own, as a compiler would make it.
        cpu, registers = self.cpu, self.cpu.arch.registers
        sp, fp = cpu.sp, cpu.read(registers.fp)
        thread.steps.append((steps, sp, fp, back))
        frame = (sp & -_SLOT) - 2 * _SLOT
        self.memory.set_word(frame, fp)
        self.memory.set_word(frame + 8, back)
        cpu.write(registers.fp, frame)
        cpu.write(registers.sp, frame - _SLOT)
        if thread.pending is not None:
            thread.frames.append(thread.pending)
            thread.pending = None
        thread.frames.append(Frame(self._slot("back")))
        self._go(function, arguments, self._slot("back"))

    def _resume(self, thread: Thread, result: int) -> None:
        """Continue what has waited."""
        steps, sp, _, back = thread.steps.pop()
        if back == 0:
            self._set_result(result)
        else:
            self.cpu.write(self.cpu.arch.registers.sp, sp)
            if steps is None:
                self._return(result, back)
            else:
                self._continue(thread, steps, result, back)

    def _go(self, function: int, arguments: Sequence[int], back: int) -> None:
        cpu = self.cpu
        for number, value in zip(self._arguments, arguments, strict=False):
            cpu.write(number, value % (1 << 64))
        cpu.call_from(cpu.sp, back)
        self.uc.reg_write(cpu.pc, function & (1 << 47) - 1)

    def _pop_return_address(self) -> int:
        cpu = self.cpu
        if self.arch.is_arm64:
            return cpu.read(30)
        sp = cpu.sp
        cpu.write(cpu.arch.registers.sp, sp + 8)
        return self.memory.word(sp)

    def _return(self, result: int, back: int) -> None:
        self.cpu.write(0, result % (1 << 64))
        self.uc.reg_write(self.cpu.pc, back)

    # --- system calls ---

    def _interrupted(self, _uc: object, number: int, _: object) -> None:
        if number != _SYSTEM_CALL:
            self._fail(
                AssertionError(f"trap {number} at {self.describe(self.cpu.program_counter)}")
            )
            return
        self._system(self.uc.reg_read(arm64.UC_ARM64_REG_X16))

    def _called_system(self, _uc: object, _: object) -> None:
        self._system(self.uc.reg_read(x86.UC_X86_REG_RAX) & 0xFFFFFF)

    def _system(self, number: int) -> None:
        try:
            values = self.cpu.registers().values
            registers = range(8) if self.arch.is_arm64 else (5, 4, 1, 10, 8, 9)
            result = self.system_calls[number]([values[register] or 0 for register in registers])
        except BaseException as error:  # noqa: BLE001 (unicorn would swallow it)
            self._fail(error)
            return
        if isinstance(result, Waiting):
            self._stop = result
            self.uc.emu_stop()
        else:
            assert isinstance(result, int)
            self._set_result(result)

    def _set_result(self, result: int) -> None:
        """Set a system call's result; errors are negative."""
        self.cpu.write(0, abs(result))
        if self.arch.is_arm64:
            flags = self.uc.reg_read(arm64.UC_ARM64_REG_NZCV) & ~(1 << 29)
            self.uc.reg_write(arm64.UC_ARM64_REG_NZCV, flags | (result < 0) << 29)
        else:
            flags = self.uc.reg_read(x86.UC_X86_REG_EFLAGS) & ~1
            self.uc.reg_write(x86.UC_X86_REG_EFLAGS, flags | (result < 0))

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self.uc.emu_stop()

    # --- the truth ---

    def _block(self, _uc: object, address: int, size: int, _: object) -> None:
        thread = self._running
        assert thread is not None
        frames = thread.frames
        if thread.pending is not None:
            frames.append(thread.pending)
            thread.pending = None
        if frames and frames[-1].return_address == address and address not in self._watched:
            frames.pop()
        symbol = self._watched.get(address)
        if symbol is not None:
            stack = tuple(frame.return_address for frame in reversed(frames))
            self.calls.append(TrueCall(symbol, thread.id, stack))
        known = self._blocks.get((address, size))
        if known is None:
            known = self._blocks[address, size] = self._last_of(address, size)
        if known[0] is Transfer.CALL:
            thread.pending = Frame(known[1])

    def _last_of(self, address: int, size: int) -> tuple[Transfer, int]:
        """The transfer at the end of a block, and the address behind it."""
        code = self.memory.read(address, size)
        if self.arch.is_arm64:
            return self.cpu.transfer(code[-4:]), address + size
        *_, (at, length, _) = self.cpu.instructions(code, address)
        return self.cpu.transfer(self.memory.read(at, length)), at + length
