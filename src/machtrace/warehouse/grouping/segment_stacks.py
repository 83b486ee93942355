"""The stacks of a segment as reports have them, and their fingerprints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, TypeAlias

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
    MAX_FRAMES,
    Fingerprint,
    FingerprintBasis,
    call_fingerprint,
    counted_frame,
    fingerprint,
    frame_token,
    wait_token,
)
from machtrace.reports.analysis.frame_owner import NOWHERE, FrameOwner, OwnerReason, Ownership
from machtrace.reports.analysis.grouping_rules import GroupingRules, Raised
from machtrace.warehouse.schema import FrameKind
from machtrace.warehouse.segment import Segment

_REASONS = {
    FrameOwner.APP: OwnerReason.BUNDLE,
    FrameOwner.SYSTEM: OwnerReason.SYSTEM_PATH,
    FrameOwner.UNKNOWN: OwnerReason.NO_PATH,
}
_Token: TypeAlias = tuple[bool, bytes, bool]
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
        self._tokens: dict[int, tuple[_Token, ...]] = {}
        self._parent, self._frame = segment.tree.parent.tolist(), segment.tree.frame.tolist()

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
            most=_FRAMES.get(kind, MAX_FRAMES),
            wait=cause if kind == "hang" else "",
        )

    def hash_of(self, node: int, kind: str, cause: str) -> tuple[str, bool]:
        """Return the hash of a node's fingerprint, and whether it is build-sensitive.

        They are those of :meth:`fingerprint`, for a tenth of the time where nothing is recursive.

        Args:
            node: the stack's.
            kind: that of the reports that are about it.
            cause: see :meth:`fingerprint`.
        """
        at, tokens = node, list[_Token]()
        while at:
            frame = self._frame[at]
            own = self._tokens.get(frame)
            if own is None:
                own = self._tokens[frame] = tuple(map(self._token, self._made_calls(frame)))
            tokens += own
            at = self._parent[at]
        chosen = [token for token in tokens if token[0]]
        basis = FingerprintBasis.APP_FRAMES if chosen else FingerprintBasis.OTHER_FRAMES
        chosen = chosen or tokens
        texts = [token[1] for token in chosen]
        is_plain = self._rules is None and kind != "audit" and len(set(texts)) == len(texts)
        if not is_plain or not texts:
            made = self.fingerprint(node, kind, cause)
            return made.hash, made.is_build_sensitive
        most = _FRAMES.get(kind, MAX_FRAMES)
        digest = blake2b(basis.name.encode() + b"".join(texts[:most]), digest_size=8)
        if cause and kind == "hang":
            digest.update(wait_token(cause))
        return digest.hexdigest(), not all(token[2] for token in chosen[:most])

    def _token(self, frame: ReportedFrame) -> _Token:
        """Return whether a frame is the app's, its part of a hash, and whether it is named."""
        owner = NOWHERE if frame.image is None else self._owners[frame.image]
        counted = counted_frame(0, frame, owner, self._task)
        return owner.owner is FrameOwner.APP, frame_token(counted), counted.is_named

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
            most=_FRAMES.get(kind, MAX_FRAMES),
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
