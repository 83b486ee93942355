"""The call stacks of one process, and optionally how each frame's caller was found.

Explanations are for debugging unwinders, unwind tables and wrong stacks. Rules are in framehop's
notation: ``*x`` is the pointer stored at ``x``, ``cfa`` the canonical frame address.
"""

from __future__ import annotations

from dataclasses import replace

from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.image import ImageList
from machtrace.model.snapshot import LinuxFacts, Problem, ProcessInfo, ThreadInfo
from machtrace.model.stack import FrameAddress, FrameTrust, Stop
from machtrace.model.symbol import CallStack, Frame, unique_stacks
from machtrace.model.text import Document, counted

_LISTED = 8
"""Threads without Python functions that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRule:
    """An unwind rule and its result for a frame."""

    rule: str
    cfa: Avma | None
    """None if a register or memory that the rule needs is unknown."""
    return_address_at: Avma | None
    """The return address's location in memory; None if it is in a register or unknown."""
    caller: Frame | Stop


@dataclass(frozen=True, slots=True)
class BrokenInformation:
    """Unwind information that is malformed or was not captured."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodAnswer:
    """The result of one unwind method for a frame."""

    method: FrameTrust
    claims: bool
    """Whether the method claims to be exact at this pc. Compact unwind does at calls, not in
    prologues; a frame pointer is a convention, and a link register is valid until it is used."""
    origin: str
    """The source in the image: an encoding, an FDE, code. Empty if the method is all."""
    outcome: FollowedRule | BrokenInformation | None
    """None: the method has no information here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameExplanation:
    """How the caller of a frame was found."""

    frame: FrameAddress
    chosen: MethodAnswer
    reason: str
    """Why that method was chosen."""
    others: tuple[MethodAnswer, ...]
    """In the order of precedence; conventions last."""

    def agrees(self, answer: MethodAnswer) -> bool:
        """Return whether ``answer`` has the same caller and the same CFA."""
        mine, its = self.chosen.outcome, answer.outcome
        if not isinstance(mine, FollowedRule) or not isinstance(its, FollowedRule):
            return False
        if isinstance(mine.caller, Frame) and isinstance(its.caller, Frame):
            same = mine.caller.address.address == its.caller.address.address
            return same and mine.cfa == its.cfa
        return mine.caller == its.caller


@dataclass(frozen=True, slots=True, kw_only=True)
class StackExplanation:
    """Explanations of a stack's frames, in their order."""

    frames: tuple[FrameExplanation | None, ...]
    """One per address; None for a Swift continuation, which no rule leads to."""
    physical_remainder: tuple[FrameExplanation | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture(Document):
    """The call stacks of one process at one time."""

    process: ProcessInfo
    images: ImageList
    stacks: tuple[CallStack, ...]
    """One per thread, in the kernel's order."""
    explanations: tuple[StackExplanation, ...] = ()
    """One per stack if requested, else none."""
    problems: tuple[Problem, ...] = ()
    """Parts that are missing, and why."""
    linux: LinuxFacts | None = None
    """Facts of a Linux process."""
    without_python: tuple[ThreadInfo, ...] = ()
    """If only Python functions were requested: the threads that run none, and have no stack."""

    @property
    def is_python(self) -> bool:
        """Whether the stacks are of Python functions alone."""
        frames = (frame for stack in self.stacks for frame in stack.frames)
        return bool(self.without_python) or getattr(next(frames, None), "is_python", False)

    @property
    def heading(self) -> str:
        """The line above the stacks: the process, and how much was captured of it."""
        count = len(self.stacks) + sum(len(stack.others) for stack in self.stacks)
        parts = [f"{self.process}", counted(count, "thread")]
        if not self.is_python:
            parts.append(counted(len(self.images), "image"))
        if count > len(self.stacks):
            parts.append(counted(len(self.stacks), "distinct stack"))
        parts += [
            f"{stack.cause.name} in thread {stack.thread.index}"
            for stack in self.stacks
            if stack.thread.crashed and stack.cause is not None and stack.cause.is_shown
        ]
        return "  ".join(parts)

    @property
    def unique(self) -> Capture:
        """The capture with each distinct stack once; see :func:`unique_stacks`."""
        stacks = tuple(unique_stacks(self.stacks))
        explanations = dict(
            zip((stack.thread.id for stack in self.stacks), self.explanations, strict=False)
        )
        return replace(
            self,
            stacks=stacks,
            explanations=tuple(
                explanations[stack.thread.id] for stack in stacks if stack.thread.id in explanations
            ),
        )

    @property
    def of_each_thread(self) -> Capture:
        """The capture with a stack for each thread, without explanations; itself if it has them.

        Threads that were merged with another one have its frames, and no registers.
        """
        if not any(stack.others for stack in self.stacks):
            return self
        stacks = [
            one
            for stack in self.stacks
            for one in (
                replace(stack, others=()),
                *(
                    replace(stack, thread=other, others=(), registers=(), stopped_for_ns=None)
                    for other in stack.others
                ),
            )
        ]
        stacks.sort(key=lambda stack: stack.thread.index)
        return replace(self, stacks=tuple(stacks), explanations=())

    @property
    def native_lines(self) -> tuple[str, ...]:
        """The line about :attr:`without_python`, if there are any."""
        if not self.without_python:
            return ()
        labels = [thread.label for thread in self.without_python[:_LISTED]]
        more = len(self.without_python) - len(labels)
        listed = ", ".join(labels) + (f" and {more} more" if more else "")
        return (
            f"{counted(len(self.without_python), 'thread')} without Python functions: {listed}",
        )

    def __str__(self) -> str:
        """Return what ``machtrace backtrace`` prints, without explanations."""
        return "\n\n".join((self.heading, *map(str, self.stacks), *self.native_lines))

    def __repr__(self) -> str:
        return f"<Capture of {self.heading.replace('  ', ', ')}>"
