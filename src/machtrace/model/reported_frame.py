"""Frames as reports have them: walked before, elsewhere, and perhaps named."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import NO_DETAILS, Details
from machtrace.model.symbol import SourceLocation


class Adjustment(Enum):
    """How a frame's address stands to the instruction that was running."""

    EXACT = "exact"
    """It is that instruction: a thread was interrupted or stopped there."""
    RETURN = "return"
    """It is where a call will return to: the call is the instruction before it."""
    ALREADY_ADJUSTED = "already-adjusted"
    """It was a return address, and who wrote the report took one byte or instruction away."""
    UNKNOWN = "unknown"
    """The format does not say."""


class NameSource(Enum):
    """Where a frame's name is from."""

    REPORT = "report"
    """The report itself has it: whoever wrote that looked it up, well or badly."""
    DEBUG_INFORMATION = "debug-information"
    EXACT = "exact"
    """This and the next: see :class:`~machtrace.model.symbol.Certainty`."""
    EXPORT = "export"
    OBJC = "objc"
    RTTI = "rtti"
    SWIFT = "swift"
    PCLNTAB = "pclntab"
    STUB = "stub"


class ReportedSymbol(NamedTuple):
    """A function's name, and how far into it the frame is."""

    name: str
    """As it is written there: demangled or not."""
    offset: int | None
    """Bytes from the function's start to the frame's address; None where nobody says."""
    source: NameSource = NameSource.REPORT


class ReportedFrame(NamedTuple):
    """One line of a stack. Rows by the hundred thousand, hence a tuple.

    A call that was inlined is a frame of its own, just before (inside of) the frame of the machine
    that it shares its address with.
    """

    address: Avma | None
    """As the report has it, signature bits removed; None where it has none."""
    image: int | None
    """Which of the report's images holds it: an index; None where that is not known."""
    offset: ImageOffset | None
    """Bytes from that image's header; None where that is not known."""
    adjustment: Adjustment = Adjustment.UNKNOWN
    symbol: ReportedSymbol | None = None
    location: SourceLocation | None = None
    is_inline: bool = False
    """Whether it is a call inlined into the next frame."""
    details: Details = NO_DETAILS

    @property
    def lookup(self) -> ImageOffset | None:
        """The offset to look names up at: inside of the call, not after it.

        One that was adjusted already, and one of which nothing is known, are taken as they are.
        """
        if self.offset is None:
            return None
        if self.adjustment is Adjustment.RETURN and self.offset > 0:
            return ImageOffset(self.offset - 1)
        return self.offset
