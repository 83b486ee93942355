"""Unwound stacks: addresses, how each was found, and why unwinding stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from enum import Enum
from typing import TypeVar

from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage, ImageList
from machtrace.model.snapshot import Snapshot, ThreadSnapshot
from machtrace.model.text import PLAIN, FrameText, Row, Style, chain_lines, counted, printable


class FrameTrust(Enum):
    """How an address was found (after Breakpad and Symbolicator).

    A frame's trust is that of the rule which was applied to the frame before it. In which order
    rules are queried is stated in :mod:`machtrace.unwinder.sources.of_macho` and ``of_elf``.
    """

    CONTEXT = "context"
    """The program counter."""
    PREWALKED = "prewalked"
    """Unwound by another program: the kernel, a crash report, an interpreter."""
    CFI = "cfi"
    """``__eh_frame`` or ``.eh_frame``."""
    PROLOGUE = "prologue"
    """Analysis of the function's instructions up to this one."""
    COMPACT = "compact"
    """``__unwind_info``."""
    EXIDX = "exidx"
    """``.ARM.exidx``, the exception tables of 32-bit arm."""
    PCSP = "pcsp"
    """Go's own table of frame sizes, in ``.gopclntab``."""
    SIGNAL_FRAME = "signal"
    """Registers that the kernel saved before it called a signal handler."""
    ASYNC = "async"
    """A Swift async context's resume address."""
    FRAME_POINTER = "fp"
    LINK_REGISTER = "lr"
    """The link register of a function without unwind information, if it cannot be stale; see
    :mod:`machtrace.unwinder.walker`."""
    SCAN = "scan"
    """A word on the stack that may be the return address, where nothing else leads to the caller;
    see :mod:`machtrace.unwinder.last_resort`. Frames may be missing before it."""

    @property
    def label(self) -> str:
        """The method's short name in text."""
        return _LABELS.get(self, self.value)


_LABELS = {
    FrameTrust.SIGNAL_FRAME: "signal frame",
    FrameTrust.FRAME_POINTER: "frame pointer",
    FrameTrust.LINK_REGISTER: "link register",
}


class AddressKind(Enum):
    """The meaning of an address on a stack, which decides where to look it up."""

    PROGRAM_COUNTER = "pc"
    """The next instruction: of the innermost frame, or of one interrupted by a signal."""
    RETURN_ADDRESS = "return"
    """The instruction after a call."""
    SIGNAL_TRAMPOLINE = "signal-trampoline"
    """The first instruction of the code that a Linux signal handler returns to: nothing called."""
    ASYNC_RESUME = "async-resume"
    """The address at which a suspended Swift function resumes."""
    ADJUSTED = "adjusted"
    """A return address that its recorder already moved into the call."""


@dataclass(frozen=True, slots=True)
class Dispute:
    """Another method's result for a frame, if that method claims to be exact."""

    trust: FrameTrust
    """The other method."""
    address: Avma | None
    """The address that it found; None if no caller, or an unreadable one."""

    def __str__(self) -> str:
        result = "no caller" if self.address is None else f"{self.address:#x}"
        return f"but {self.trust.label} finds {result}"


@dataclass(frozen=True, slots=True)
class FrameAddress:
    """An address on the stack, unadjusted; see :attr:`lookup`."""

    address: Avma
    trust: FrameTrust
    kind: AddressKind
    disputed_by: tuple[Dispute, ...] = ()
    """Methods that found another caller, or the same caller with another CFA."""

    @property
    def lookup(self) -> Avma:
        """The address to look up: inside the call, not after it.

        A call that never returns can be its function's last instruction; the return address is
        then in the next function.
        """
        if self.kind is AddressKind.RETURN_ADDRESS:
            return Avma(self.address - 1)
        return self.address

    @property
    def provenance(self) -> str:
        """How the address was found and what disputes it, as text; empty for the innermost pc."""
        if self.trust is FrameTrust.CONTEXT:
            parts = []
        elif self.kind is AddressKind.PROGRAM_COUNTER:
            parts = [self.trust.label, "interrupted"]
        else:
            parts = [self.trust.label]
        return ", ".join((*parts, *map(str, self.disputed_by)))

    def __str__(self) -> str:
        note = self.provenance
        return f"{self.address:#x}  [{note}]" if note else f"{self.address:#x}"

    def __repr__(self) -> str:
        return f"<FrameAddress {self.address:#x} {self.kind.value} by {self.trust.value}>"


NO_ADDRESS = FrameAddress(Avma(0), FrameTrust.PREWALKED, AddressKind.ADJUSTED)
"""Stands for the address of a frame that has none: a Python function's without its interpreter's,
or one of which a profile has only the function's name."""


class StopReason(Enum):
    """Why unwinding stopped."""

    ROOT = "root"
    """The outermost frame was reached: an undefined return address, or zero where a method that
    claims to be exact reads it. The stack is complete, except where a frame's trust is a guess."""
    UNREADABLE = "unreadable"
    """The next frame is in memory that was not captured or does not exist."""
    NO_PROGRESS = "no-progress"
    """The next frame would repeat this one or an earlier one."""
    MISALIGNED = "misaligned"
    """The next frame's address is not a multiple of the pointer size."""
    NO_RULE = "no-rule"
    """No unwind rule applies."""
    DEPTH_LIMIT = "depth-limit"
    """More frames than fit a real stack; see :mod:`machtrace.unwinder.walker`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a stack: why, and at which address."""

    reason: StopReason
    at: Avma | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the stack is complete."""
        return self.reason is StopReason.ROOT

    def __str__(self) -> str:
        where = "" if self.at is None else f" at {self.at:#x}"
        return f"{_STOPS[self.reason]}{where}"


_STOPS = {
    StopReason.ROOT: "complete",
    StopReason.UNREADABLE: "incomplete: the next frame's memory was not captured",
    StopReason.NO_PROGRESS: "incomplete: the next frame would repeat an earlier one",
    StopReason.MISALIGNED: "incomplete: the next frame is misaligned",
    StopReason.NO_RULE: "incomplete: no unwind rule",
    StopReason.DEPTH_LIMIT: "incomplete: too many frames",
}


_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Gap:
    """Frames in the middle of a deep stack that were unwound and counted, but dropped."""

    after: int
    """The number of retained frames before the gap."""
    count: int
    """The number of dropped frames."""

    def __post_init__(self) -> None:
        if self.after < 0 or self.count < 1:
            msg = f"no gap: {self.count} frames after {self.after}"
            raise ValueError(msg)


def stretches(items: Sequence[_Item], gap: Gap | None) -> Iterator[tuple[int, Sequence[_Item]]]:
    """Yield the frames before and after the gap, each piece with its first frame's number."""
    if gap is None:
        yield 0, items
    else:
        yield 0, items[: gap.after]
        yield gap.after + gap.count, items[gap.after :]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AddressChain:
    """Frames that called one another, innermost first."""

    addresses: tuple[FrameAddress, ...]
    """The retained frames: all of them if there is no gap."""
    stop: Stop
    gap: Gap | None = None

    @property
    def depth(self) -> int:
        """The number of frames, retained or dropped."""
        return len(self.addresses) + (0 if self.gap is None else self.gap.count)

    def lines(self, images: ImageList | None = None) -> Iterator[str]:
        """Yield the frames, with their images and offsets if ``images`` has them."""
        frames = [_frame_text(address, images) for address in self.addresses]
        yield from chain_text(frames, self.gap, self.stop)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind}: {counted(self.depth, 'frame')}, {self.stop}>"


def chain_text(
    frames: Sequence[FrameText],
    gap: Gap | None,
    stop: Stop,
    *,
    pointer_size: int | None = None,
    style: Style = PLAIN,
    details: Sequence[Sequence[str]] | None = None,
) -> Iterator[str]:
    """Yield the lines of a chain of frames, and what is missing of it; see :func:`chain_lines`."""
    yield from chain_lines(
        list(stretches(frames, gap)),
        left_out=0 if gap is None else gap.count,
        pointer_size=pointer_size,
        style=style,
        details=details,
    )
    if not stop.is_complete:
        yield f"     {style.dim}{stop}{style.reset}"


def _frame_text(address: FrameAddress, images: ImageList | None) -> FrameText:
    image = None if images is None else images.find(address.lookup)
    return FrameText((address_row(address, image, address.provenance),), address)


def address_row(address: FrameAddress, image: BinaryImage | None, note: str) -> Row:
    """Return the line of a frame without a name: its image and offset if it is in one."""
    if image is None:
        return Row("???", address.address, "?", note=note)
    name = f"? (image + {image.offset_of(address.address):#x})"
    return Row(image.label, address.address, name, note=note)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Walk(AddressChain):
    """An unwound stack."""

    physical_remainder: AddressChain | None = None
    """The machine frames below the first Swift async frame, from which on :attr:`addresses` follows
    the continuations; None without an async frame."""

    def lines(self, images: ImageList | None = None) -> Iterator[str]:
        """See :meth:`AddressChain.lines`."""
        yield from AddressChain.lines(self, images)
        if self.physical_remainder is not None:
            yield f"     {MACHINE_FRAMES}"
            yield from self.physical_remainder.lines(images)


MACHINE_FRAMES = "the machine frames that ran it:"
"""The line between a Swift task's frames and :attr:`Walk.physical_remainder`."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Backtrace(Walk):
    """The unwound stack of a thread in a snapshot."""

    thread: ThreadSnapshot = field(repr=False)
    snapshot: Snapshot = field(repr=False, compare=False)
    """The thread's snapshot, by whose images and memory names are looked up."""

    def __str__(self) -> str:
        info = self.thread.info
        is_shown = info.cause is not None and info.cause.is_shown
        cause = (f"  {printable(str(info.cause))}",) if is_shown else ()
        heading = info.heading(self.thread.stopped_for_ns)
        return "\n".join((heading, *cause, *self.lines(self.snapshot.images)))

    def __repr__(self) -> str:
        return f"<Backtrace of {self.thread.info}: {counted(self.depth, 'frame')}, {self.stop}>"
