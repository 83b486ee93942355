"""The stacks of a segment as reports have them, and their fingerprints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    NameSource,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    ReportedTask,
)
from machtrace.reports.analysis.fingerprint import (
    MOST_FRAMES,
    Fingerprint,
    call_fingerprint,
    fingerprint,
)
from machtrace.reports.analysis.frame_owner import FrameOwner, OwnerReason, Ownership
from machtrace.warehouse.schema import FrameKind
from machtrace.warehouse.segment import Segment

_REASONS = {
    FrameOwner.APP: OwnerReason.BUNDLE,
    FrameOwner.SYSTEM: OwnerReason.SYSTEM_PATH,
    FrameOwner.UNKNOWN: OwnerReason.NO_PATH,
}
_FRAMES = {"cpu": 1, "memory": 1}
"""Frames of a fingerprint, by kind of report: where time or memory goes is one function's matter,
and the functions that it calls at that moment are not."""


class SegmentStacks:
    """The stacks of a segment, with their names, as reports have them."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._frames = segment.frames.to_pylist()
        self._names: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in segment.names.to_pylist():
            self._names[row["frame"]].append(row)
        images = segment.images.to_pylist()
        self._task = ReportedTask(
            images=tuple(ReportedImage(name=row["name"], path=row["path"]) for row in images)
        )
        owners = (FrameOwner(row["owner"]) for row in images)
        self._owners = [Ownership(owner, _REASONS[owner]) for owner in owners]
        self._calls: dict[int, tuple[ReportedFrame, ...]] = {}

    def frames(self, node: int) -> list[ReportedFrame]:
        """Return the frames of a node's stack, the innermost first, inlined calls among them."""
        known, frames = self._calls, list[ReportedFrame]()
        for frame in self._segment.tree.stack(node):
            calls = known.get(frame)
            if calls is None:
                calls = known[frame] = tuple(self._made_calls(frame))
            frames += calls
        return frames

    def fingerprint(self, node: int, kind: str = "crash", waits_for: str = "") -> Fingerprint:
        """Return the fingerprint of a node's stack.

        Args:
            node: the stack's.
            kind: that of the reports that are about it.
            waits_for: the kind of what a hang waited for; may be empty.
        """
        frames = self.frames(node)
        if kind == "audit":
            return call_fingerprint(frames, self._task, self._owners)
        most = _FRAMES.get(kind, MOST_FRAMES)
        return fingerprint(frames, self._task, self._owners, most=most, wait=waits_for)

    def _made_calls(self, frame: int) -> Iterable[ReportedFrame]:
        row = self._frames[frame]
        is_inside = row["kind"] == FrameKind.IMAGE
        image = row["image"] if is_inside else None
        offset = ImageOffset(row["offset"]) if is_inside else None
        address = Avma(row["offset"]) if row["kind"] == FrameKind.ADDRESS else None
        names = self._names.get(frame, [])
        for place, name in enumerate(names, 1):
            symbol = ReportedSymbol(name["function"], None, NameSource(name["source"]))
            yield ReportedFrame(address, image, offset, symbol=symbol, is_inline=place < len(names))
        if not names:
            symbol_of_text = ReportedSymbol(row["text"], None) if row["text"] else None
            yield ReportedFrame(address, image, offset, symbol=symbol_of_text)
