"""What a capture yields: the call stacks of one process, and what they refer to.

Why a stack is what it is: of each frame, how its caller was found, and what else was known.

For people who debug unwinders, unwind tables and stacks that look wrong. The rules are in
framehop's notation: ``*x`` is the pointer stored at ``x``, ``cfa`` the canonical frame address.
"""

from __future__ import annotations

from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.image import ImageList
from machtrace.model.snapshot import Problem, ProcessInfo
from machtrace.model.stack import FrameAddress, FrameTrust, Stop
from machtrace.model.symbol import CallStack, Frame
from machtrace.model.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRule:
    """A rule, and where it leads from this frame."""

    rule: str
    cfa: Avma | None
    """None where a register or memory that it needs is not known."""
    return_address_at: Avma | None
    """Where in memory; None where it is in a register, or not known."""
    caller: Frame | Stop


@dataclass(frozen=True, slots=True)
class BrokenInformation:
    """Unwind information that breaks its own format, or that was not captured."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodAnswer:
    """What one method says of a frame."""

    method: FrameTrust
    claims: bool
    """Whether it claims to be right at this place. Compact unwind does at calls, not in prologues;
    a frame pointer is a convention, and a link register is right until it is used."""
    origin: str
    """What of the image it is from: an encoding, an FDE, code. Empty where there is no more to say
    than the method."""
    outcome: FollowedRule | BrokenInformation | None
    """None: nothing is known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameExplanation:
    """How a frame was left for its caller."""

    frame: FrameAddress
    chosen: MethodAnswer
    reason: str
    """Why that method was chosen, in a few words."""
    others: tuple[MethodAnswer, ...]
    """In the order in which they would have been asked; conventions last."""

    def agrees(self, answer: MethodAnswer) -> bool:
        """Whether ``answer`` leads to the same caller, and has its frame in the same place."""
        mine, its = self.chosen.outcome, answer.outcome
        if not isinstance(mine, FollowedRule) or not isinstance(its, FollowedRule):
            return False
        if isinstance(mine.caller, Frame) and isinstance(its.caller, Frame):
            same = mine.caller.address.address == its.caller.address.address
            return same and mine.cfa == its.cfa
        return mine.caller == its.caller


@dataclass(frozen=True, slots=True, kw_only=True)
class StackExplanation:
    """Of each frame that a walk kept, in its order."""

    frames: tuple[FrameExplanation | None, ...]
    """One for each address; None for a Swift continuation, which no rule leads to."""
    physical_remainder: tuple[FrameExplanation | None, ...] = ()


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

    @property
    def heading(self) -> str:
        """The line above the stacks: the process, and how much was captured of it."""
        threads, images = counted(len(self.stacks), "thread"), counted(len(self.images), "image")
        return f"{self.process}  {threads}  {images}"

    def __str__(self) -> str:
        """Return what ``machtrace backtrace`` prints, without explanations."""
        return "\n\n".join((self.heading, *map(str, self.stacks)))

    def __repr__(self) -> str:
        return f"<Capture of {self.heading.replace('  ', ', ')}>"
