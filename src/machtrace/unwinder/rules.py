"""How to step from a frame to its caller, as data.

A rule names no thread and no address, so it can be cached by code address,
compared in tests and printed. :func:`machtrace.unwinder.step.step` is the only
code that executes one. It is the row of DWARF's call-frame table (DWARF 5,
section 6.4.1) for one instruction; compact encodings, prologue analysis and the
frame-pointer convention all say what they know in its terms.

The notation in ``str(rule)`` is framehop's: ``*x`` is the pointer stored at ``x``.

Making the rule sources of an image, whatever state its tables are in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from machtrace.errors import FormatError, MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import AddressKind, FrameTrust

# --- where the canonical frame address is ---


@dataclass(frozen=True, slots=True)
class RegisterOffset:
    """The value of a register plus ``offset`` bytes."""

    register: int
    """DWARF number."""
    offset: int


@dataclass(frozen=True, slots=True)
class ExpressionValue:
    """What a DWARF expression leaves on its stack."""

    expression: bytes


Cfa = RegisterOffset | ExpressionValue


# --- where a caller's register is ---


@dataclass(frozen=True, slots=True)
class AtCfa:
    """Saved in memory, ``offset`` bytes from the CFA: ``*(cfa + offset)``."""

    offset: int


@dataclass(frozen=True, slots=True)
class CfaPlus:
    """Equal to ``cfa + offset``."""

    offset: int


@dataclass(frozen=True, slots=True)
class InRegister:
    """Kept in a register, ``offset`` bytes added."""

    register: int
    """DWARF number."""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class AtExpression:
    """Saved in memory, at the address that an expression gives; it starts with the CFA pushed."""

    expression: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Not recoverable. For the return address: nobody called this function."""


Recovery = AtCfa | CfaPlus | InRegister | AtExpression | ExpressionValue | Lost
"""A register without a recovery keeps its value if the ABI preserves it, else is lost."""


@dataclass(frozen=True, slots=True)
class AsyncContext:
    """Where the context of a Swift async function is, while its frame has no record of it."""

    place: InRegister | AtCfa
    entered: int | None
    """Bytes from the function's start to here, where nothing but its prologue has run: what is in
    the register may then be the context of a callee that returned, whose continuation starts
    there. None at the function's end."""


@dataclass(frozen=True, slots=True)
class UnwindRule:
    """How to get the caller's registers at one instruction."""

    cfa: Cfa
    return_address: Recovery
    registers: tuple[tuple[int, Recovery], ...] = ()
    """By DWARF number; sp, if not named, is the CFA."""
    is_signal_frame: bool = False
    """The "caller" was interrupted here, not called from: its address is a program counter, and
    all its registers are recovered, not only those that calls preserve."""
    async_context: AsyncContext | None = None
    """Where an async function was interrupted at its beginning or end."""

    def __str__(self) -> str:
        return describe(self, {})

    @property
    def caller_kind(self) -> AddressKind:
        """What the address it recovers is."""
        if self.is_signal_frame:
            return AddressKind.PROGRAM_COUNTER
        return AddressKind.RETURN_ADDRESS


def frame_pointer_rule(arch: Arch) -> UnwindRule:
    """``(pc, sp, fp) = (*(fp + p), fp + 2p, *fp)``, p being the size of a pointer."""
    pointer, fp = arch.pointer_size, arch.registers.fp
    return UnwindRule(
        RegisterOffset(fp, 2 * pointer), AtCfa(-pointer), ((fp, AtCfa(-2 * pointer)),)
    )


def link_register_rule(arch: Arch, stack_size: int = 0) -> UnwindRule:
    """``(pc, sp) = (lr, sp + stack_size)``: the return address is still in its register."""
    numbers = arch.registers
    if numbers.lr is None:
        msg = f"{arch.value} has no link register"
        raise ValueError(msg)
    return UnwindRule(RegisterOffset(numbers.sp, stack_size), InRegister(numbers.lr))


class Claims(Enum):
    """Where a source's rules are meant to be right; elsewhere they are a convention, or a guess."""

    EVERYWHERE = "everywhere"
    """At every instruction that it has a rule for."""
    AT_CALLS = "at calls"
    """While a call is in progress: neither in prologues nor in epilogues."""

    def hold(self, *, interrupted: bool) -> bool:
        """Whether they hold in a frame; see :meth:`RuleSource.rule_for` for ``interrupted``."""
        return self is Claims.EVERYWHERE or not interrupted


class RuleSource(Protocol):
    """Unwind information of one kind, for one image."""

    @property
    def trust(self) -> FrameTrust:
        """How far addresses found by these rules can be trusted."""
        ...

    @property
    def claims(self) -> Claims:
        """Where its rules are meant to be right."""
        ...

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """The rule at ``lookup``; None where this source has nothing to say.

        ``interrupted`` is true where the instruction at ``lookup`` had not run: in the innermost
        frame, and above a signal's. Elsewhere ``lookup`` is inside a call instruction, and the
        function had long set up its frame.

        Raises:
            FormatError: the unwind information is malformed here; the caller asks the next source.
        """
        ...


def describe(rule: UnwindRule, names: Mapping[int, str]) -> str:
    """``rule`` on one line; ``names`` gives registers by DWARF number."""
    parts = [f"cfa = {_place(rule.cfa, names)}", f"pc = {_place(rule.return_address, names)}"]
    parts += [
        f"{_name(n, names)} = {_place(recovery, names)}"
        for n, recovery in rule.registers
        if recovery != InRegister(n)  # it is unchanged, though calls need not preserve it
    ]
    if rule.async_context is not None:
        parts.append(f"async context = {_place(rule.async_context.place, names)}")
    return ", ".join(parts)


def _name(number: int, names: Mapping[int, str]) -> str:
    return names.get(number) or f"r{number}"


def _plus(base: str, offset: int) -> str:
    return base if not offset else f"{base} {'+' if offset > 0 else '-'} {abs(offset)}"


def _place(recovery: Cfa | Recovery, names: Mapping[int, str]) -> str:
    match recovery:
        case RegisterOffset(number, offset) | InRegister(number, offset):
            return _plus(_name(number, names), offset)
        case AtCfa(offset):
            return f"*({_plus('cfa', offset)})"
        case CfaPlus(offset):
            return _plus("cfa", offset)
        case AtExpression(expression):
            return f"*expression({expression.hex()})"
        case ExpressionValue(expression):
            return f"expression({expression.hex()})"
        case Lost():
            return "lost"


_Source = TypeVar("_Source", bound=RuleSource)


def source_or_none(build: Callable[[], _Source | None]) -> _Source | None:
    """What ``build`` makes; None where its tables are malformed, or were not captured."""
    try:
        return build()
    except (FormatError, MemoryReadError):
        return None
