"""Rows of the call-frame table, as values (DWARF 5, section 6.4.1)."""

from __future__ import annotations

from dataclasses import dataclass

from machtrace.model.address import Svma

# --- what a row says of a register ---


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
    """Kept in another register."""

    register: int


@dataclass(frozen=True, slots=True)
class Expression:
    """Saved at the address that an expression gives, which starts with the CFA pushed."""

    expression: bytes


@dataclass(frozen=True, slots=True)
class ValueExpression:
    """What an expression gives, which starts with the CFA pushed."""

    expression: bytes


RegisterRule = (
    Undefined | SameValue | Offset | ValueOffset | InOtherRegister | Expression | ValueExpression
)

# --- where the CFA is ---


@dataclass(frozen=True, slots=True)
class CfaRegister:
    """The value of a register plus ``offset`` bytes."""

    register: int
    offset: int


@dataclass(frozen=True, slots=True)
class CfaExpression:
    """What an expression gives."""

    expression: bytes


CfaRule = CfaRegister | CfaExpression


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFrameRow:
    """One row of the table: how to find the caller's registers in one range of addresses."""

    start: Svma
    end: Svma
    """The first address that it does not hold for."""
    cfa: CfaRule
    registers: tuple[tuple[int, RegisterRule], ...]
    """By number; what is not named is as the ABI has it."""
    return_column: int
    """Number of the register that holds the return address."""
    is_signal_frame: bool
    ra_signed: bool
    """Whether the return address is signed here (arm64, ``DW_CFA_AARCH64_negate_ra_state``)."""

    @property
    def return_address(self) -> RegisterRule | None:
        """What it says of :attr:`return_column`."""
        return dict(self.registers).get(self.return_column)
