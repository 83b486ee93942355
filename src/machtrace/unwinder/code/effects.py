"""The effects of a machine instruction on the stack, on registers and on the program counter.

Nothing else is modelled: an instruction that computes is a list of the registers it writes.
Registers are DWARF numbers of the architecture.
"""

from __future__ import annotations

from machtrace.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Writes:
    """Sets ``registers`` to unknown values."""

    registers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AddConstant:
    """``destination = source + amount``, of 64 bits; also a move between sp and a register."""

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
class StoreIndexed:
    """Writes a register at ``base + index * scale + offset``."""

    register: int
    base: int
    index: int
    scale: int
    offset: int


@dataclass(frozen=True, slots=True)
class LoadIndexed:
    """Reads a register as :class:`StoreIndexed` writes it."""

    register: int
    base: int
    index: int
    scale: int
    offset: int


@dataclass(frozen=True, slots=True)
class Jump:
    """Jumps ``distance`` bytes ahead of itself, if unconditional."""

    distance: int
    is_conditional: bool


@dataclass(frozen=True, slots=True)
class IndirectJump:
    """Jumps to the address in ``register``: into a switch's table, or to another function for good.

    If ``base`` is set, the address is the word at ``base + offset``, and ``register`` is
    meaningless.
    """

    register: int
    base: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """Calls the code ``distance`` bytes ahead of itself; None: an address in a register."""

    distance: int | None


@dataclass(frozen=True, slots=True)
class Return:
    """Returns to the address in ``register``, and pops ``pops`` bytes of arguments."""

    register: int
    pops: int = 0


@dataclass(frozen=True, slots=True)
class Trap:
    """Stops: a breakpoint that ends the program, or an invalid instruction."""


Effect = (
    Writes
    | AddConstant
    | AddRegister
    | MoveRegister
    | SetConstant
    | InsertConstant
    | Store
    | Load
    | StoreIndexed
    | LoadIndexed
    | Jump
    | IndirectJump
    | Call
    | Return
    | Trap
)

NOTHING = Writes()
TRAP = Trap()
