"""A Mach-O program run instruction by instruction, with the true stack at each.

The truth needs no unwinder: calls push what they will return to, returns pop it. Of every caller
the registers are recorded at its call, since those that calls preserve must be recovered
so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from unicorn.unicorn_const import UC_HOOK_BLOCK, UC_HOOK_CODE

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc, UcError

from machtrace.errors import MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader
from machtrace.model.registers import RegisterSet
from tests.support.emulated.cpu import EmulatedCpu, Transfer, emulated_cpu
from tests.support.emulated.signals import SignalDelivery
from tests.support.emulated.true_stack import TrueFrame, TrueStack

OUTSIDE = Avma(0x20000000)
"""The return address of the outermost frame; in no image."""
STACK_SIZE = 0x400000
_STACK_STARTS = {8: 0x16F000000, 4: 0xB0000000}
"""By the size of a pointer."""
STACK_SECTION = "__stack"
"""How names of sections of ``__DATA`` begin that a program uses as stacks of their own."""
_PAGE = 0x1000
_UNLIMITED = 1 << 40


def main_stack(contents: MachOFileContents) -> range:
    """Return the memory that a program's stack is in."""
    start = _STACK_STARTS[contents.image.arch.pointer_size]
    return range(start, start + STACK_SIZE)


class EmulatedMemory:
    """The emulator's memory, as walks read it."""

    __slots__ = ("_cpu",)

    def __init__(self, cpu: Uc) -> None:
        self._cpu = cpu

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`MemoryReader.read`."""
        try:
            return bytes(self._cpu.mem_read(address, size))
        except (UcError, OverflowError, ValueError):
            raise MemoryReadError(address, size) from None


@dataclass(frozen=True, slots=True)
class Moment:
    """The program before one instruction."""

    registers: RegisterSet
    memory: MemoryReader
    callers: tuple[TrueFrame, ...]
    """Innermost first; the last is :data:`OUTSIDE`, but on stacks of the program's own."""

    @property
    def addresses(self) -> tuple[Avma, ...]:
        """The result of a perfect walk: pc, then return addresses."""
        return (self.registers.pc, *(frame.return_address for frame in self.callers))


Visit = Callable[[Moment], object]
"""Is shown a moment. If it gives back something true, the next block's first is shown, too."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive instructions."""

    addresses: tuple[Avma, ...]
    end: Avma
    transfer: Transfer
    """The last instruction's."""


class EmulatedRun:
    """One run of a program, from its entry until that returns, traps or reaches a limit."""

    def __init__(
        self,
        contents: MachOFileContents,
        patches: Mapping[int, bytes] | None = None,
        *,
        prepare: Callable[[EmulatedCpu], None] | None = None,
        signals: Mapping[str, int] | None = None,
    ) -> None:
        """Load nothing yet.

        Args:
            contents: the program.
            patches: bytes to write over the program's, by Svma, as dyld would.
            prepare: what else to do before it starts.
            signals: deliver signals to it, by these symbols; see :class:`SignalDelivery`.
        """
        self._contents = contents
        self._patches = patches or {}
        self._prepare = prepare
        self.cpu: EmulatedCpu = emulated_cpu(contents.image.arch)
        self.memory = EmulatedMemory(self.cpu.uc)
        self._signals = None if signals is None else SignalDelivery(self.cpu, signals)
        self._main_stack = main_stack(contents)
        self.instructions = 0
        """That were run."""
        self._pending: Callable[[Avma], None] | None = None
        """The effect of the last instruction on the stack of calls, given its successor."""
        self.failure: BaseException | None = None
        """The exception of a hook, which unicorn would swallow."""

    def run(
        self, visit: Visit, *, limit: int = 200_000, every: int = 1, each_place: bool = False
    ) -> None:
        """Run, and show ``visit`` every ``every``-th moment.

        With ``each_place``, and ``every`` above 1, also each instruction as it is first come to.
        With ``every`` above 1, instructions between take a fraction of a microsecond each, and of
        a caller's registers lr is what its call left there.

        Raises:
            AssertionError: the program faulted, did not end in ``limit`` instructions, or returned
                to where it was not called from; then there is no truth to compare with.
        """
        entry, cpu = self._contents.image.entry, self.cpu
        assert entry is not None, "the program has no entry"
        self._load()
        if self._prepare is not None:
            self._prepare(cpu)
        self._stack = TrueStack(self._outermost(), self._own_stacks())
        start = self._contents.image.header_svma + entry.entryoff
        try:
            if every == 1 or self._signals is not None:
                self._run_each(visit, start, limit, every)
            else:
                _BlockRun(self, visit, every, limit, each_place=each_place).run(start)
        except UcError as error:
            if not self._is_at_trap():
                pc = cpu.program_counter
                raise AssertionError(f"the program faulted at {pc:#x}: {error}") from error
        if self.failure is not None:
            raise self.failure
        assert self.instructions < limit, "the program did not end"

    def _is_at_trap(self) -> bool:
        cpu = self.cpu
        try:
            code = self.memory.read(Avma(cpu.program_counter), cpu.longest_instruction)
        except MemoryReadError:
            return False  # it jumped to where there is nothing
        return cpu.is_trap(code)

    def _load(self) -> None:
        uc = self.cpu.uc
        for segment in self._contents.image.segments:
            if segment.vmsize and segment.name != "__PAGEZERO":
                uc.mem_map(segment.vmaddr, -(-segment.vmsize // _PAGE) * _PAGE)
                data = self._contents.read_file(segment.fileoff, segment.filesize)
                uc.mem_write(segment.vmaddr, bytes(data))
        for address, patch in self._patches.items():
            uc.mem_write(address, patch)
        uc.mem_map(self._main_stack.start, STACK_SIZE)
        uc.mem_map(OUTSIDE, _PAGE)

    def _own_stacks(self) -> list[range]:
        return [
            range(section.address, section.address + section.size)
            for segment in self._contents.image.segments
            for section in segment.sections
            if section.name.startswith(STACK_SECTION)
        ]

    def _outermost(self) -> TrueFrame:
        """Set the registers as the caller of the entry leaves them, and return them."""
        top = self._main_stack.stop - _PAGE
        self.cpu.enter(top, OUTSIDE)
        raw = self.cpu.raw_registers()
        return TrueFrame(OUTSIDE, top, partial(self.cpu.with_registers, raw, pc=OUTSIDE, sp=top))

    # --- every instruction ---

    def _run_each(self, visit: Visit, start: int, limit: int, every: int) -> None:
        cpu = self.cpu

        diverted: Avma | None = None

        def hook(uc: Uc, address: int, size: int, _: object) -> None:
            nonlocal diverted
            if address == OUTSIDE:
                uc.emu_stop()
                return
            try:
                self.settle(Avma(address))
                if self._signals is not None and self._signals.wants(Avma(address)):
                    diverted = Avma(address)  # flags are only whole when the CPU stands
                    uc.emu_stop()
                    return
                moment = self._come_to(Avma(address), size)
                if (self.instructions - 1) % every == 0:
                    visit(moment)
            except BaseException as error:  # noqa: BLE001 (unicorn would swallow it)
                self.failure = error
                uc.emu_stop()

        cpu.uc.hook_add(UC_HOOK_CODE, hook)
        cpu.uc.emu_start(cpu.start_address(start), OUTSIDE, count=limit)
        while diverted is not None and self._signals is not None and self.failure is None:
            address = self._signals.divert(diverted, self._stack)
            diverted = None
            left = limit - self.instructions
            cpu.uc.emu_start(cpu.start_address(address), OUTSIDE, count=left)

    def _come_to(self, address: Avma, size: int) -> Moment:
        self.instructions += 1
        cpu, stack = self.cpu, self._stack
        raw = cpu.raw_registers()
        registers = cpu.register_set(raw)
        if stack.has_other_stacks:
            stack.stand_on(registers.sp or 0)
        # Of an instruction that only traps, unicorn does not know the size.
        code = self.memory.read(address, min(size, cpu.longest_instruction))
        transfer = cpu.transfer(code)
        after = Avma(address + size)
        if transfer is Transfer.CALL:
            frame = TrueFrame(after, registers.sp or 0, lambda: registers)
            self._pending = lambda target: stack.call(target, frame)
        elif transfer is not Transfer.NONE:
            self._pending = partial(self._leave, transfer, after)
        return Moment(registers, self.memory, tuple(reversed(stack.frames)))

    def settle(self, address: Avma) -> None:
        """Record that the last instruction led to ``address``."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending(address)

    def _leave(self, transfer: Transfer, after: Avma, target: Avma) -> None:
        sp = self.cpu.sp
        if self._stack.has_other_stacks:
            self._stack.stand_on(sp)
        self._stack.leave(transfer, after, target, sp)

    # --- block by block ---

    def moment(self) -> Moment:
        """Return the present moment."""
        registers = self.cpu.registers()
        if self._stack.has_other_stacks:
            self._stack.stand_on(registers.sp or 0)
        return Moment(registers, self.memory, tuple(reversed(self._stack.frames)))

    def block(self, address: int, size: int) -> _Block:
        """Return the block of ``size`` bytes at ``address``."""
        cpu = self.cpu
        code = self.memory.read(Avma(address), size)
        sizes = [(at, length) for at, length, _ in cpu.instructions(code, address)]
        if not sizes or sizes[-1][0] + sizes[-1][1] != address + size:
            raise AssertionError(f"no instructions: {code.hex()} at {address:#x}")
        last, length = sizes[-1]
        transfer = cpu.transfer(code[last - address :][:length])
        return _Block(tuple(Avma(at) for at, _ in sizes), Avma(address + size), transfer)

    def end_block(self, block: _Block) -> None:
        """Count the instructions of a block that runs to its end now."""
        self.instructions += len(block.addresses)
        if block.transfer is Transfer.CALL:
            self._pending = partial(self._call, block)
        elif block.transfer is not Transfer.NONE:
            self._pending = partial(self._leave, block.transfer, block.end)

    def _call(self, block: _Block, target: Avma) -> None:
        cpu = self.cpu
        raw = cpu.raw_registers()
        sp = cpu.sp + cpu.return_slot
        captured = partial(cpu.with_registers, raw, pc=block.addresses[-1], sp=sp)
        self._stack.call(target, TrueFrame(block.end, sp, captured))


class _BlockRun:
    """Lets whole blocks run, but those with a sample in them up to that."""

    def __init__(
        self, run: EmulatedRun, visit: Visit, every: int, limit: int, *, each_place: bool
    ) -> None:
        self._run = run
        self._visit = visit
        self._every = every
        self._limit = limit
        self._seen: set[Avma] | None = set() if each_place else None
        self._blocks: dict[tuple[int, int], _Block] = {}
        self._current: _Block | None = None
        """With a sample in it."""
        self._wants_next = False
        self._following = every
        """The next moment to show."""

    def run(self, start: int) -> None:
        self._run.cpu.uc.hook_add(UC_HOOK_BLOCK, self._hook)
        self._resume(start, _UNLIMITED)
        while self._current is not None and self._run.failure is None:
            self._show_samples(self._current)
            self._current = None
            self._resume(self._run.cpu.program_counter, _UNLIMITED)

    def _resume(self, address: int, count: int) -> None:
        # Always with a count: to change between with and without flushes what is translated.
        cpu = self._run.cpu
        cpu.uc.emu_start(cpu.start_address(address), OUTSIDE, count=count)

    def _hook(self, uc: Uc, address: int, size: int, _: object) -> None:
        if self._current is not None:  # a block that was left before its end continues
            return
        try:
            if not self._begin_block(address, size):
                uc.emu_stop()
        except BaseException as error:  # noqa: BLE001 (unicorn would swallow it)
            self._run.failure = error
            uc.emu_stop()

    def _begin_block(self, address: int, size: int) -> bool:
        """Return whether the block may run to its end."""
        run = self._run
        run.settle(Avma(address))
        if address == OUTSIDE or run.instructions >= self._limit:
            return False
        block = self._blocks.get((address, size))
        if block is None:
            block = self._blocks[address, size] = run.block(address, size)
            if self._seen is not None and not self._seen.issuperset(block.addresses):
                self._current = block
                return False
        if self._wants_next or run.instructions + len(block.addresses) > self._following:
            self._current = block
            return False
        run.end_block(block)
        return True

    def _show_samples(self, block: _Block) -> None:
        run, addresses, done = self._run, block.addresses, 0
        for index in self._shown(block):
            if index > done:
                self._resume(addresses[done], index - done)
            self._wants_next = bool(self._visit(run.moment()))
            done = index
        run.end_block(block)
        self._resume(addresses[done], len(addresses) - done)

    def _shown(self, block: _Block) -> list[int]:
        """Places in a block that are to be shown now."""
        shown: set[int] = {0} if self._wants_next else set()
        self._wants_next = False
        while (sample := self._following - self._run.instructions) < len(block.addresses):
            shown.add(sample)
            self._following += self._every
        if self._seen is not None:
            shown.update(i for i, at in enumerate(block.addresses) if at not in self._seen)
            self._seen.update(block.addresses)
        return sorted(shown)
