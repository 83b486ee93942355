"""The stack that a run begins on: real functions that were run up to a call, one on another."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from machtrace.model.address import Avma
from tests.support.published.entries import Entries
from tests.support.published.execution import DIVERTED, Execution
from tests.support.published.machine import OUTSIDE, SCRATCH, STACK, Machine, Values
from tests.support.published.true_calls import Call, TrueCalls

_RECORD = STACK.stop - 0x20
"""The last frame record, of zeros."""
_TOP = STACK.stop - 0x140
"""Above it is what functions store into the stack's part for their arguments."""
_MAX_DEPTH = 4
_ATTEMPTS = 24
_DIVERTED = 0.4
_LOWEST = STACK.start + 0x40000
"""Room for the run."""


@dataclass(frozen=True, slots=True)
class Callers:
    """The state at the entry of a called function."""

    registers: tuple[int, ...]
    stack: bytes
    """From the stack pointer to the stack's end."""
    calls: TrueCalls

    @property
    def sp(self) -> int:
        """The stack pointer at the entry."""
        return STACK.stop - len(self.stack)


def create_callers(
    machine: Machine, execution: Execution, entries: Entries, random: Random
) -> Callers:
    """Run random functions up to a call each, and return the state at the last one's target."""
    image, cpu = machine.image, machine.cpu
    values = Values(image)
    machine.restore()
    cpu.enter(_TOP, OUTSIDE)
    cpu.write(image.arch.registers.fp, _RECORD)
    machine.uc.mem_write(_TOP, bytes(STACK.stop - _TOP))
    machine.dirty.update((_TOP >> 12, (_TOP - 8) >> 12))
    if image.is_go:
        cpu.write(28 if image.arch.is_arm64 else 14, SCRATCH.start)  # the goroutine
    outermost = cpu.raw_registers()
    sp_index = 1 + cpu.numbers.index(image.arch.registers.sp)
    registers = list(outermost)
    registers[sp_index] = _TOP
    calls = TrueCalls([Call(OUTSIDE, _TOP, tuple(registers))])
    calls.save(_RECORD, 0)
    calls.save(_RECORD + 8, 0)
    if not image.arch.is_arm64:
        calls.save(_TOP - 8, OUTSIDE)
    callers = Callers(outermost, _stack(machine), calls)
    depth = random.randint(0, _MAX_DEPTH)
    for _ in range(_ATTEMPTS):
        if len(callers.calls.calls) > depth:
            break
        machine.restore()
        place(machine, callers, values, random)
        entry = entries.pick(random, Counter())
        ended = execution.run(entry, callers.calls.copy(), random, diverts=_DIVERTED)
        if ended == DIVERTED and cpu.sp > _LOWEST:
            callers = Callers(cpu.raw_registers(), _stack(machine), execution.calls.copy())
    return callers


def place(machine: Machine, callers: Callers, values: Values, random: Random) -> None:
    """Set stack and registers for a function that ``callers`` call; others are random."""
    cpu = machine.cpu
    sp = callers.sp
    machine.uc.mem_write(sp, callers.stack)
    machine.dirty.update(range(sp >> 12, STACK.stop >> 12))
    raw = list(callers.registers)
    preserved = {*machine.image.arch.registers.callee_saved, 30}
    for index, number in enumerate(cpu.numbers, 1):
        if number not in preserved and number < 32:
            raw[index] = values.draw(random)
    cpu.write_raw(raw)


def _stack(machine: Machine) -> bytes:
    sp = machine.cpu.sp
    return machine.read(Avma(sp), STACK.stop - sp)
