"""The frame-pointer chain alone, for code that nothing describes and for comparison."""

from __future__ import annotations

from dataclasses import dataclass

from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import UnwindRule, frame_pointer_rule


@dataclass(frozen=True, slots=True)
class FramePointerRules:
    """One rule, everywhere. The last resort: it skips the caller of a leaf."""

    arch: Arch
    trust: FrameTrust = FrameTrust.FRAME_POINTER

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule:
        """Always the same; see :meth:`RuleSource.rule_for`."""
        del lookup, interrupted
        return frame_pointer_rule(self.arch)
