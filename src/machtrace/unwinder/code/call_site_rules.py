"""Rules for calls, from the instructions of the function that called."""

from __future__ import annotations

from typing import Protocol

from machtrace.model.address import Svma
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import Claims, UnwindRule


class CallAnalysis(Protocol):
    """Instruction analysis that has rules for calls."""

    def function_at(self, address: Svma, /) -> tuple[Svma, Svma] | None:
        """The (start, end) of the function that holds ``address``."""
        ...

    def rule_at_call(self, lookup: Svma, /) -> UnwindRule | None:
        """The rule while the call that holds ``lookup`` is in progress; None if it is unknown.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        ...


class CallSiteRules:
    """Instruction analysis of calls, for when no table knows. A :class:`RuleSource`.

    Most of it is assembly that has no frame pointer, or something between it and its caller's;
    on arm64 also code whose return address waits in another register, while it calls what was cut
    out of it: its unwind information is that of a function that calls nobody.
    """

    __slots__ = ("_analysis", "function_at")

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(self, analysis: CallAnalysis) -> None:
        """``analysis`` is of the image's code."""
        self._analysis = analysis
        self.function_at = analysis.function_at

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`.

        Raises:
            MemoryReadError: the function's instructions were not captured.
        """
        return None if interrupted else self._analysis.rule_at_call(lookup)
