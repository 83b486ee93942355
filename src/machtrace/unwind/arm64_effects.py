"""What a machine instruction does to the stack, to registers and to the program counter.

Only that: an instruction that merely computes says which registers it writes. Registers are
DWARF numbers: 0 to 30 general, 31 sp, 64 and up vector. The zero register is none.
"""

from __future__ import annotations

from dataclasses import dataclass

SP = 31
LR = 30
FP = 29
VECTORS = 64
INSTRUCTION_SIZE = 4


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

    A register of None is the zero register. Afterwards ``write_back`` is added to the base.
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
    """Goes where ``register`` says: into a switch's table, or to another function for good."""

    register: int


@dataclass(frozen=True, slots=True)
class Call:
    """Calls what is ``distance`` bytes on from itself; None: what a register says."""

    distance: int | None


@dataclass(frozen=True, slots=True)
class Return:
    """Goes back to the address in ``register``."""

    register: int


@dataclass(frozen=True, slots=True)
class Trap:
    """Does not go on: a breakpoint that ends the program, or no instruction at all."""


Instruction = (
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
LINKING = Writes((LR,))
"""What a call itself does to registers, before its first instruction."""
_WRITES = (*(Writes((number,)) for number in range(31)), NOTHING)
_WRITES_SP = (*_WRITES[:31], Writes((SP,)))
_WRITES_VECTOR = tuple(Writes((VECTORS + number,)) for number in range(32))


def signed(value: int, bits: int) -> int:
    """The two's complement number in the low ``bits`` of ``value``."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def writes(number: int) -> Writes:
    """Of a general register whose 31 is the zero register."""
    return _WRITES[number]


def writes_sp(number: int) -> Writes:
    """Of a general register whose 31 is sp."""
    return _WRITES_SP[number]


def writes_vector(number: int) -> Writes:
    """Of a vector register."""
    return _WRITES_VECTOR[number]
