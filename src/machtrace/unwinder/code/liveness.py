"""The registers that can lead to a frame at all.

In a long function nearly every instruction computes in registers that concern neither its caller
nor its frame. They are identified first, regardless of the order of instructions, so that data flow
can skip them. A register's value is needed if it may be the return address, if the frame pointer is
computed from it, or if registers are saved in the frame through it. Of callee-saved registers it is
also needed how long they have the caller's value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from machtrace.unwinder.code.calling_convention import Machine
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Effect,
    InsertConstant,
    Load,
    LoadIndexed,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Writes,
)


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
