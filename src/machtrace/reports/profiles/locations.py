"""Locations of profiles: an address in an image, and the calls there by the writer's names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.image import BinaryImage
from machtrace.model.profile import ProfileFrame
from machtrace.model.report import ReportedFrame
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust
from machtrace.model.symbol import (
    Certainty,
    Frame,
    FrameStatus,
    InlineFrame,
    PythonFrame,
    SourceLocation,
    Symbol,
    unnamed,
)
from machtrace.reports.profiles.functions import missing_frames

MAX_COUNT = 1 << 48
"""Samples of one stack."""
MAX_FIELDS = 1 << 21
"""Fields of a message: some 400 MB of memory; profiles of hours have fewer samples."""
_UNNAMED = re.compile(r"(?P<image>.{1,4096})\+0x(?P<offset>[0-9a-f]{1,16})")


class Function(NamedTuple):
    """A function and the file that it is in; may be empty."""

    name: str
    path: str


class Call(NamedTuple):
    """A function that runs at a location: itself, or inlined there."""

    function: Function
    line: int | None
    column: int | None

    @property
    def location(self) -> SourceLocation | None:
        """Its place in a source file, if that is known."""
        path = self.function.path
        return SourceLocation(path, self.line, self.column) if path else None


def frame_at(image: BinaryImage | None, address: Avma, calls: Sequence[Call]) -> ProfileFrame:
    """Return the frame of a location.

    Args:
        image: where it is; None if unknown.
        address: inside the call; 0 of functions that have none, as of an interpreter.
        calls: innermost first; the last one is the function that holds the others.
    """
    holder = calls[-1] if calls else Call(Function("", ""), None, None)
    name = holder.function.name
    if not address and name:
        image = None
    if image is None and (missing := missing_frames(name)) is not None:
        return missing
    inlined = [call for call in calls[:-1] if not call.function.path.endswith(".py")]
    python = [call for call in calls[:-1] if call.function.path.endswith(".py")]
    return Frame(
        address=FrameAddress(address, FrameTrust.PREWALKED, AddressKind.ADJUSTED),
        status=FrameStatus.UNKNOWN_IMAGE if image is None else FrameStatus.SYMBOLICATED,
        image=image,
        is_placed=image is None or image.size > 0,
        symbol=_symbol(name, address, image),
        location=holder.location,
        inlined=tuple(InlineFrame(call.function.name, call.location) for call in inlined),
        python=tuple(
            PythonFrame(call.function.name, SourceLocation(call.function.path, call.line))
            for call in python
        ),
    )


def _symbol(name: str, address: Avma, image: BinaryImage | None) -> Symbol | None:
    """Return the function; machtrace's names of functions without one have their offset."""
    if image is not None and (match := _UNNAMED.fullmatch(name)) and match["image"] == image.name:
        return unnamed(ImageOffset(int(match["offset"], 16)), None)
    if name in ("", f"{address:#x}" if image is None else image.name):
        return None
    offset = ImageOffset(address if image is None else image.offset_of(address))
    return Symbol(name=name, linkage_name="", offset=offset, size=None, certainty=Certainty.EXACT)


def without_offsets(frames: Sequence[ReportedFrame]) -> tuple[ReportedFrame, ...]:
    """Return the frames without offsets in functions, whose starts are unknown."""
    return tuple(
        frame if frame.symbol is None else frame._replace(symbol=frame.symbol._replace(offset=None))
        for frame in frames
    )
