"""Small segments become large ones, and damage is stated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from machtrace.errors import MachtraceError
from machtrace.warehouse.ingest import store_segment
from machtrace.warehouse.manifest import WHOLE_LOG, Manifest, SegmentRow
from machtrace.warehouse.segment import Segment, merge
from machtrace.warehouse.segment_files import write_segment
from machtrace.warehouse.upkeep.left_over import remove_left_over, segment_folder

MAX_STACKS = 1 << 24
"""Stacks of a segment that is not joined with others."""


class Problem(NamedTuple):
    """A fault that :func:`check` sees."""

    where: str
    text: str


def compact(
    folder: Path, manifest: Manifest, read: Callable[[int], Segment], most: int = MAX_STACKS
) -> int:
    """Replace segments by larger ones, and return how many were replaced.

    Args:
        folder: the warehouse's, which this process writes to.
        manifest: its manifest.
        read: returns a segment by its number.
        most: the number of stacks of a segment that is not joined with others.

    Raises:
        FileAccessError, FormatError: a segment cannot be read or written.
    """
    remove_left_over(folder, manifest)
    small: list[SegmentRow] = []
    replaced = 0
    for row in [*manifest.segments(), None]:
        if row is None or sum(each.occurrences for each in [*small, row]) > most:
            if len(small) > 1:
                _replace(folder, manifest, small, read)
                replaced += len(small)
            small = []
        if row is not None:
            small.append(row)
    remove_left_over(folder, manifest)
    return replaced


def _replace(
    folder: Path, manifest: Manifest, rows: Sequence[SegmentRow], read: Callable[[int], Segment]
) -> None:
    merged = merge(read(row.id) for row in rows)
    number = manifest.next_segment()
    size = write_segment(merged, segment_folder(folder, number))
    with manifest.transaction() as database:
        store_segment(database, number, merged, size)
        now = time.time_ns()
        for row in rows:
            database.execute("UPDATE segment SET retired = ? WHERE id = ?", (now, row.id))


def check(folder: Path, manifest: Manifest, read: Callable[[int], Segment]) -> Iterator[Problem]:
    """Yield what is damaged: segments, and logs that are shorter than what was read of them.

    Args:
        folder: the warehouse's.
        manifest: its manifest.
        read: returns a segment by its number.
    """
    for row in manifest.segments():
        try:
            segment = read(row.id)
        except MachtraceError as error:
            yield Problem(f"segment {row.id}", str(error))
            continue
        counts = segment.reports.num_rows, segment.occurrences.num_rows, len(segment.tree)
        if counts != row[1:4]:
            yield Problem(f"segment {row.id}", "it has other rows than the manifest states")
        keys = segment.reports["key"].to_pylist()
        missing = len(set(keys) - manifest.known(keys))
        if missing:
            yield Problem(f"segment {row.id}", f"{missing} reports are not in the manifest")
    removals = manifest.removals()
    for name, offset in manifest.logs().items():
        path = folder / "log" / name
        if WHOLE_LOG in removals.get(name, ()):
            continue
        if not path.is_file() or path.stat().st_size < offset:
            yield Problem(name, "the log is shorter than what was read of it")
