"""Frames of a backtrace, in the images that it lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.json_value import JsonValue
from machtrace.model.reported_frame import Adjustment, ReportedFrame, ReportedSymbol
from machtrace.model.symbol import SourceLocation
from machtrace.reports.image_ranges import ImageRanges
from machtrace.reports.images import ListedImages
from machtrace.reports.swift.frame_lines import SwiftFrameLine, parse_frame_line

_RETURN, _INLINED = "ra", "inlined"
OMITTED = "omitted"
"""The detail of what stands for frames that are not shown: how many, or null."""
ATTRIBUTES = "attributes"
"""The detail of what else is said of a frame: ``async``, ``thunk``, ``system``."""


class FrameMaker:
    """Makes the frames of a report.

    Args:
        images: those that are listed; what only frames name is added to them.
    """

    def __init__(self, images: ListedImages) -> None:
        self._images = images
        self._names = frozenset(image.name for image in images.all())
        self._ranges = ImageRanges(images.all())

    def frames_of(self, lines: Iterable[str]) -> tuple[ReportedFrame, ...]:
        """Those of a thread's lines, each of which is one."""
        found = (parse_frame_line(line, self._names) for line in lines)
        return tuple(self._of_line(one) for one in found if one is not None)

    def _of_line(self, line: SwiftFrameLine) -> ReportedFrame:
        if line.number is None:
            return omitted(None)
        symbol = None if line.name is None else ReportedSymbol(line.name, line.offset)
        return self.frame(line.address, line.attributes, symbol, line.image, line.location)

    def frame(
        self,
        address: int | None,
        attributes: Sequence[str],
        symbol: ReportedSymbol | None,
        image: str | None,
        location: SourceLocation | None,
    ) -> ReportedFrame:
        """One frame.

        Args:
            address: an Avma.
            attributes: as texts have them.
            symbol: what it is called.
            image: the name of the one that holds it; where none is said, that is looked for.
            location: in the source.
        """
        other: list[JsonValue] = [one for one in attributes if one not in (_RETURN, _INLINED)]
        if image is not None:
            index: int | None = self._images.find(image, address)
        else:
            index = None if address is None else self._ranges.find(address)
        base = None if index is None else self._images.base(index)
        offset = None if address is None or base is None or address < base else address - base
        return ReportedFrame(
            None if address is None else Avma(address),
            index,
            None if offset is None else ImageOffset(offset),
            Adjustment.RETURN if _RETURN in attributes else Adjustment.EXACT,
            symbol,
            location,
            _INLINED in attributes,
            {ATTRIBUTES: other} if other else {},
        )


def omitted(count: int | None) -> ReportedFrame:
    """What stands for frames that are not shown; None where nobody says how many."""
    return ReportedFrame(None, None, None, details={OMITTED: count})
