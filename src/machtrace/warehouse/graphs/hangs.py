"""Stored hangs, with the app's function at which each of them stood."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from machtrace.warehouse.segment import Segment, numbers

if TYPE_CHECKING:
    from machtrace.warehouse.reader import WarehouseReader

MAX_HANGS = 2_000
_HANGS = """
SELECT r.segment, r.key, coalesce(r.time, r.received) AS time, r.duration, r.waits_for, r.device,
    r.app, r.build, r.os, r.kind, o.node, s.key AS stack, t.image,
    coalesce(t.function, printf('0x%x', t."offset"::BIGINT)) AS function
FROM (SELECT * FROM reports WHERE kind IN ('hang', 'deadlock') AND ({where}
)) r
LEFT JOIN occurrences o ON o.segment = r.segment AND o.report = r.report AND o.role = 'subject'
LEFT JOIN stacks s ON s.segment = o.segment AND s.node = o.node
LEFT JOIN stack_tops t ON t.segment = o.segment AND t.node = o.node
ORDER BY time DESC, r.key LIMIT $most
"""
_NAMES = """
SELECT segment, frame, function FROM functions
WHERE (segment, frame) IN (SELECT (unnest($segments::BIGINT[]), unnest($frames::UINTEGER[])))
"""


class _AppFrame(NamedTuple):
    frame: int
    """Its number in the segment."""
    offset: str
    image: str


class StoredHang(NamedTuple):
    """A hang of a report."""

    report: bytes
    """Its key."""
    stack: bytes
    """The key of the stack that it is about; empty without one."""
    time: int
    """In ns since 1970."""
    duration: int | None
    """In ns; None if the report does not state it."""
    waits_for: str
    device: str
    app: str
    build: str
    os: str
    kind: str
    """hang or deadlock."""
    function: str
    """The innermost function of the app; else the innermost one."""
    image: str


def stored_hangs(
    warehouse: WarehouseReader, where: str = "true", most: int = MAX_HANGS
) -> list[StoredHang]:
    """Return the latest hangs, in the order of their times.

    Args:
        warehouse: with its reports.
        where: an SQL condition over the columns of ``reports``.
        most: how many.

    Raises:
        ArgumentError: the condition is invalid.
        MissingExtraError: DuckDB is not installed.
    """
    rows = warehouse.query(_HANGS.format(where=where), {"most": most}).to_pylist()
    wanted: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if row["node"]:
            wanted[row["segment"]].add(row["node"])
    frames: dict[tuple[int, int], _AppFrame] = {}
    for number, nodes in sorted(wanted.items()):
        segment = warehouse.stacks_of(number)
        for node, frame in _app_frames(segment, nodes).items():
            frames[number, node] = frame
    names = _names(warehouse, {(number, frame.frame) for (number, _), frame in frames.items()})
    return [_hang(row, frames, names) for row in reversed(rows)]


def _app_frames(segment: Segment, nodes: set[int]) -> dict[int, _AppFrame]:
    """Return by node the innermost frame of the app's, and its image."""
    images = segment.images["name"].to_pylist()
    owners = segment.images["owner"].to_pylist()
    image = numbers(segment.frames, "image").tolist()
    offset = numbers(segment.frames, "offset")
    made = {}
    for node in nodes:
        for frame in segment.tree.stack(node):
            if image[frame] >= 0 and owners[image[frame]] == "app":
                made[node] = _AppFrame(frame, f"{int(offset[frame]):#x}", images[image[frame]])
                break
    return made


def _names(warehouse: WarehouseReader, frames: set[tuple[int, int]]) -> dict[tuple[int, int], str]:
    if not frames:
        return {}
    ordered = sorted(frames)
    parameters = {
        "segments": [segment for segment, _ in ordered],
        "frames": [frame for _, frame in ordered],
    }
    rows = warehouse.query(_NAMES, parameters).to_pylist()
    return {(row["segment"], row["frame"]): row["function"] for row in rows}


def _hang(
    row: dict[str, Any],
    frames: dict[tuple[int, int], _AppFrame],
    names: dict[tuple[int, int], str],
) -> StoredHang:
    function, image = row["function"], row["image"]
    own = frames.get((row["segment"], row["node"]))
    if own is not None:
        function, image = names.get((row["segment"], own.frame)) or own.offset, own.image
    texts = {name: row[name] or "" for name in ("waits_for", "device", "app", "build", "os")}
    return StoredHang(
        report=row["key"],
        stack=row["stack"] or b"",
        time=row["time"],
        duration=row["duration"],
        kind=row["kind"],
        function=function or "???",
        image=image or "",
        **texts,
    )
