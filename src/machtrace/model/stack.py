"""What a stack walk yields: addresses, how each was found, and why the walk ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from machtrace.model.address import Avma
from machtrace.model.snapshot import Snapshot, ThreadSnapshot


class FrameTrust(Enum):
    """How an address was found, best first (after Breakpad and Symbolicator)."""

    CONTEXT = "context"
    """The program counter."""
    PREWALKED = "prewalked"
    """Given by another walker: the kernel, a crash report."""
    CFI = "cfi"
    """``__eh_frame`` or ``.eh_frame``."""
    PROLOGUE = "prologue"
    """What the function's instructions up to this one did to the stack."""
    COMPACT = "compact"
    """``__unwind_info``."""
    EXIDX = "exidx"
    """``.ARM.exidx``, the exception tables of 32-bit arm."""
    SIGNAL_FRAME = "signal"
    """What the kernel saved before it called a signal handler."""
    ASYNC = "async"
    """A Swift async context's resume address."""
    FRAME_POINTER = "fp"
    LINK_REGISTER = "lr"
    """The link register of a function of which nothing is known, where it cannot be of an earlier
    call; see :mod:`machtrace.unwinder.walker`."""
    SCAN = "scan"
    """The word on top of the stack, which looks like a return address, where no code is."""


class AddressKind(Enum):
    """What an address on a stack is; it decides where to look it up."""

    PROGRAM_COUNTER = "pc"
    """An instruction that had not run: of the innermost frame, or of one that a signal hit."""
    RETURN_ADDRESS = "return"
    """The instruction after a call."""
    ASYNC_RESUME = "async-resume"
    """Where a suspended Swift function goes on."""
    ADJUSTED = "adjusted"
    """Already moved inside the call by whoever recorded it."""


@dataclass(frozen=True, slots=True)
class Dispute:
    """What another method says a frame's address is, where it claims to know."""

    trust: FrameTrust
    """Its own."""
    address: Avma | None
    """None: that nobody called, or nothing that can be read."""


@dataclass(frozen=True, slots=True)
class FrameAddress:
    """An address on the stack. Never adjusted; see :attr:`lookup`."""

    address: Avma
    trust: FrameTrust
    kind: AddressKind
    disputed_by: tuple[Dispute, ...] = ()
    """Methods that found another caller here, or the same with its frame in another place."""

    @property
    def lookup(self) -> Avma:
        """The address to look up: inside the call, not after it.

        A call that never returns can be its function's last instruction; the
        return address is then in the next function.
        """
        if self.kind is AddressKind.RETURN_ADDRESS:
            return Avma(self.address - 1)
        return self.address


class StopReason(Enum):
    """Why a walk ended."""

    ROOT = "root"
    """The outermost frame was reached; the stack is whole."""
    UNREADABLE = "unreadable"
    """The next frame is in memory that was not captured, or is none."""
    NO_PROGRESS = "no-progress"
    """The next frame would be this one or an earlier one again."""
    MISALIGNED = "misaligned"
    """The next frame's place is not a multiple of the pointer size."""
    NO_RULE = "no-rule"
    """Nothing says how to go on from here."""
    DEPTH_LIMIT = "depth-limit"
    """More frames than a stack that a program made could have; see
    :mod:`machtrace.unwinder.walker`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why, and where."""

    reason: StopReason
    at: Avma | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return self.reason is StopReason.ROOT


_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Gap:
    """Frames in the middle of a deep stack that were walked and counted, and not kept."""

    after: int
    """How many kept frames come before it, the innermost first."""
    count: int
    """How many frames it stands for."""

    def __post_init__(self) -> None:
        if self.after < 0 or self.count < 1:
            msg = f"no gap: {self.count} frames after {self.after}"
            raise ValueError(msg)


def stretches(kept: Sequence[_Item], gap: Gap | None) -> Iterator[tuple[int, Sequence[_Item]]]:
    """What was kept, in one piece or, where there is a gap, in two: before and after it.

    With each piece goes the number of its first frame in the whole stack.
    """
    if gap is None:
        yield 0, kept
    else:
        yield 0, kept[: gap.after]
        yield gap.after + gap.count, kept[gap.after :]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressChain:
    """Frames that called one another, innermost first."""

    addresses: tuple[FrameAddress, ...]
    """Those that were kept: all of them where there is no gap."""
    stop: Stop
    gap: Gap | None = None

    @property
    def depth(self) -> int:
        """How many frames there are, kept or not."""
        return len(self.addresses) + (0 if self.gap is None else self.gap.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk(AddressChain):
    """What walking one stack found."""

    physical_remainder: AddressChain | None = None
    """Below the first Swift async frame :attr:`addresses` follows the continuations, which is
    what the program means; these are the machine frames that happened to run it. None where there
    is no async frame: then :attr:`addresses` are all machine frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtrace(Walk):
    """The walk of one thread of a snapshot."""

    thread: ThreadSnapshot = field(repr=False)
    snapshot: Snapshot = field(repr=False, compare=False)
    """Where the thread and its images are from; names are looked up through it."""
