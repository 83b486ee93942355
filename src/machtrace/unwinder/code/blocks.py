"""The basic blocks of a function: runs of instructions that are entered at the first only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from machtrace.unwinder.code.calling_convention import Machine
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    InsertConstant,
    Jump,
    Load,
    LoadIndexed,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Trap,
    Writes,
)
from machtrace.unwinder.code.frame_state import FrameState

# --- The registers that can lead to a frame at all ---
#
# In a long function nearly every instruction computes in registers that concern neither its caller
# nor its frame. They are identified first, regardless of the order of instructions, so that data
# flow can skip them. A register's value is needed if it may be the return address, if the frame
# pointer is computed from it, or if registers are saved in the frame through it. Of callee-saved
# registers it is also needed how long they have the caller's value.


class LiveRegisters(NamedTuple):
    """Registers by DWARF number."""

    followed: frozenset[int]
    """Registers that may have to be recovered: it matters whether they have the caller's value."""
    valued: frozenset[int]
    """Registers whose value matters, too: an address in the frame, or a number."""


def all_registers(machine: Machine) -> LiveRegisters:
    """Return every register, for unknown code."""
    everything = frozenset(machine.tracked)
    return LiveRegisters(everything, everything)


def live_registers(code: Iterable[Effect], machine: Machine) -> LiveRegisters:
    """Return the registers that matter in ``code``.

    All of them, if sp is computed from registers other than itself and the frame pointer, or from
    numbers that may be unknown: then any register may become the only one that leads to the frame.
    """
    search = _Search(machine)
    for instruction in {id(each): each for each in code}.values():
        if not search.record(instruction):
            return all_registers(machine)
    valued, holding = search.valued(), search.holding()
    unneeded = machine.volatile_set - valued - holding
    return LiveRegisters(frozenset(machine.tracked) - unneeded, valued)


class _Search:
    """A search in two steps: record all instructions, then follow the dependencies."""

    def __init__(self, machine: Machine) -> None:
        self._sp, self._fp = machine.sp, machine.fp
        self._return = machine.return_address.register
        self._return_offset = None if self._return in machine.indices else machine.word
        """The return address's offset from the frame pointer if it is on the stack."""
        self._frame = frozenset({machine.sp, machine.fp})
        self._preserved = frozenset({*machine.callee_saved, machine.fp, self._return})
        self._holding: set[int] = set()
        """Registers that the return address may be in."""
        self._frame_made_of: set[int] = set()
        """Registers that the frame pointer is computed from."""
        self._made_of: dict[int, set[int]] = {}
        """The sources of a register's values, by register."""
        self._saved: set[int] = set()
        """Registers that are saved through sp or the frame pointer."""
        self._bases: dict[int, set[int]] = {}
        """The preserved registers that are stored or loaded through another register, by that
        register."""

    def record(  # noqa: C901, PLR0911 - one branch a kind
        self, instruction: Effect
    ) -> bool:
        """Record an instruction; return False if it sets sp to an untracked value."""
        match instruction:
            case Writes(registers):
                return self._sp not in registers
            case AddConstant(destination, source) | MoveRegister(destination, source):
                return self._assigned(destination, source)
            case SetConstant(destination) | InsertConstant(destination):
                return destination != self._sp
            case AddRegister(destination, source, register):
                self._assigned(destination, register)
                return destination != self._sp and self._assigned(destination, source)
            case Store(registers, _, base):
                self._moved(registers, base)
            case Load(registers, _, base, offset):
                if base not in self._frame:
                    self._moved(registers, base)
                elif base == self._fp and offset == self._return_offset:
                    self._holding.update(register for register in registers if register is not None)
                return self._sp not in registers
            case LoadIndexed(register):
                return register != self._sp
            case Return(register):
                self._holding.add(register)
            case _:
                pass
        return True

    def _moved(self, registers: tuple[int | None, ...], base: int) -> None:
        if base in self._frame:
            self._saved.update(register for register in registers if register is not None)
        elif not self._preserved.isdisjoint(registers):
            self._bases.setdefault(base, set()).update(self._preserved.intersection(registers))

    def _assigned(self, destination: int, source: int) -> bool:
        if destination == self._sp:
            return source in self._frame
        self._made_of.setdefault(destination, set()).add(source)
        if destination == self._fp:
            self._frame_made_of.add(source)
        elif source == self._return:
            self._holding.add(destination)
        elif destination == self._return:
            self._holding.add(source)
        return True

    def valued(self) -> frozenset[int]:
        """Return the registers from whose values an address in the frame is computed."""
        into_frame = self._made_of_frame()
        # A register saved through sp needs no other base: its other stores are of variables.
        bases = {
            base
            for base, registers in self._bases.items()
            if base in into_frame and not registers <= self._saved
        }
        always = {self._sp, self._fp, self._return}
        return self._with_sources(always | self._frame_made_of | bases)

    def holding(self) -> frozenset[int]:
        """Return registers that may have another register's caller value, or the return address."""
        copies = {
            source
            for register, sources in self._made_of.items()
            if register in self._preserved and register not in self._saved
            for source in sources
            if register in self._made_of.get(source, ())
        }
        return self._with_sources(self._holding | copies)

    def _with_sources(self, registers: set[int]) -> frozenset[int]:
        closure = set(registers)
        waiting = list(closure)
        while waiting:
            more = self._made_of.get(waiting.pop(), set()) - closure
            closure |= more
            waiting += more
        return frozenset(closure)

    def _made_of_frame(self) -> set[int]:
        """Return registers that may have an address in the frame, not loaded from memory."""
        into_frame = set(self._frame)
        grew = True
        while grew:
            more = {
                register
                for register, sources in self._made_of.items()
                if register not in into_frame and not sources.isdisjoint(into_frame)
            }
            into_frame |= more
            grew = bool(more)
        return into_frame - self._frame


# --- The basic blocks of a function: runs of instructions that are entered at the first only ---

MAX_INSTRUCTIONS = 64
"""Instructions per block; the state in a block is computed from its start."""

OUTSIDE = -1
"""The number of a block outside of the function."""

Leaving = Jump | IndirectJump | Call | Return | Trap
"""The instructions that end a block."""
_LEAVING = frozenset({Jump, IndirectJump, Call, Return, Trap})


class Blocks:
    """The blocks of one function, numbered in code order.

    Instructions that cannot change a :class:`FrameState` are skipped.
    """

    __slots__ = (
        "_code",
        "_effects",
        "_known",
        "_machine",
        "_needed",
        "_pointers",
        "_sp",
        "_valued",
        "ends",
        "leaving",
        "starts",
        "targets",
    )

    def __init__(self, code: Sequence[Effect], entry: FrameState, unit: int) -> None:
        """``unit``: bytes, or indices, of a distance in ``code`` per instruction."""
        self._code = code
        needed = all_registers(entry.machine)
        if not any(entry.value(register) for register in entry.machine.volatile):
            needed = live_registers(code, entry.machine)
        self._machine = entry.machine
        self._sp = entry.machine.sp
        self._pointers: dict[int, bool | None] = {}
        self._needed, self._valued = needed.followed, needed.valued
        self._known: dict[int, Effect | None] = {}
        """The effect of an instruction on a state, if any, by the instruction's identity."""
        size = len(code)
        starts = set(range(0, size, MAX_INSTRUCTIONS))
        jumps: dict[int, int] = {}
        for index, instruction in enumerate(code):
            if type(instruction) in _LEAVING:
                starts.add(index + 1)
                if isinstance(instruction, Jump):
                    jumps[index] = target = index + instruction.distance // unit
                    if 0 <= target < size:
                        starts.add(target)
        starts.discard(size)
        self.starts = sorted(starts)
        """The index of each block's first instruction."""
        self.ends = [*self.starts[1:], size] if size else []
        """The index after each block's last instruction."""
        self.leaving: list[Leaving | None] = []
        """The instruction that ends each block; None if the block falls through."""
        for end in self.ends:
            last = code[end - 1]
            self.leaving.append(last if isinstance(last, Leaving) else None)
        numbers = {start: number for number, start in enumerate(self.starts)}
        self.targets = [
            numbers.get(jumps[end - 1], OUTSIDE) if end - 1 in jumps else None for end in self.ends
        ]
        """The block that each block's jump leads to, or :data:`OUTSIDE`; None without a jump."""
        self._effects: list[tuple[Effect, ...] | None] = [None] * len(self.starts)

    def __len__(self) -> int:
        return len(self.starts)

    def jumps_to_pointer(self, number: int) -> bool | None:
        """Return whether the indirect jump at a block's end goes to a function's address.

        True if it is an argument, or was loaded from a location that no index selects: from a table
        of virtual functions, or a variable. False if it was computed, as the cases of a switch are
        from an index. None if unknown.
        """
        if number not in self._pointers:
            leaving = self.leaving[number]
            self._pointers[number] = (
                self._has_pointer(self.ends[number] - 1, leaving)
                if isinstance(leaving, IndirectJump)
                else None
            )
        return self._pointers[number]

    def _has_pointer(  # noqa: C901, PLR0911 - one branch a kind
        self, index: int, jump: IndirectJump
    ) -> bool | None:
        frame = (self._machine.sp, self._machine.fp)
        if jump.base is not None:
            return jump.base not in frame or None
        register = jump.register
        if register not in self._machine.indices:
            return None  # of an address without a base, or with an index
        for instruction in reversed(self._code[max(0, index - MAX_INSTRUCTIONS) : index]):
            match instruction:
                case Load(registers, _, base, _, write_back) if register in registers:
                    return (base not in frame and not write_back) or None
                case MoveRegister(destination, source) | AddConstant(destination, source, 0):
                    register = source if destination == register else register
                case Jump(_, is_conditional):
                    if not is_conditional:
                        return None
                case Store():
                    pass
                case _:
                    if type(instruction) in _LEAVING:
                        return None
                    if register in _written(instruction):
                        return False
        return index <= MAX_INSTRUCTIONS or None  # since the function's start it is unchanged

    def effects(self, number: int) -> tuple[Effect, ...]:
        """Return the effects of a block, without its last instruction if that leaves it."""
        effects = self._effects[number]
        if effects is None:
            end = self.ends[number] - (self.leaving[number] is not None)
            effects = self._effects[number] = self._between(self.starts[number], end)
        return effects

    def effects_before(self, index: int) -> tuple[int, tuple[Effect, ...]]:
        """Return the block of an instruction, and the effects in it before the instruction."""
        number = bisect_right(self.starts, index) - 1
        return number, self._between(self.starts[number], index)

    def _between(self, start: int, end: int) -> tuple[Effect, ...]:
        known = self._known
        effects: list[Effect] = []
        written: list[int] = []
        for instruction in self._code[start:end]:
            key = id(instruction)
            effect = known[key] if key in known else known.setdefault(key, self._of(instruction))
            if effect is None:
                continue
            if type(effect) is Writes:  # consecutive ones become one
                written += effect.registers
                continue
            if written:
                effects.append(Writes(tuple(written)))
                written.clear()
            effects.append(effect)
        if written:
            effects.append(Writes(tuple(written)))
        return tuple(effects)

    def _of(  # noqa: PLR0911 - one branch a kind
        self, instruction: Effect
    ) -> Effect | None:
        """Return an instruction's effect on the needed registers, or None."""
        needed, valued = self._needed, self._valued
        match instruction:
            case Writes(registers):
                return _writes(tuple(register for register in registers if register in needed))
            case MoveRegister(destination, source):
                if destination not in needed:
                    return None
                if destination in valued or (source in needed and source != self._sp):
                    return instruction  # it may be the caller's value
                return _writes((destination,))
            case (
                AddConstant(destination)
                | SetConstant(destination)
                | InsertConstant(destination)
                | AddRegister(destination)
            ):
                if destination in valued:
                    return instruction
                return _writes((destination,)) if destination in needed else None
            case Load(registers, _, base, _, write_back):
                if needed.isdisjoint(registers) and not (write_back and base in needed):
                    return None
                return instruction
            case Store(_, _, base):
                return instruction if base in needed else None
            case _:
                return instruction


def _written(instruction: Effect) -> tuple[int, ...]:
    """Return the registers that a computation sets."""
    match instruction:
        case Writes(registers):
            return registers
        case (
            AddConstant(destination)
            | SetConstant(destination)
            | InsertConstant(destination)
            | AddRegister(destination)
            | LoadIndexed(destination)
        ):
            return (destination,)
        case _:
            return ()


def _writes(registers: tuple[int, ...]) -> Writes | None:
    return Writes(registers) if registers else None
