"""What a capture yields: the call stacks of one process, and what they refer to."""

from __future__ import annotations

from dataclasses import dataclass

from machtrace.model.explanation import StackExplanation
from machtrace.model.image import ImageList
from machtrace.model.snapshot import Problem, ProcessInfo
from machtrace.model.symbol import CallStack


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The call stacks of one process at one time."""

    process: ProcessInfo
    images: ImageList
    stacks: tuple[CallStack, ...]
    """One a thread, in the kernel's order."""
    explanations: tuple[StackExplanation, ...] = ()
    """One a stack, where they were asked for; else none at all."""
    problems: tuple[Problem, ...] = ()
    """What is missing, and why."""
