"""How to step from a frame to its caller, as data.

A rule names no thread and no address, so it can be cached by code address,
compared in tests and printed. :func:`machtrace.unwinder.step.step` is the only
code that executes one. It is the row of DWARF's call-frame table (DWARF 5,
section 6.4.1) for one instruction; compact encodings, instruction analysis and the
frame-pointer convention are all expressed as such rows.

The notation in ``str(rule)`` is framehop's: ``*x`` is the pointer stored at ``x``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from machtrace.errors import FormatError, MemoryReadError
from machtrace.frozen import dataclass
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import AddressKind, FrameTrust

# --- how the canonical frame address is computed ---


@dataclass(frozen=True, slots=True)
class RegisterOffset:
    """The value of a register plus ``offset`` bytes."""

    register: int
    """DWARF number."""
    offset: int


@dataclass(frozen=True, slots=True)
class ExpressionValue:
    """The value that a DWARF expression leaves on its stack."""

    expression: bytes


Cfa = RegisterOffset | ExpressionValue


# --- how a caller's register is recovered ---


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
    """The value of a register plus ``offset``."""

    register: int
    """DWARF number."""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class AtExpression:
    """Saved in memory, at the address an expression computes from a stack that holds the CFA."""

    expression: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Not recoverable; as a return address: the function has no caller."""


Recovery = AtCfa | CfaPlus | InRegister | AtExpression | ExpressionValue | Lost
"""A register without a recovery is unchanged if the ABI preserves it, else lost."""


@dataclass(frozen=True, slots=True)
class AsyncContext:
    """The location of a Swift async function's context while its frame record lacks it."""

    location: InRegister | AtCfa
    entered: int | None
    """Bytes from the function's start, where only its prologue has run: the register may then hold
    the context of a callee that returned, whose continuation starts there. None at the function's
    end."""


@dataclass(frozen=True, slots=True)
class UnwindRule:
    """How to recover the caller's registers at one instruction."""

    cfa: Cfa
    return_address: Recovery
    registers: tuple[tuple[int, Recovery], ...] = ()
    """By DWARF number; sp, if absent, is the CFA."""
    is_signal_frame: bool = False
    """Whether the "caller" was interrupted by a signal: its address is a program counter, and all
    its registers are recovered, not only those that calls preserve."""
    async_context: AsyncContext | None = None
    """The context of an async function interrupted in its prologue or epilogue."""

    def __str__(self) -> str:
        return describe(self, {})

    @property
    def caller_kind(self) -> AddressKind:
        """The kind of the recovered address."""
        if self.is_signal_frame:
            return AddressKind.PROGRAM_COUNTER
        return AddressKind.RETURN_ADDRESS


def frame_pointer_rule(arch: Arch) -> UnwindRule:
    """Return ``(pc, sp, fp) = (*(fp + p), fp + 2p, *fp)``, p being the size of a pointer."""
    pointer, fp = arch.pointer_size, arch.registers.fp
    return UnwindRule(
        RegisterOffset(fp, 2 * pointer), AtCfa(-pointer), ((fp, AtCfa(-2 * pointer)),)
    )


def link_register_rule(arch: Arch, stack_size: int = 0) -> UnwindRule:
    """Return ``(pc, sp) = (lr, sp + stack_size)``: the return address is still in its register."""
    numbers = arch.registers
    if numbers.lr is None:
        msg = f"{arch.value} has no link register"
        raise ValueError(msg)
    return UnwindRule(RegisterOffset(numbers.sp, stack_size), InRegister(numbers.lr))


class Claims(Enum):
    """The instructions at which a source's rules are exact; elsewhere they are a guess."""

    EVERYWHERE = "everywhere"
    """Every instruction that it has a rule for."""
    AT_CALLS = "at calls"
    """Calls in progress: neither prologues nor epilogues."""

    def hold(self, *, interrupted: bool) -> bool:
        """Return whether they are exact in a frame; see :meth:`RuleSource.rule_for`."""
        return self is Claims.EVERYWHERE or not interrupted


class RuleSource(Protocol):
    """Unwind information of one kind, for one image."""

    @property
    def trust(self) -> FrameTrust:
        """The trust in addresses recovered by these rules."""
        ...

    @property
    def claims(self) -> Claims:
        """The instructions at which its rules are exact."""
        ...

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """Return the rule at ``lookup``; None if this source has none.

        ``interrupted`` is true where the instruction at ``lookup`` had not run: in the innermost
        frame, and above a signal's. Elsewhere ``lookup`` is inside a call instruction, and the
        function has set up its frame.

        Raises:
            FormatError: the unwind information is malformed here; the caller queries the next
                source.
            MemoryReadError: it was not captured.
        """
        ...


FunctionAt = Callable[[Svma], tuple[Svma, Svma] | None]
"""Returns the (start, end) of the function that holds an address; None outside of functions."""


@runtime_checkable
class HasFunctions(Protocol):
    """A rule source that knows function bounds."""

    def function_at(self, address: Svma, /) -> tuple[Svma, Svma] | None:
        """See :data:`FunctionAt`."""
        ...


@runtime_checkable
class KnowsScratchRegisters(Protocol):
    """A rule source that knows which caller-saved registers code leaves alone."""

    def unchanged_at(self, lookup: Svma, /, *, interrupted: bool) -> tuple[int, ...]:
        """Return the caller-saved registers that are as at the entry of the function there.

        See :meth:`RuleSource.rule_for` for ``interrupted``. Empty if nothing is known.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        ...


class CallAnalysis(HasFunctions, KnowsScratchRegisters, Protocol):
    """Instruction analysis that has rules for calls."""

    def rule_at_call(self, lookup: Svma, /) -> UnwindRule | None:
        """Return the rule while the call that holds ``lookup`` is in progress; None if unknown.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        ...


class CallSiteRules:
    """Instruction analysis of calls that no table describes. A :class:`RuleSource`.

    Most of these are in assembly without a frame pointer. On arm64 they are also in code whose
    return address is in another register while it calls outlined code: its unwind information is
    that of a leaf function.
    """

    __slots__ = ("_analysis", "function_at", "unchanged_at")

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(self, analysis: CallAnalysis) -> None:
        """``analysis``: of the image's code."""
        self._analysis = analysis
        self.function_at = analysis.function_at
        self.unchanged_at = analysis.unchanged_at

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`."""
        return None if interrupted else self._analysis.rule_at_call(lookup)


class Objection(NamedTuple):
    """A rule of the code that contradicts a table's."""

    rule: UnwindRule
    """The code's own."""
    is_later: bool
    """Whether the code confirms the table at the function's start, then moves sp or makes another
    frame record before the call, or whether the call is in the prologue, as those that probe the
    stack are: the table is not wrong, it does not describe that."""


class TableCheck(Protocol):
    """Compares the rules that tables have for calls with the code."""

    @property
    def trust(self) -> FrameTrust:
        """The trust in addresses recovered by the code's rules."""
        ...

    def objection(self, lookup: Svma, rule: UnwindRule, /) -> Objection | None:
        """Return the code's objection to ``rule``, a table's for the call that holds ``lookup``.

        None if the code confirms ``rule``, or is inconclusive. Raises nothing.
        """
        ...

    def rule_at(self, lookup: Svma, /) -> UnwindRule | None:
        """Return the code's rule for the call that holds ``lookup``; None if unknown.

        Raises nothing.
        """
        ...

    def origin(self, lookup: Svma, /) -> str:
        """Describe the function whose code holds ``lookup``."""
        ...


def describe(rule: UnwindRule, names: Mapping[int, str]) -> str:
    """Return ``rule`` on one line; ``names`` has register names by DWARF number."""
    parts = [f"cfa = {_text(rule.cfa, names)}", f"pc = {_text(rule.return_address, names)}"]
    parts += [
        f"{_name(n, names)} = {_text(recovery, names)}"
        for n, recovery in rule.registers
        if recovery != InRegister(n)  # it is unchanged, though calls need not preserve it
    ]
    if rule.async_context is not None:
        parts.append(f"async context = {_text(rule.async_context.location, names)}")
    return ", ".join(parts)


def _name(number: int, names: Mapping[int, str]) -> str:
    return names.get(number) or f"r{number}"


def _plus(base: str, offset: int) -> str:
    return base if not offset else f"{base} {'+' if offset > 0 else '-'} {abs(offset)}"


def _text(recovery: Cfa | Recovery, names: Mapping[int, str]) -> str:
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
    """Return what ``build`` returns; None if its tables are malformed or were not captured."""
    try:
        return build()
    except (FormatError, MemoryReadError):
        return None
