"""Which registers can lead to a frame at all.

In a long function nearly every instruction computes something in registers that neither its
caller nor its frame has to do with. They are told beforehand, without regard to the order of
instructions, so that following control flow need not look at them. What a register holds is needed
if it may be the return address, if the frame pointer is made of it, or if it leads to where
registers are saved in the frame. Of the registers that calls preserve, it is needed too for how
long they hold what the caller had in them.
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
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Writes,
)


class LiveRegisters(NamedTuple):
    """Registers by DWARF number."""

    followed: frozenset[int]
    """Those of which it matters whether they hold what the caller had in them."""
    valued: frozenset[int]
    """Those of which it matters, too, which address in the frame or which number they hold."""


def all_registers(machine: Machine) -> LiveRegisters:
    """Every register, for code of which nothing is known."""
    everything = frozenset(machine.tracked)
    return LiveRegisters(everything, everything)


def live_registers(code: Iterable[Effect], machine: Machine) -> LiveRegisters:
    """Those that matter in ``code``.

    All, where sp is made of other registers than itself and the frame pointer, or of numbers that
    may not be known: then any register may come to be the only one that leads to the frame.
    """
    search = _Search(machine)
    for instruction in {id(each): each for each in code}.values():
        if not search.sees(instruction):
            return all_registers(machine)
    valued, holding = search.valued(), search.holding()
    unneeded = machine.volatile_set - valued - holding
    return LiveRegisters(frozenset(machine.tracked) - unneeded, valued)


class _Search:
    """What was seen so far; first everything, then what follows from it."""

    def __init__(self, machine: Machine) -> None:
        self._sp, self._fp = machine.sp, machine.fp
        self._return = machine.return_address.register
        self._frame = frozenset({machine.sp, machine.fp})
        self._kept = frozenset({*machine.callee_saved, machine.fp, self._return})
        self._holding: set[int] = set()
        """Registers that the return address may be in."""
        self._frame_made_of: set[int] = set()
        """What the frame pointer is set from."""
        self._made_of: dict[int, set[int]] = {}
        """By register: those that its value is made of somewhere."""
        self._saved: set[int] = set()
        """Registers that are stored by way of sp or the frame pointer."""
        self._bases: dict[int, set[int]] = {}
        """By other register: which preserved ones are stored or loaded by way of it."""

    def sees(self, instruction: Effect) -> bool:
        """Take an instruction into account; False if it takes sp who knows where."""
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
            case Load(registers, _, base):
                if base not in self._frame:
                    self._moved(registers, base)
                return self._sp not in registers
            case Return(register):
                self._holding.add(register)
            case _:
                pass
        return True

    def _moved(self, registers: tuple[int | None, ...], base: int) -> None:
        if base in self._frame:
            self._saved.update(register for register in registers if register is not None)
        elif not self._kept.isdisjoint(registers):
            self._bases.setdefault(base, set()).update(self._kept.intersection(registers))

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
        """Registers whose values something is made of that leads to the frame."""
        into_frame = self._made_of_frame()
        # What is saved by way of sp needs no other: its other stores are of variables.
        bases = {
            base
            for base, registers in self._bases.items()
            if base in into_frame and not registers <= self._saved
        }
        always = {self._sp, self._fp, self._return}
        return self._with_sources(always | self._frame_made_of | bases)

    def holding(self) -> frozenset[int]:
        """Registers that may hold what the caller had in another, or where to return to."""
        copies = {
            source
            for register, sources in self._made_of.items()
            if register in self._kept and register not in self._saved
            for source in sources
            if register in self._made_of.get(source, ())
        }
        return self._with_sources(self._holding | copies)

    def _with_sources(self, registers: set[int]) -> frozenset[int]:
        found = set(registers)
        waiting = list(found)
        while waiting:
            more = self._made_of.get(waiting.pop(), set()) - found
            found |= more
            waiting += more
        return frozenset(found)

    def _made_of_frame(self) -> set[int]:
        """Registers that may hold an address in the frame, other than by way of memory."""
        found = set(self._frame)
        grew = True
        while grew:
            more = {
                register
                for register, sources in self._made_of.items()
                if register not in found and not sources.isdisjoint(found)
            }
            found |= more
            grew = bool(more)
        return found - self._frame
