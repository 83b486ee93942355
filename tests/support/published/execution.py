"""Runs a function from a state, follows or steps over its calls, and keeps the true stack.

A run ends at the first moment after which the truth would not be certain; what is compared is
before that. :data:`Ending` values are the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from unicorn.unicorn_const import UC_HOOK_CODE, UC_HOOK_MEM_WRITE

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc, UcError

from machtrace.model.address import Avma
from tests.support.published.entries import Entries
from tests.support.published.functions import Functions
from tests.support.published.instructions import Instruction, Kind
from tests.support.published.jump_tables import JumpTables
from tests.support.published.machine import STACK, Machine, Values
from tests.support.published.true_calls import Call, TrueCalls

LIMIT = 160
"""Instructions of a run."""
_MAX_DEPTH = 12
"""Calls in progress beyond which calls are stepped over."""
_MAX_OUTLINED_DEPTH = 24
_FOLLOWED = 0.5
ADDRESS_MASK = (1 << 47) - 1
_START = 100
"""In place of a kind: a plain instruction that starts a function."""
_TABLE_LOAD = 101
"""The load of an entry of a jump table."""

RETURNED = "the function returned"
REACHED_LIMIT = "the limit was reached"
DIVERTED = "a call was diverted"


class Execution:
    """Executes code on a machine; one run at a time."""

    def __init__(self, machine: Machine, functions: Functions, entries: Entries) -> None:
        self.machine = machine
        self.functions = functions
        self._entries = entries
        self.calls = TrueCalls([])
        self.trace: list[int] = []
        """Addresses of executed instructions, and of the present one."""
        self._cpu = machine.cpu
        self._image = machine.image
        self._arm64 = machine.image.arch.is_arm64
        self._numbers = {number: index for index, number in enumerate(machine.cpu.numbers, 1)}
        scratch = range(18) if self._arm64 else (0, 1, 2, 4, 5, 8, 9, 10, 11)
        self._scratch = tuple(self._numbers[number] for number in scratch)
        self._sp = self._numbers[machine.image.arch.registers.sp]
        self._lr = self._numbers.get(30)
        self._values = Values(machine.image)
        self._tables = JumpTables(machine.image, functions)
        self._kinds: dict[int, int] = {}
        self._random = Random(0)  # replaced for each run
        self._base = 0
        self._diverts = 0.0
        self._visit: Callable[[], object] = lambda: None
        self._stops: frozenset[int] = frozenset()
        self._limit = LIMIT
        self.steps = 0
        """Instructions that could be compared."""
        self.ended = ""
        """The reason for which the run ended."""
        self._called: dict[tuple[int, int, int], int] = {}
        """Stack pointers at calls, by depth, activation and address."""
        self._following: int | None = None
        """Where to continue after the emulator stopped."""
        self._failure: BaseException | None = None
        machine.uc.hook_add(UC_HOOK_CODE, self._on_instruction)
        machine.uc.hook_add(UC_HOOK_MEM_WRITE, self._on_write)

    def run(
        self,
        entry: int,
        calls: TrueCalls,
        random: Random,
        *,
        stops: frozenset[int] = frozenset(),
        visit: Callable[[], object] = lambda: None,
        limit: int = LIMIT,
        diverts: float = 0.0,
    ) -> str:
        """Run the code at ``entry``, with registers and memory as they are.

        Args:
            entry: a function's first instruction; its call is the last of ``calls``.
            calls: the calls in progress, which are updated.
            random: decides which calls are followed, and values of registers after others.
            stops: numbers of instructions, the first 0, before which ``visit`` is called.
            visit: called with the machine stopped before an instruction.
            limit: the maximum number of instructions.
            diverts: the probability that a call of the innermost function ends the run as
                :data:`DIVERTED`, with the call made and its target replaced by the caller.

        Returns:
            Why it ended.
        """
        self.calls, self._random, self._base = calls, random, len(calls.calls)
        self._stops, self._visit, self._limit, self._diverts = stops, visit, limit, diverts
        self.trace, self.ended, self.steps, self._failure = [], "", 0, None
        self._called.clear()
        following: int | None = entry
        while following is not None and not self.ended:
            self._following = None
            try:
                self._cpu.uc.emu_start(following, 0)
            except UcError as error:
                if not self.ended:
                    self.ended = f"the emulator: {error}"
            following = self._following
        if self._failure is not None:
            raise self._failure
        return self.ended or "the emulator stopped"

    def _end(self, reason: str) -> None:
        self.ended = reason
        self._cpu.uc.emu_stop()

    # --- instructions ---

    def _on_instruction(self, uc: Uc, address: int, size: int, _: object) -> None:
        try:
            if self.ended or self._following is not None:
                uc.emu_stop()
                return
            trace = self.trace
            trace.append(address)
            count = self.steps
            kind = self._kinds.get(address)
            if kind is None:
                kind = self._kind(address, size)
            if kind == _START and count and self._falls_in(address):
                self._end("fell into the next function")
                return
            if count >= self._limit:
                self._end(REACHED_LIMIT)
                return
            if kind == Kind.TRAP:
                self._end("a trap, or an instruction that the emulator does not know")
                return
            if kind == _TABLE_LOAD:
                self._tables.choose_index(self._cpu, address, trace)
            if count in self._stops:
                self._visit()
            self.steps = count + 1
            if kind == Kind.PLAIN or kind >= Kind.PADDING or kind == Kind.BRANCH:
                return
            self._transfer(address, self.functions.instruction(address))
        except BaseException as error:  # noqa: BLE001 (unicorn would swallow it)
            self._failure = error
            self._end("failure")

    def _kind(self, address: int, size: int) -> int:
        instruction = self.functions.instruction(address)
        kind: int = instruction.kind
        is_misread = not self._arm64 and size != instruction.size
        if is_misread or not self._image.holds_code(address):
            kind = Kind.TRAP
        elif kind in (Kind.PLAIN, Kind.PADDING) and address in self.functions.start_set:
            kind = _START
        elif self._tables.is_load(address):
            kind = _TABLE_LOAD
        self._kinds[address] = kind
        return kind

    def _falls_in(self, address: int) -> bool:
        before = self.trace[-2]
        instruction = self.functions.instruction(before)
        return before + instruction.size == address and instruction.kind in (
            Kind.PLAIN,
            Kind.BRANCH,
            Kind.PADDING,
        )

    def _transfer(self, address: int, instruction: Instruction) -> None:
        if instruction.kind is Kind.CALL:
            self._call(address, instruction)
        elif instruction.kind is Kind.RETURN:
            self._return(instruction)
        elif instruction.kind is Kind.SYSTEM_CALL:
            self._system_call(address + instruction.size)
        elif instruction.kind is Kind.JUMP:
            assert instruction.target is not None
            self._check_jump(instruction.target)
        else:
            self._indirect_jump(address, instruction)

    def _target(self, instruction: Instruction) -> int | None:
        """Return where a transfer leads; None if that cannot be read."""
        if instruction.target is not None:
            return instruction.target
        if instruction.register is not None:
            return self._cpu.read(instruction.register)
        memory = instruction.memory
        if memory is None:
            return None
        address = memory.displacement
        if memory.base is not None:
            address += self._cpu.read(memory.base)
        if memory.offset is not None:
            address += self._cpu.read(memory.offset) * memory.scale
        address &= (1 << 64) - 1
        return self.machine.word(address)

    # --- calls ---

    def _call(  # noqa: C901, PLR0912 (the cases of a call)
        self, address: int, instruction: Instruction
    ) -> None:
        functions, after = self.functions, address + instruction.size
        target = self._target(instruction)
        if target is None:
            self._end("a call through unreadable memory")
            return
        if functions.never_returns(target) or self._entries.resumes_another_stack(target):
            self._end("a call that does not return")
            return
        if functions.ends_at(after):
            self._end("a call that does not return, by what follows it")
            return
        if self._came_otherwise(address):
            self._end("a call with another stack pointer than at the last time: one did not return")
            return
        if functions.keeps_scratch(address):
            self._call_privately(target, after, is_direct=instruction.target is not None)
            return
        depth = len(self.calls.calls)
        in_code = self._image.holds_code(target)
        outlined = in_code and not self._image.is_stub(target) and functions.must_follow(target)
        is_entered = instruction.target is not None or target in functions.start_set
        if not in_code or not is_entered:
            self._continue_at(after, clobbers=not functions.preserves_all(target, after))
        elif outlined and depth < _MAX_OUTLINED_DEPTH:
            self._follow(after, is_conventional=False)
        elif outlined:
            self._end("calls too deep")
        elif functions.switches_stacks(target):
            self._continue_at(after, clobbers=True)
        elif depth == self._base and self._random.random() < self._diverts:
            self._divert(after)
        elif functions.preserves_all(target, after):
            self._continue_at(after, clobbers=False)
        elif depth < _MAX_DEPTH and self._random.random() < _FOLLOWED:
            # A part of assembly may not preserve what functions do.
            self._follow(after, is_conventional=not self._entries.problem(target))
        else:
            self._continue_at(after, clobbers=True)

    def _came_otherwise(self, address: int) -> bool:
        """Return whether the same activation called from ``address`` with another sp before.

        Then an earlier call whose return was assumed does not return (or it allocates in a loop).
        """
        sp = self._cpu.sp
        return (
            self._called.setdefault((len(self.calls.calls), self.calls.calls[-1].sp, address), sp)
            != sp
        )

    def _call_privately(self, target: int, after: int, *, is_direct: bool) -> None:
        """Call from assembly that relies on which scratch registers its callees preserve."""
        if is_direct and self._image.holds_code(target) and len(self.calls.calls) < _MAX_DEPTH:
            self._follow(after, is_conventional=False)
        else:
            self._continue_at(after, clobbers=False)

    def _follow(self, after: int, *, is_conventional: bool = True) -> None:
        raw = self._cpu.raw_registers()
        sp = raw[self._sp]
        self.calls.push(Call(Avma(after), sp, raw, is_conventional))
        if not self._arm64:
            self.calls.save(sp - 8, after)

    def _divert(self, after: int) -> None:
        """Make the call, and stop at what would be the callee's first instruction."""
        if not STACK.start + 8 <= self._cpu.sp < STACK.stop:
            self._end("left the stack")
            return
        self._follow(after)
        if self._lr is not None:
            self._cpu.write(30, after)
        else:
            sp = self._cpu.sp - 8
            self._cpu.uc.mem_write(sp, after.to_bytes(8, "little"))
            self.machine.dirty.add(sp >> 12)
            self._cpu.write(self._image.arch.registers.sp, sp)
        self._end(DIVERTED)

    def _system_call(self, after: int) -> None:
        """Return at once from the kernel, which preserves more than functions do."""
        for number in (0, 1) if self._arm64 else (0, 2, 11):
            self._cpu.write(number, self._values.draw(self._random))
        self._continue(after)

    def _continue(self, address: int) -> None:
        """Continue elsewhere. To write pc in a hook does not always lead there."""
        self._following = address
        self._cpu.uc.emu_stop()

    def _continue_at(self, address: int, *, clobbers: bool, pops: bool = False) -> None:
        """Step over a call, or return from a function of another image."""
        raw = list(self._cpu.raw_registers())
        if clobbers:
            for index in self._scratch:
                raw[index] = self._values.draw(self._random)
            if self._lr is not None:
                raw[self._lr] = address
        if pops:
            raw[self._sp] += 8
        self._cpu.write_raw(raw)
        self._continue(address)

    # --- returns and jumps ---

    def _return(self, instruction: Instruction) -> None:
        sp = self._cpu.sp
        if self._arm64:
            assert instruction.register is not None
            target = self._cpu.read(instruction.register) & ADDRESS_MASK
        else:
            target = self.machine.word(sp) or 0
            sp += 8
        self._leave(target, sp)

    def _leave(self, target: int, sp: int) -> bool:
        """Record a return; return whether the run continues."""
        call = self.calls.calls[-1]
        if target != call.return_address:
            self._end("a return to another address than the caller's")
        elif call.is_conventional and sp != call.sp:
            self._end("a return with another stack pointer than the caller's")
        elif len(self.calls.calls) == self._base:
            self._end(RETURNED)
        else:
            self.calls.pop(sp)
            return True
        return False

    def _check_jump(self, target: int) -> None:
        if self.functions.never_returns(target):
            self._end("a jump to a function that does not return")
        elif not self._image.holds_code(target):
            self._end("a jump out of the code")

    def _indirect_jump(self, address: int, instruction: Instruction) -> None:
        target = self._target(instruction)
        if target is None:
            self._end("a jump through unreadable memory")
        elif self.functions.never_returns(target):
            self._end("a jump to a function that does not return")
        elif not self._image.holds_code(target):
            self._return_from_outside()
        elif self._image.is_stub(target):
            return
        elif target in self.functions.start_set:
            if self._has_pushed_code():
                self._end("a call by a pushed address and a jump")
            # Not a tail call: a jump table with an impossible index.
            elif self._has_frame() and not self._entries.problem(target):
                self._end("a jump to a function with the frame of another")
        else:
            problem = self._tables.problem(address, target, self.trace)
            if problem:
                self._end(problem)

    def _has_frame(self) -> bool:
        """Return whether sp is below its value at the function's entry, so this is no tail call."""
        return self._cpu.sp + (0 if self._arm64 else 8) < self.calls.calls[-1].sp

    def _has_pushed_code(self) -> bool:
        """Return whether an address of code was pushed for the return of what is jumped to.

        Such a call of assembly is no call instruction, so the true stack would lack its caller.
        """
        if self._arm64 or not self._has_frame():
            return False
        pushed = self.machine.word(self._cpu.sp)
        return pushed is not None and self._image.holds_code(pushed)

    def _return_from_outside(self) -> None:
        """Return at once from a tail call of another image's function."""
        sp = self._cpu.sp
        if self._lr is not None:
            target = self._cpu.read(30) & ADDRESS_MASK
        else:
            target = self.machine.word(sp) or 0
            sp += 8
        if self._leave(target, sp):
            self._continue_at(target, clobbers=True, pops=self._lr is None)

    # --- stores ---

    def _on_write(
        self, uc: Uc, access: int, address: int, size: int, value: int, _: object
    ) -> None:
        del uc, access
        dirty = self.machine.dirty
        dirty.add(address >> 12)
        if not STACK.start <= address < STACK.stop:
            dirty.add((address + size - 1) >> 12)
            return
        try:
            self._on_stack_write(address, size, value & ((1 << 64) - 1))
        except BaseException as error:  # noqa: BLE001 (unicorn would swallow it)
            self._failure = error
            self._end("failure")

    def _on_stack_write(self, address: int, size: int, value: int) -> None:
        self.machine.dirty.add((address + size - 1) >> 12)
        saved = self.calls.saved
        for slot in range(address & -8, address + size, 8):
            before = saved.get(slot)
            if before is None or (slot == address and size == 8 and before == value):
                continue
            if slot >= self._cpu.sp:
                self._end("a store over what a frame saved")
                return
            self.calls.forget_below(self._cpu.sp)
        stored = self.functions.instruction(self.trace[-1]).stored
        if stored and size == 8:
            caller = self.calls.calls[-1]
            if any(self._holds(number, value, caller) for number in stored):
                self.calls.save(address, value)

    def _holds(self, number: int, value: int, caller: Call) -> bool:
        if number == 30:
            return value & ADDRESS_MASK == caller.return_address
        return caller.registers[self._numbers[number]] == value
