"""Deletion: reports leave the segments and their bytes the logs, whatever happens meanwhile.

Segments without the reports are written first. One transaction of the manifest replaces the
segments and states which bytes must leave the logs. Files are removed after it; what a killed
process did not remove, the next writer does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from machtrace.atomic_write import replace_file
from machtrace.errors import ArgumentError, FileAccessError, FormatError, MachtraceError
from machtrace.model.text import counted
from machtrace.reports.inputs import InputLimits, unpacked
from machtrace.reports.sentry.facts import user_key
from machtrace.reports.source import ReportSource
from machtrace.warehouse.ingest import (
    BatchOutcome,
    LogRecord,
    quarantined_batches,
    store_segment,
    unframed,
)
from machtrace.warehouse.log import Span, read_record, records, spans
from machtrace.warehouse.manifest import WHOLE_LOG, Manifest
from machtrace.warehouse.scrubbing.scrubber import (
    Scrubber,
    is_whole,
    may_be_short_hash,
    stated_devices,
)
from machtrace.warehouse.segment import Segment, without_reports
from machtrace.warehouse.segment_files import write_segment
from machtrace.warehouse.upkeep.left_over import segment_folder

_KEY_BYTES = 16
_FACTS = 1 << 16
"""Bytes of a record that have its facts."""
_SHORT_HEAD = 1 << 10
"""Those of most records."""
_CODES = "utf-8", "utf-16-le"
_LONG = 32
"""Bytes of a text that no device has by chance as a part of another word."""
_DAY = 24 * 3600 * 10**9
CLOCK_SLACK = _DAY
"""How far a clock may be set back, in ns, before what it dated is taken for the future."""
_FAR = 30 * _DAY
"""Nanoseconds without a report after which a clock is not believed."""
_TRUSTED = "clock.trusted"
DAYS = (
    "SELECT min(received) AS first, max(received) AS last FROM reports WHERE received <= ? "
    "GROUP BY received // 86_400_000_000_000"
)
"""A query of when reports were received, up to a time."""


class ExpiryError(MachtraceError):
    """Nothing is deleted by its age, since the clock may be wrong."""

    remedy = (
        "check the clock; if it is right, delete once with --trust-clock: machtrace warehouse "
        "compact FOLDER --report-age AGE --trust-clock, while no server has the folder"
    )


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


class DeviceNames(NamedTuple):
    """Values that the column ``device`` may have for a device."""

    sure: set[str]
    unsure: set[str]
    """Another device may have it as well."""


class DeviceRecords(NamedTuple):
    """Records with reports of a device, by log."""

    sure: dict[str, set[int]]
    unsure: dict[str, set[int]]
    """They may be of another device."""

    def every(self) -> dict[str, set[int]]:
        """Return all of them."""
        logs = self.sure.keys() | self.unsure.keys()
        return {log: self.sure.get(log, set()) | self.unsure.get(log, set()) for log in logs}


def device_names(device: str, hasher: Scrubber | None) -> DeviceNames:
    """Return what the column ``device`` may have for an identifier.

    Args:
        device: the identifier, before or after scrubbing.
        hasher: what hashes for the warehouse; None: nothing was ever hashed.
    """
    trimmed = device.strip()
    as_passed = {device, trimmed, user_key(device)}
    if hasher is None:
        return DeviceNames(as_passed, set())
    value = trimmed.encode("utf-8", "replace")
    short = hasher.hashed(value).decode("utf-8", "replace")
    sure, unsure = {hasher.identifier(value)}, set[str]()
    (sure if is_whole(value) else unsure).update({short, user_key(short)})
    (unsure if may_be_short_hash(trimmed) else sure).update(as_passed)
    return DeviceNames(sure, unsure - sure)


def device_records(
    folder: Path,
    logs: Iterable[str],
    names: DeviceNames,
    known: Container[tuple[str, int]],
    run: Callable[[Iterator[list[LogRecord]]], Iterable[BatchOutcome]],
) -> DeviceRecords:
    """Return the records of a device that no report refers to: repeated ones, and unreadable ones.

    Args:
        folder: the logs'.
        logs: their names.
        names: those of the device.
        known: records that reports of the device refer to.
        run: applies ``ingest.read_batch`` to batches, in order.

    Raises:
        FileAccessError: a log cannot be read, or the reader ended.
    """
    candidates = records_with(folder, logs, names.sure | names.unsure)
    every = [(log, offset) for log, offsets in candidates.items() for offset in sorted(offsets)]
    places = [place for place in every if place not in known]
    outcomes = list(run(quarantined_batches(folder, places)))
    if len(outcomes) < len(places):
        raise FileAccessError(str(folder), "the reader ended: nothing was deleted")
    selected = DeviceRecords({}, {})
    for (log, offset), outcome in zip(places, outcomes, strict=True):
        stated = set(outcome.segment.reports["device"].to_pylist())
        if outcome.quarantined:
            _, body = unframed(read_record(folder / log, offset))
            stated |= set(body.devices.values()) or stated_devices(body.data)
        for own, offsets in ((names.sure, selected.sure), (names.unsure, selected.unsure)):
            if not stated.isdisjoint(own):
                offsets.setdefault(log, set()).add(offset)
                break
    return selected


def records_with(folder: Path, logs: Iterable[str], texts: Iterable[str]) -> dict[str, set[int]]:
    """Return the records that have one of some words, also in archives, by log.

    Raises:
        FileAccessError: a log cannot be read.
    """
    words = [_word(text.encode(code, "replace"), code) for text in texts for code in _CODES]
    wanted = re.compile(b"|".join(words), re.DOTALL)
    return {
        log: {record.offset for record in records(folder / log) if _has(record.body, wanted)}
        for log in logs
    }


def _word(text: bytes, code: str) -> bytes:
    """Return a pattern of a text that is no part of a longer word."""
    pattern = re.escape(text)
    if len(text) >= _LONG:  # what is before it in binary formats may be any byte
        return pattern
    zero = rb"\0" if code == "utf-16-le" else b""
    return b"(?<![0-9A-Za-z]" + zero + b")" + pattern + b"(?![0-9A-Za-z]" + zero + b")"


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
        path = folder / log
        every = ((span, _received(path, span, head)) for span, head in spans(path, _FACTS))
        first = takewhile(lambda each: each[0].is_removed or is_passed(each[1]), every)
        old[log] = {
            span.offset
            for span, received in first
            if not span.is_removed and received is not None and received < time
        }
    return old


def check_clock(
    clock: int,
    days: Iterable[Mapping[str, int]],
    reports: tuple[int, int],
    folder: Path,
    old: Mapping[str, set[int]],
    before: int,
) -> None:
    """Refuse to delete by age what a clock that is wrong would select.

    A clock that was changed leaves a gap between what it dated earlier and later, also when reports
    were received since. So no gap is allowed between what is deleted and the present, but before
    the time at which somebody trusted the clock.

    Args:
        clock: the present time, in ns since 1970.
        days: when the first and the last report were received, of each day; see :data:`DAYS`.
        reports: the number of reports that are to be deleted, and of all.
        folder: the logs'.
        old: the records that are to be deleted, by log, for all logs.
        before: what is to be deleted was received before this time.

    Raises:
        ExpiryError: nothing was received for long, or the clock selects more than half.
        FileAccessError: a log cannot be read.
    """
    times = {time for day in days for time in (day["first"], day["last"])}
    total = 0
    for log in old:
        for span, head in spans(folder / log, _SHORT_HEAD):
            if not span.is_removed:
                total += 1
                times.add(_received(folder / log, span, head) or 0)
    _check_gaps({time for time in times if 0 < time <= clock + CLOCK_SLACK}, folder, before, clock)
    raw = sum(map(len, old.values())), total
    for (selected, total), name in ((reports, "report"), (raw, "received file")):
        if 2 * selected > total:
            raise ExpiryError(
                f"{selected:,} of {counted(total, name)} are too old by the clock, more than half: "
                "nothing was deleted by its age"
            )


def _check_gaps(times: set[int], folder: Path, before: int, clock: int) -> None:
    trusted = _trusted_clock(folder.parent)
    if trusted > clock + CLOCK_SLACK:  # that one was wrong
        trusted = 0
    start = max([trusted, *(time for time in times if time < before)])
    later = sorted(time for time in times if time > start)
    every = [start, *later, max(clock, start)]
    gap, last = max((following - last, last) for last, following in pairwise(every))
    if gap > _FAR:
        raise ExpiryError(
            f"nothing was received for {gap // _DAY:,} days from {_date(last):%Y-%m-%d} on, by a "
            "clock that may have been wrong: nothing was deleted by its age"
        )


def store_trusted_clock(folder: Path, clock: int) -> None:
    """Store that a clock was right: what was received before is no evidence against it.

    Args:
        folder: the warehouse's.
        clock: the present time, in ns since 1970.

    Raises:
        FileAccessError: it cannot be stored.
    """
    text = f"{_date(clock).isoformat(timespec='seconds')}\n"
    replace_file(str(folder / _TRUSTED), [text.encode()])


def _trusted_clock(folder: Path) -> int:
    """Return when the clock was last trusted, in ns since 1970; 0 if it never was."""
    try:
        text = (folder / _TRUSTED).read_text("ascii")
        return int(datetime.fromisoformat(text.strip()).timestamp()) * 10**9
    except (OSError, ValueError, OverflowError):
        return 0


def _date(time: int) -> datetime:
    return datetime.fromtimestamp(time // 10**9, UTC)


def _received(path: Path, span: Span, head: bytes) -> int | None:
    if b"\n" in head or span.size <= len(head):
        try:
            return unframed(head)[0]
        except FormatError:
            return None
    return _received_at(path, span.offset)


def _received_at(path: Path, offset: int) -> int | None:
    try:
        return unframed(read_record(path, offset))[0]
    except FormatError:
        return None


def _has(record: bytes, wanted: re.Pattern[bytes]) -> bool:
    if wanted.search(record):
        return True
    data = record.partition(b"\n")[2]
    return any(
        wanted.search(item.source.data) is not None
        for item in unpacked("", data, InputLimits(), is_named=True)
        if isinstance(item.source, ReportSource) and item.source.data is not data
    )
