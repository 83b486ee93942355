"""How far received bytes are: in the log, in segments, or in quarantine."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

from machtrace.warehouse.log import span_at
from machtrace.warehouse.manifest import Manifest

_RECORD = re.compile(r"([0-9]{8,18})-([0-9]{1,18})")


class RecordState(StrEnum):
    """How far received bytes are."""

    STORED = "stored"
    """They are on the disk, and in no segment yet."""
    PARSED = "parsed"
    """Their reports are in segments."""
    QUARANTINED = "quarantined"
    """Some of them could not be read."""
    REMOVED = "removed"
    """They were deleted, or are older than bytes are stored for; their reports may be there."""


def record_state(
    folder: Path, manifest: Manifest, record: str
) -> tuple[RecordState, tuple[str, ...]] | None:
    """Return the state of a record, and why parts of it are in quarantine; None if there is none.

    Args:
        folder: that of the logs.
        manifest: that of the warehouse.
        record: its identifier: the number of its log, and its offset there.

    Raises:
        FileAccessError: the log cannot be read.
    """
    match = _RECORD.fullmatch(record)
    if match is None:
        return None
    path, offset = folder / f"{match[1]}.log", int(match[2])
    # Read before the quarantine: what moves meanwhile is reported as stored.
    is_read = offset < manifest.logs().get(path.name, 0)
    if not path.is_file():
        return (RecordState.REMOVED, ()) if is_read else None
    span = span_at(path, offset)
    if span is None:
        return None
    if span.is_removed:
        return RecordState.REMOVED, ()
    if not is_read:
        return RecordState.STORED, ()
    reasons = manifest.reasons(path.name, offset)
    return (RecordState.QUARANTINED if reasons else RecordState.PARSED), reasons
