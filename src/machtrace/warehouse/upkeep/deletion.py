"""Deletion: reports leave the segments and their bytes the logs, whatever happens meanwhile.

Segments without the reports are written first. One transaction of the manifest replaces the
segments and states which bytes must leave the logs. Files are removed after it; what a killed
process did not remove, the next writer does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from machtrace.errors import ArgumentError, FormatError, MachtraceError
from machtrace.model.text import counted
from machtrace.reports.inputs import InputLimits, unpacked
from machtrace.reports.source import ReportSource
from machtrace.warehouse.ingest import store_segment, unframed
from machtrace.warehouse.log import read_record, records, spans
from machtrace.warehouse.manifest import WHOLE_LOG, Manifest
from machtrace.warehouse.segment import Segment, without_reports
from machtrace.warehouse.segment_files import write_segment
from machtrace.warehouse.upkeep.left_over import segment_folder

_KEY_BYTES = 16
_FACTS = 1 << 16
"""Bytes of a record that have its facts."""
_DAY = 24 * 3600 * 10**9
CLOCK_SLACK = _DAY
"""How far a clock may be set back, in ns, before what it dated is taken for the future."""
_FAR = 30 * _DAY
"""Nanoseconds after the newest report at which a clock is not believed."""


class ExpiryError(MachtraceError):
    """Nothing is deleted by its age, since the clock may be wrong."""

    remedy = "check the clock; if it is right, pass --trust-clock"


class Deleted(NamedTuple):
    """The result of a deletion."""

    reports: int
    records: int
    """Records of logs whose bytes were removed."""


def report_key(text: str) -> bytes:
    """Return a report's key.

    Raises:
        ArgumentError: the text is none in hexadecimal.
    """
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise ArgumentError(
            f"{text!r} is no key of a report",
            remedy="print keys: machtrace warehouse query FOLDER 'SELECT key FROM reports'",
        )
    return key


def delete(
    folder: Path,
    manifest: Manifest,
    read: Callable[[int], Segment],
    reports: Mapping[int, set[bytes]],
    raw: Mapping[str, set[int]],
) -> Deleted:
    """Remove reports from segments, and records from logs that are read and not written any more.

    Args:
        folder: the warehouse's, which this process writes to.
        manifest: its manifest.
        read: returns a segment by its number.
        reports: by segment: the keys of reports.
        raw: by log: the offsets of records.

    Raises:
        FileAccessError, FormatError: a segment cannot be read or written, and nothing has changed;
            or a log cannot, which is tried again later.
    """
    written: list[tuple[int, Segment, int]] = []
    for number, keys in reports.items():
        left = without_reports(read(number), keys)
        if left.reports.num_rows:
            new = manifest.next_segment()
            written.append((new, left, write_segment(left, segment_folder(folder, new))))
    places = [(log, offset) for log, offsets in raw.items() for offset in offsets]
    removals = []
    for log, offsets in raw.items():
        left_over = {span.offset for span, _ in spans(folder / "log" / log) if not span.is_removed}
        removals += [(log, each) for each in (offsets if left_over - offsets else {WHOLE_LOG})]
    every = [(key,) for keys in reports.values() for key in keys]
    with manifest.transaction() as database:
        for new, left, size in written:
            store_segment(database, new, left, size)
        # Those that were joined a moment ago have the reports, too.
        database.execute("DELETE FROM segment WHERE retired IS NOT NULL")
        numbers = [(number,) for number in reports]
        database.executemany("DELETE FROM segment WHERE id = ?", numbers)
        database.executemany("DELETE FROM report WHERE key = ?", every)
        database.executemany("DELETE FROM quarantine WHERE log = ? AND offset = ?", places)
        database.executemany("INSERT OR REPLACE INTO removal VALUES (?, ?)", removals)
    return Deleted(len(every), len(places))


def records_with(
    folder: Path, logs: Iterable[str], texts: Collection[bytes]
) -> dict[str, set[int]]:
    """Return the records that have one of some texts, also in archives, by log.

    Raises:
        FileAccessError: a log cannot be read.
    """
    wanted = [text for text in texts if text]
    return {
        log: {record.offset for record in records(folder / log) if _has(record.body, wanted)}
        for log in logs
    }


def records_before(
    folder: Path, logs: Iterable[str], time: int, clock: int | None = None
) -> dict[str, set[int]]:
    """Return the first records that were received before a time, in ns since 1970, by log.

    Args:
        folder: the logs'.
        logs: their names.
        time: records from then on are later.
        clock: the present time; records that a clock dated after it are passed over.

    Raises:
        FileAccessError: a log cannot be read.
    """

    def is_passed(received: int | None) -> bool:
        if received is None:
            return False
        return received < time or (clock is not None and received > clock + CLOCK_SLACK)

    old: dict[str, set[int]] = {}
    for log in logs:
        every = ((span, _received(head)) for span, head in spans(folder / log, _FACTS))
        first = takewhile(lambda each: each[0].is_removed or is_passed(each[1]), every)
        old[log] = {
            span.offset
            for span, received in first
            if not span.is_removed and received is not None and received < time
        }
    return old


def last_reception(folder: Path, logs: Iterable[str], clock: int) -> int:
    """Return when the last record was received that no clock dated after the present time.

    Args:
        folder: the logs'.
        logs: their names.
        clock: the present time, in ns since 1970.

    Returns:
        Nanoseconds since 1970; 0 if there is none.

    Raises:
        FileAccessError: a log cannot be read.
    """
    times = [0]
    for log in logs:
        last = [span.offset for span, _ in spans(folder / log) if not span.is_removed][-1:]
        times += [_received(read_record(folder / log, offset)) or 0 for offset in last]
    return max(each for each in times if each <= clock + CLOCK_SLACK)


def number_of_records(folder: Path, logs: Iterable[str]) -> int:
    """Return the number of records that were not removed.

    Raises:
        FileAccessError: a log cannot be read.
    """
    return sum(not span.is_removed for log in logs for span, _ in spans(folder / log))


def check_clock(clock: int, newest: int, reports: tuple[int, int], raw: tuple[int, int]) -> None:
    """Refuse to delete by age what a clock that is wrong would select.

    Args:
        clock: the present time, in ns since 1970.
        newest: when the newest report was received.
        reports: the number of reports that are to be deleted, and of all.
        raw: that of records in logs.

    Raises:
        ExpiryError: the clock is far beyond the newest report, or it selects more than half.
    """
    if clock > newest + _FAR:
        days = (clock - newest) // _DAY
        raise ExpiryError(
            f"the clock is {days:,} days after the newest report: nothing was deleted by its age"
        )
    for (selected, total), name in ((reports, "report"), (raw, "received file")):
        if 2 * selected > total:
            raise ExpiryError(
                f"{selected:,} of {counted(total, name)} are too old by the clock, more than half: "
                "nothing was deleted by its age"
            )


def _received(head: bytes) -> int | None:
    try:
        return unframed(head)[0]
    except FormatError:
        return None


def _has(record: bytes, texts: Collection[bytes]) -> bool:
    if any(text in record for text in texts):
        return True
    data = record.partition(b"\n")[2]
    return any(
        text in item.source.data
        for item in unpacked("", data, InputLimits(), is_named=True)
        if isinstance(item.source, ReportSource) and item.source.data is not data
        for text in texts
    )
