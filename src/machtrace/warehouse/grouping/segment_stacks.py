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
from machtrace.reports.analysis.explanation import FrameExplanation, explained
from machtrace.reports.analysis.fingerprint import (
    MOST_FRAMES,
    Fingerprint,
    call_fingerprint,
    fingerprint,
)
from machtrace.reports.analysis.frame_owner import FrameOwner, OwnerReason, Ownership
from machtrace.reports.analysis.grouping_rules import GroupingRules, Raised
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

    def __init__(self, segment: Segment, rules: GroupingRules | None = None) -> None:
        self._segment = segment
        self._rules = rules
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

    def fingerprint(self, node: int, kind: str = "crash", cause: str = "") -> Fingerprint:
        """Return the fingerprint of a node's stack.

        Args:
            node: the stack's.
            kind: that of the reports that are about it.
            cause: the kind of what a hang waited for, the exception of others; may be empty.
        """
        frames = self.frames(node)
        if kind == "audit":
            return call_fingerprint(frames, self._task, self._owners)
        return fingerprint(
            frames,
            self._task,
            self._owners,
            rules=self._rules,
            raised=_raised(kind, cause),
            most=_FRAMES.get(kind, MOST_FRAMES),
            wait=cause if kind == "hang" else "",
        )

    def explained(self, node: int, kind: str, cause: str) -> tuple[FrameExplanation, ...]:
        """Return for each frame of a node's stack whether it counts in the fingerprint, and why.

        Args:
            node: the stack's.
            kind: that of the reports that are about it.
            cause: see :meth:`fingerprint`.
        """
        return explained(
            self.frames(node),
            self._task,
            self._owners,
            self._rules,
            raised=_raised(kind, cause),
            most=_FRAMES.get(kind, MOST_FRAMES),
        )

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


def _raised(kind: str, cause: str) -> Raised:
    return Raised((cause,) if cause and kind != "hang" else (), (), (kind,))
