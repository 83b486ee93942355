"""Whether a function's code bears out what tables say of a call in it.

Unwind tables can be stale, written by hand or damaged, and nothing in them shows it. The code is
what made the frame, so it is asked too: first what its first instructions do, which is enough for
nearly every function, then all ways from its start to the call.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from machtrace.errors import FormatError, MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.contents import ImageContents
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.code.frame_record import LOOKED_AT, follows_record, record_made
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.code.frame_values import CallerValue, FromCfa
from machtrace.unwinder.code.moved_frame import LOOKED_BACK, may_move_frame
from machtrace.unwinder.rules import AtCfa, InRegister, RegisterOffset, UnwindRule

FIRST_INSTRUCTIONS = 24
"""Of a function, that are looked at alone: ten pairs of registers, and what makes room."""
MOST_CODE = 1 << 11
"""Bytes of the largest function that is analysed to check a table; the first stack is not to wait
for those of interpreters."""
MOST_EXPLAINED = 1 << 16
"""Bytes of the largest function that is analysed where its own rule is wanted: to explain a frame,
or because a table's needs a register that was lost."""
REMEMBERED = 1 << 14
"""Functions whose beginnings are remembered; at the limit all are forgotten."""


class CodeAnalysis(Protocol):
    """Instruction analysis, as far as it can speak of calls."""

    def function_at(self, address: Svma, /) -> tuple[Svma, Svma] | None:
        """The (start, end) of the function that holds ``address``."""
        ...

    def state_behind_start(self, lookup: Svma, count: int, /) -> FrameState | None:
        """The state behind a function's first straight run of instructions, at most ``count``.

        The function is the one that holds ``lookup``; None if ``lookup`` is in that run.
        """
        ...

    def state_in_call(self, lookup: Svma, most: int, /) -> FrameState | None:
        """The state while the call that holds ``lookup`` is in progress.

        None where it is not known, where the function has more than ``most`` bytes, or does not
        leave its caller's frame on every way as it found it.
        """
        ...


class Objection(NamedTuple):
    """What the code says of a call, against a table."""

    rule: UnwindRule
    """The code's own."""
    is_later: bool
    """Whether the code bears the table out at its start and moves sp, or makes another record,
    before the call: then nothing is wrong but that the table does not know of it."""


class CodeCheck:
    """Checks the rules that tables have for calls in an image."""

    __slots__ = ("_analysis", "_arch", "_contents", "_records")

    trust = FrameTrust.PROLOGUE

    def __init__(self, analysis: CodeAnalysis, contents: ImageContents, arch: Arch) -> None:
        """``analysis`` is of ``contents``, an image of ``arch``."""
        self._analysis = analysis
        self._contents = contents
        self._arch = arch
        self._records: dict[Svma, int | None] = {}
        """How many bytes of a function, by its start, are behind it when its record is made."""

    def objection(self, lookup: Svma, rule: UnwindRule) -> Objection | None:
        """What the code says against ``rule``, a table's for the call that holds ``lookup``.

        None where it bears ``rule`` out, or says nothing. Raises nothing.
        """
        try:
            is_borne_out = self._is_borne_out_at_start(lookup, rule)
            if is_borne_out and not self._may_move_on(lookup, rule):
                return None
            state = self._analysis.state_in_call(lookup, MOST_CODE)
        except (FormatError, MemoryReadError):
            return None
        if state is None or verdict(state, rule) is not False:
            return None
        own = state.rule(prefers_memory=True)
        return None if own is None else Objection(own, is_borne_out)

    def _is_borne_out_at_start(self, lookup: Svma, rule: UnwindRule) -> bool:
        if follows_record(rule, self._arch) and self._has_record(lookup):
            return True
        first = self._analysis.state_behind_start(lookup, FIRST_INSTRUCTIONS)
        return first is not None and bool(verdict(first, rule))

    def _may_move_on(self, lookup: Svma, rule: UnwindRule) -> bool:
        """Whether assembly may have moved what ``rule`` counts from, between start and call."""
        bounds = self._analysis.function_at(lookup)
        if bounds is None or bounds[1] - bounds[0] > MOST_CODE:
            return False
        start = bounds[0] + (self._records.get(bounds[0]) or 0)
        start = max(start, lookup - LOOKED_BACK)
        start += (bounds[0] - start) % 4 if self._arch.is_arm64 else 0
        code = self._contents.read_svma(Svma(start), max(0, lookup - start))
        return may_move_frame(code, rule, self._arch)

    def rule_at(self, lookup: Svma) -> UnwindRule | None:
        """The rule of the code itself in the call that holds ``lookup``; None where it is unknown.

        Raises nothing.
        """
        try:
            state = self._analysis.state_in_call(lookup, MOST_EXPLAINED)
        except (FormatError, MemoryReadError):
            return None
        return None if state is None else state.rule(prefers_memory=True)

    def origin(self, lookup: Svma) -> str:
        """Which code that is."""
        return origin_in_code(self._analysis, lookup)

    def _has_record(self, lookup: Svma) -> bool:
        bounds = self._analysis.function_at(lookup)
        if bounds is None:
            return False
        start, end = bounds
        if start not in self._records:
            if len(self._records) >= REMEMBERED:
                self._records.clear()
            code = self._contents.read_svma(start, min(LOOKED_AT, end - start))
            self._records[start] = record_made(code, self._arch)
        behind = self._records[start]
        return behind is not None and lookup - start >= behind


def verdict(state: FrameState, rule: UnwindRule) -> bool | None:
    """Whether ``rule`` finds the caller that ``state`` has; None where one of them does not say."""
    if not isinstance(rule.cfa, RegisterOffset):
        return None
    base, recovery = state.value(rule.cfa.register), rule.return_address
    if not isinstance(base, FromCfa) or base.offset != -rule.cfa.offset:
        return False if isinstance(base, FromCfa | CallerValue) else None
    if isinstance(recovery, AtCfa):
        found = state.slots.get(recovery.offset)
    elif isinstance(recovery, InRegister) and not recovery.offset:
        found = state.value(recovery.register)
    else:
        return None
    if found == state.machine.return_address:
        return True
    return None if state.return_address is None else False


@runtime_checkable
class HasFunctions(Protocol):
    """Something that knows where functions are."""

    def function_at(self, address: Svma, /) -> tuple[Svma, Svma] | None:
        """The (start, end) of the function that holds ``address``."""
        ...


def origin_in_code(analysis: HasFunctions, lookup: Svma) -> str:
    """Which function's code says so, and how far into it that is."""
    bounds = analysis.function_at(lookup)
    if bounds is None:
        return ""
    start, end = bounds
    return f"code of the function at {start:#x}, {lookup - start:#x} of its {end - start:#x} bytes"
