"""Issues: stored reports whose subjects are the same problem, each with its variants.

An issue is identified by the fingerprint of the stack that its reports are about, a variant by the
key of that stack. Both are computed once for each distinct stack, with the names it has now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from machtrace.frozen import dataclass
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    NameSource,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    ReportedTask,
)
from machtrace.reports.analysis.fingerprint import Fingerprint, fingerprint
from machtrace.reports.analysis.frame_owner import FrameOwner, OwnerReason, Ownership
from machtrace.warehouse.schema import FrameKind
from machtrace.warehouse.segment import Segment

if TYPE_CHECKING:
    import pyarrow as pa

_SUBJECTS = """
SELECT o.segment, o.node, s.key AS stack, r.kind, r.exception, count(*) AS reports,
    list(DISTINCT r.device) AS devices, list(DISTINCT r.build) AS builds,
    min(coalesce(r.time, r.received)) AS first, max(coalesce(r.time, r.received)) AS last
FROM occurrences o
JOIN (SELECT * FROM reports WHERE ({where}
)) r USING (segment, report)
JOIN stacks s USING (segment, node)
WHERE o.role = 'subject' GROUP BY ALL
"""
_REASONS = {
    FrameOwner.APP: OwnerReason.BUNDLE,
    FrameOwner.SYSTEM: OwnerReason.SYSTEM_PATH,
    FrameOwner.UNKNOWN: OwnerReason.NO_PATH,
}


class Variant(NamedTuple):
    """A distinct stack of an issue."""

    stack: bytes
    """Its key."""
    reports: int
    segment: int
    node: int
    """The node of the stack, in one of the segments that have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """Reports of one problem."""

    id: str
    """The fingerprint's hash, and the kind."""
    kind: str
    fingerprint: Fingerprint
    exceptions: tuple[str, ...]
    reports: int
    devices: int
    """Devices that state an identifier."""
    builds: tuple[str, ...]
    first: int
    """The earliest report's time, in ns since 1970."""
    last: int
    variants: tuple[Variant, ...]
    """The most frequent first."""

    @property
    def title(self) -> str:
        """The innermost frame of the fingerprint."""
        return self.fingerprint.title


def subjects(where: str) -> str:
    """Return the query of the stacks that reports are about.

    Args:
        where: a condition over the columns of ``reports``.
    """
    return _SUBJECTS.format(where=where)


def issues(rows: pa.Table, read: Callable[[int], Segment]) -> list[Issue]:
    """Return the issues of reports, the most frequent first.

    Args:
        rows: the answer to :func:`subjects`.
        read: returns a segment by its number.
    """
    by_segment: dict[int, list[dict[str, Any]]] = defaultdict(list)
    every = rows.to_pylist()
    for row in every:
        by_segment[row["segment"]].append(row)
    prints: dict[bytes, Fingerprint] = {}
    for number, of_segment in sorted(by_segment.items()):
        stacks = SegmentStacks(read(number))
        for row in of_segment:
            known = prints.get(row["stack"])
            # Another segment may have got its names later.
            if known is None or known.is_build_sensitive:
                prints[row["stack"]] = stacks.fingerprint(row["node"])
    members: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in every:
        members[f"{row['kind']}-{prints[row['stack']].hash}"].append(row)
    made = [_issue(each, prints[own[0]["stack"]], own) for each, own in members.items()]
    return sorted(made, key=lambda issue: (-issue.reports, issue.id))


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

    def frames(self, node: int) -> list[ReportedFrame]:
        """Return the frames of a node's stack, the innermost first, inlined calls among them."""
        return [each for frame in self._segment.tree.stack(node) for each in self._calls(frame)]

    def fingerprint(self, node: int) -> Fingerprint:
        """Return the fingerprint of a node's stack."""
        return fingerprint(self.frames(node), self._task, self._owners)

    def _calls(self, frame: int) -> Iterable[ReportedFrame]:
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


def _issue(identity: str, own: Fingerprint, rows: list[dict[str, Any]]) -> Issue:
    variants: dict[bytes, Variant] = {}
    for row in rows:
        known = variants.get(row["stack"])
        before = 0 if known is None else known.reports
        variants[row["stack"]] = Variant(
            row["stack"], before + row["reports"], row["segment"], row["node"]
        )
    devices = {device for row in rows for device in row["devices"] if device}
    return Issue(
        id=identity,
        kind=rows[0]["kind"],
        fingerprint=own,
        exceptions=tuple(sorted({row["exception"] for row in rows if row["exception"]})),
        reports=sum(row["reports"] for row in rows),
        devices=len(devices),
        builds=tuple(sorted({build for row in rows for build in row["builds"] if build})),
        first=min(row["first"] for row in rows),
        last=max(row["last"] for row in rows),
        variants=tuple(sorted(variants.values(), key=lambda each: (-each.reports, each.stack))),
    )
