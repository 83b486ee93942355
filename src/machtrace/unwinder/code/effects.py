"""What a machine instruction does to the stack, to registers and to the program counter.

Only that: an instruction that merely computes says which registers it writes. Registers are
DWARF numbers of the architecture.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Writes:
    """Puts values that do not matter into ``registers``, and goes on."""

    registers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AddConstant:
    """``destination = source + amount``, of 64 bits; a move between sp and a register too."""

    destination: int
    source: int
    amount: int


@dataclass(frozen=True, slots=True)
class AddRegister:
    """``destination = source + sign * (register << shift)``, of 64 bits."""

    destination: int
    source: int
    register: int
    shift: int
    sign: int


@dataclass(frozen=True, slots=True)
class MoveRegister:
    """``destination = source``, of 64 bits."""

    destination: int
    source: int


@dataclass(frozen=True, slots=True)
class SetConstant:
    """``destination = value``."""

    destination: int
    value: int


@dataclass(frozen=True, slots=True)
class InsertConstant:
    """Replaces the 16 bits of ``destination`` above ``shift``."""

    destination: int
    value: int
    shift: int


@dataclass(frozen=True, slots=True)
class Store:
    """Writes ``registers`` side by side, ``size`` bytes of each, at ``base + offset``.

    A register of None is the zero register, or a number. Afterwards ``write_back`` is added to
    the base.
    """

    registers: tuple[int | None, ...]
    size: int
    base: int
    offset: int
    write_back: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """Reads ``registers`` as :class:`Store` writes them."""

    registers: tuple[int | None, ...]
    size: int
    base: int
    offset: int
    write_back: int = 0


@dataclass(frozen=True, slots=True)
class Jump:
    """Goes ``distance`` bytes on from itself, or not if it ``is_conditional``."""

    distance: int
    is_conditional: bool


@dataclass(frozen=True, slots=True)
class IndirectJump:
    """Goes where ``register`` says: into a switch's table, or to another function for good.

    Or where the word at ``offset`` from what is in ``base`` says; ``register`` holds nothing then.
    """

    register: int
    base: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """Calls what is ``distance`` bytes on from itself; None: what a register says."""

    distance: int | None


@dataclass(frozen=True, slots=True)
class Return:
    """Goes back to the address in ``register``; ``pops`` bytes of arguments leave the stack too."""

    register: int
    pops: int = 0


@dataclass(frozen=True, slots=True)
class Trap:
    """Does not go on: a breakpoint that ends the program, or no instruction at all."""


Effect = (
    Writes
    | AddConstant
    | AddRegister
    | MoveRegister
    | SetConstant
    | InsertConstant
    | Store
    | Load
    | Jump
    | IndirectJump
    | Call
    | Return
    | Trap
)

NOTHING = Writes()
TRAP = Trap()
