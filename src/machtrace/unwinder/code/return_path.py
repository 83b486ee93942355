"""Rules from the instructions that a function has yet to run before it returns.

Where a function leaves one stack for another (``longjmp``, a switch of coroutines), its past
instructions do not describe the frame it is about to return to, but its future ones do: each
register of that frame is in a register now, or in memory reached from one. The straight path to the
return is followed with values expressed in the registers at its start.

An indirect jump is nearly always a tail call or part of a switch. It is a return only if its target
is the caller's return address: in the link register, popped from the stack, or restored by code
that leaves one stack for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from machtrace.formats.dwarf import operations
from machtrace.frozen import dataclass
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
from machtrace.unwinder.rules import (
    AtCfa,
    AtExpression,
    Cfa,
    ExpressionValue,
    InRegister,
    Lost,
    Recovery,
    RegisterOffset,
    UnwindRule,
)

MAX_PATH_LENGTH = 64
"""Instructions to the return."""
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class _Chain:
    """``register + offset``, or, with more offsets, ``*(… ) + offset`` of that."""

    register: int
    offsets: tuple[int, ...] = (0,)

    def plus(self, amount: int) -> _Chain:
        return _Chain(self.register, (*self.offsets[:-1], self.offsets[-1] + amount))

    @property
    def loaded(self) -> _Chain | None:
        """The value in memory at that address."""
        return _Chain(self.register, (*self.offsets, 0)) if len(self.offsets) < _MAX_DEPTH else None

    @property
    def expression(self) -> bytes:
        """The value as a DWARF expression."""
        first, *others = self.offsets
        loads = b"".join(map(operations.load_plus, others))
        return operations.register_plus(self.register, first) + loads

    @property
    def as_cfa(self) -> Cfa:
        if len(self.offsets) == 1:
            return RegisterOffset(self.register, self.offsets[0])
        return ExpressionValue(self.expression)

    def recovery(self, cfa: _Chain) -> Recovery:
        """Return the recovery of the value in a frame with this CFA."""
        *path, last = self.offsets
        if not path:
            return InRegister(self.register, last)
        if last:
            return ExpressionValue(self.expression)
        if self.register == cfa.register and path[:-1] == list(cfa.offsets[:-1]):
            return AtCfa(path[-1] - cfa.offsets[-1])
        return AtExpression(_Chain(self.register, tuple(path)).expression)


def rule_across_stacks(
    code: Sequence[Effect],
    start: int,
    state: FrameState,
    rule: UnwindRule | None,
    *,
    unit: int = 1,
    has_left: Callable[[], bool] | None = None,
) -> UnwindRule | None:
    """Return ``rule``, or a better one where code leaves one stack for another.

    Args:
        code: instructions of a function.
        start: index of the next one to run.
        state: the state before it.
        rule: the rule of ``state``.
        unit: bytes, or indices, of a distance in ``code`` per instruction.
        has_left: returns :func:`leaves_stack` of the instructions before, if ``code`` lacks them.
    """
    if rule is not None and not loses_registers(rule):
        return rule
    if has_left is None:
        has_left = partial(_leaves_stack_before, code, start, state.machine)
    path = _rule_on_path(code, start, state.machine, unit=unit, has_left=has_left)
    if path is None:
        return rule
    is_same_stack = isinstance(path.cfa, RegisterOffset) and path.cfa.register == state.machine.sp
    return rule if is_same_stack and state.sp_offset is not None else path


def rule_behind_call(
    code: Sequence[Effect], start: int, machine: Machine, *, unit: int = 1
) -> UnwindRule | None:
    """Return the rule of a function during a call, from its path to the return.

    For functions whose past is unknown. Further calls on the path are assumed to return.

    Args:
        code: instructions of a function.
        start: index of the one after the call.
        machine: the architecture's.
        unit: bytes, or indices, of a distance in ``code`` per instruction.
    """
    return _rule_on_path(code, start, machine, unit=unit, passes_calls=True)


def rule_on_path(code: Sequence[Effect], start: int, machine: Machine) -> UnwindRule | None:
    """Return the rule of ``code`` that runs straight to its return without a call.

    Args:
        code: instructions of a function; distances of jumps are in instructions.
        start: index of the next one to run.
        machine: the architecture's.
    """
    return _rule_on_path(code, start, machine, unit=1)


def leaves_stack(code: Iterable[Effect], machine: Machine) -> bool:
    """Return whether instructions set sp to a value that is from neither sp nor fp."""
    frame = (machine.sp, machine.fp)
    for instruction in code:
        match instruction:
            case AddConstant(register, source) | MoveRegister(register, source):
                if register == machine.sp and source not in frame:
                    return True
            case Load(registers):
                if machine.sp in registers:
                    return True
            case LoadIndexed(register) if register == machine.sp:
                return True
            case _:
                pass
    return False


def _leaves_stack_before(code: Sequence[Effect], start: int, machine: Machine) -> bool:
    return leaves_stack(code[:start], machine)


def loses_registers(rule: UnwindRule) -> bool:
    """Return whether callee-saved registers cannot be recovered."""
    return any(isinstance(recovery, Lost) for _, recovery in rule.registers)


def _rule_on_path(
    code: Sequence[Effect],
    start: int,
    machine: Machine,
    *,
    unit: int,
    has_left: Callable[[], bool] = lambda: False,
    passes_calls: bool = False,
) -> UnwindRule | None:
    """Return the rule of ``code`` that runs straight to its return."""
    path = _Path(machine)
    index = start
    for _ in range(MAX_PATH_LENGTH):
        if not 0 <= index < len(code):
            return None
        instruction = code[index]
        if isinstance(instruction, Return):
            return path.rule(instruction)
        if isinstance(instruction, IndirectJump):
            rule = path.rule(instruction)
            is_return = path.returns_by(instruction) or (rule is not None and has_left())
            return rule if is_return else None
        if isinstance(instruction, Trap) or (isinstance(instruction, Call) and not passes_calls):
            return None
        if isinstance(instruction, Jump) and not instruction.is_conditional:
            index += instruction.distance // unit
            continue
        path.follow(instruction)
        index += 1
    return None


class _Path:
    """Values of registers and memory on the path; unknown ones are None."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._values: dict[int, _Chain | None] = {}
        self._stored: dict[_Chain, _Chain | None] = {}

    def _value(self, register: int) -> _Chain | None:
        if register in self._values:
            return self._values[register]
        return _Chain(register) if register < operations.COUNT else None

    def _at(self, address: _Chain | None) -> _Chain | None:
        return None if address is None else self._stored.get(address, address.loaded)

    def follow(self, instruction: Effect) -> None:
        """Apply an instruction's effect."""
        match instruction:
            case Load():
                self._load(instruction)
            case Store():
                self._store(instruction)
            case AddConstant(destination, source, amount):
                value = self._value(source)
                self._values[destination] = None if value is None else value.plus(amount)
            case MoveRegister(destination, source):
                self._values[destination] = self._value(source)
            case Writes(registers):
                self._values |= dict.fromkeys(registers)
            case Call():
                preserved = {*self._machine.callee_saved, self._machine.sp}
                self._values |= dict.fromkeys(set(range(operations.COUNT)) - preserved)
            case LoadIndexed(register):
                self._values[register] = None
            case AddRegister() | SetConstant() | InsertConstant():
                self._values[instruction.destination] = None
            case _:
                pass  # a condition that did not hold

    def _load(self, load: Load) -> None:
        address = self._value(load.base)
        is_whole = load.size >= self._machine.word
        for i, register in enumerate(load.registers):
            if register is None:
                continue
            slot = None if address is None else address.plus(load.offset + i * load.size)
            self._values[register] = self._at(slot) if is_whole else None
        self._write_back(load.base, address, load.write_back)

    def _store(self, store: Store) -> None:
        address = self._value(store.base)
        for i, register in enumerate(store.registers):
            if address is not None:
                stored = None if register is None else self._value(register)
                self._stored[address.plus(store.offset + i * store.size)] = stored
        self._write_back(store.base, address, store.write_back)

    def _write_back(self, base: int, address: _Chain | None, amount: int) -> None:
        if amount:
            self._values[base] = None if address is None else address.plus(amount)

    def returns_by(self, jump: IndirectJump) -> bool:
        """Return whether an indirect jump can only be a return."""
        machine = self._machine
        cfa = self._value(machine.sp)
        if cfa is None:
            return False
        if cfa.register != machine.sp or len(cfa.offsets) > 1:
            return True  # to another stack
        if jump.base is not None:
            return False
        if machine.return_address.register in machine.indices:
            return jump.register == machine.return_address.register
        popped = cfa.plus(-machine.word).loaded
        return popped is not None and self._value(jump.register) == popped

    def rule(self, leaving: Return | IndirectJump) -> UnwindRule | None:
        """Return the rule for the frame that is returned to."""
        machine = self._machine
        cfa = self._value(machine.sp)
        return_address: _Chain | None = None
        if isinstance(leaving, IndirectJump) and leaving.base is not None:
            base = self._value(leaving.base)
            return_address = None if base is None else self._at(base.plus(leaving.offset))
        elif leaving.register in machine.indices:
            return_address = self._value(leaving.register)
        elif isinstance(leaving, Return):
            return_address = self._at(cfa)
            cfa = None if cfa is None else cfa.plus(machine.word + leaving.pops)
        if cfa is None or return_address is None:
            return None
        registers: list[tuple[int, Recovery]] = []
        for register in machine.callee_saved:
            value = self._values.get(register, _Chain(register))
            if value != _Chain(register):
                registers.append((register, Lost() if value is None else value.recovery(cfa)))
        return UnwindRule(cfa.as_cfa, return_address.recovery(cfa), tuple(registers))
