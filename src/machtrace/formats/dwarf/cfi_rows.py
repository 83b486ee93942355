"""Rows of the call-frame table, as values (DWARF 5, section 6.4.1)."""

from __future__ import annotations

from machtrace.frozen import dataclass
from machtrace.model.address import Svma

# --- the recovery of a register ---


@dataclass(frozen=True, slots=True)
class Undefined:
    """Not recoverable."""


@dataclass(frozen=True, slots=True)
class SameValue:
    """Not changed by this function."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Saved ``offset`` bytes from the CFA."""

    offset: int


@dataclass(frozen=True, slots=True)
class ValueOffset:
    """Equal to the CFA plus ``offset``."""

    offset: int


@dataclass(frozen=True, slots=True)
class InOtherRegister:
    """Saved in another register."""

    register: int


@dataclass(frozen=True, slots=True)
class Expression:
    """Saved at the address that an expression computes from a stack that holds the CFA."""

    expression: bytes


@dataclass(frozen=True, slots=True)
class ValueExpression:
    """The value that an expression computes from a stack that holds the CFA."""

    expression: bytes


RegisterRule = (
    Undefined | SameValue | Offset | ValueOffset | InOtherRegister | Expression | ValueExpression
)

# --- the CFA ---


@dataclass(frozen=True, slots=True)
class CfaRegister:
    """The value of a register plus ``offset`` bytes."""

    register: int
    offset: int


@dataclass(frozen=True, slots=True)
class CfaExpression:
    """The value of an expression."""

    expression: bytes


CfaRule = CfaRegister | CfaExpression


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFrameRow:
    """One row of the table: the recoveries of the caller's registers in one range of addresses."""

    start: Svma
    end: Svma
    """The first address after the range."""
    cfa: CfaRule
    registers: tuple[tuple[int, RegisterRule], ...]
    """By number; absent ones are as in the ABI."""
    return_column: int
    """The number of the register that holds the return address."""
    is_signal_frame: bool
    ra_signed: bool
    """Whether the return address is signed here (arm64, ``DW_CFA_AARCH64_negate_ra_state``)."""

    @property
    def return_address(self) -> RegisterRule | None:
        """The recovery of :attr:`return_column`."""
        return dict(self.registers).get(self.return_column)
