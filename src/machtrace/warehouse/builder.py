"""Reports of any format to the rows of a segment."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from machtrace.model.report import (
    Adjustment,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    ReportedTask,
    ReportKind,
    SampledTree,
)
from machtrace.model.symbol import SourceLocation
from machtrace.reports.analysis.fingerprint import owners_of
from machtrace.reports.analysis.hang import Hang, hang_of
from machtrace.reports.analysis.subject_stack import subject_stack
from machtrace.warehouse.schema import (
    FRAMES,
    IMAGES,
    NAMES,
    OCCURRENCES,
    REPORTS,
    FrameAdjustment,
    FrameKind,
    image_identity,
)
from machtrace.warehouse.segment import Segment, merge, trimmed
from machtrace.warehouse.stack_tree import join

_ADJUSTMENTS = {
    Adjustment.UNKNOWN: int(FrameAdjustment.UNKNOWN),
    Adjustment.EXACT: int(FrameAdjustment.EXACT),
    Adjustment.RETURN: int(FrameAdjustment.RETURN),
    Adjustment.ALREADY_ADJUSTED: int(FrameAdjustment.ALREADY_ADJUSTED),
}
_RETURN = Adjustment.RETURN
_RETURN_CODE = _ADJUSTMENTS[_RETURN]
_FrameRow: TypeAlias = tuple[int, int, int, int, str]
"""Image, offset, adjustment, kind and text of a frame."""
_Call: TypeAlias = tuple[str, str, int, str]
"""Function, file, line and source of a name."""
_FORMATS = ("%Y-%m-%d %H:%M:%S.%f %z", "%Y-%m-%d %H:%M:%S %z", "%Y-%m-%d %H:%M:%S.%f")
_PROFILES = frozenset(
    {
        *(ReportKind.SAMPLE, ReportKind.SPINDUMP, ReportKind.MICROSTACKSHOT, ReportKind.FOLDED),
        *(ReportKind.SPEEDSCOPE, ReportKind.PPROF, ReportKind.FIREFOX, ReportKind.OTLP),
    }
)
_MAX_LENGTH = 1 << 12
"""Characters of a name."""
_EARLIEST = 1009843200 * 10**9
"""2002 in ns since 1970: a clock that states an earlier time was never set."""
_AHEAD = 24 * 3600 * 10**9
"""How far a time may be after that of reception; times without a zone are taken for UTC."""


class Source(NamedTuple):
    """Where a report's bytes are, and when they came."""

    received: int
    """In ns since 1970."""
    raw: str = ""
    """The log with its bytes."""
    raw_offset: int = 0
    body: bytes = b""
    """They identify a report that does not identify itself."""
    number: int = 0
    """Its number among those of the same bytes."""
    app: str = ""
    """The app of a report that does not state it."""
    build: str = ""
    """The build of a report that does not state it."""
    device: str = ""
    """The device of a report that does not state it."""
    time: int = 0
    """The time of a report that does not state it, in ns since 1970; 0: unknown."""
    devices: Mapping[str, str] = {}
    """Identifiers of devices, by what the report states instead."""


class SegmentBuilder:
    """Adds reports one by one."""

    def __init__(self) -> None:
        self._reports: list[dict[str, Any]] = []
        self._images: dict[bytes, int] = {}
        self._image_rows: list[dict[str, Any]] = []
        self._frames: dict[_FrameRow, int] = {}
        self._names: dict[int, tuple[_Call, ...]] = {}
        self._depths, self._rows = array("I"), array("I")
        self._occurrences: dict[str, list[Any]] = {field.name: [] for field in OCCURRENCES}

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, report: Report, source: Source) -> bytes:
        """Add a report, and return its key."""
        key = report_key(report, source)
        row = _report_row(report, key, source)
        number = len(self._reports)
        self._reports.append(row)
        before = len(self._occurrences["node"])
        images = self._image_numbers(report)
        subject = self._subject(report, number, images)
        self._add_task(report, number, images)
        for task in report.others:
            self._add_task(task, number, self._image_numbers(task))
        row["subject"] = None if subject is None else subject - before
        return key

    def build(self) -> Segment:
        """Return the rows, in canonical order."""
        joined = join(np.frombuffer(self._depths, np.uint32), np.frombuffer(self._rows, np.uint32))
        ends = np.array(self._occurrences["node"], np.int64)  # the row of each innermost frame
        nodes = np.zeros(len(ends), np.int32)
        nodes[ends >= 0] = joined.node[ends[ends >= 0]]
        occurrences: dict[str, Any] = {**self._occurrences, "node": nodes}
        keys = list(self._frames)
        frames = list(zip(*keys, strict=True)) or [()] * len(FRAMES)
        names = [
            (frame, place, *call)
            for frame, calls in self._names.items()
            for place, call in enumerate(calls)
        ]
        raw = Segment(
            reports=_table(self._reports, REPORTS),
            images=_table(self._image_rows, IMAGES),
            frames=_columns(frames, FRAMES),
            tree=joined.tree,
            occurrences=_columns(list(occurrences.values()), OCCURRENCES),
            names=_columns(list(zip(*names, strict=True)) or [()] * len(NAMES), NAMES),
        )
        return trimmed(merge([raw]))

    def _subject(self, report: Report, number: int, images: Sequence[int]) -> int | None:
        """Add the stack that a report is about; None if it has none."""
        subject = subject_stack(report)
        if subject is None or not subject.frames:
            return None
        return self._add_stack(
            subject.frames, images, report=number, weight=1, role="subject", unit="reports"
        )

    def _add_task(self, task: ReportedTask, number: int, images: Sequence[int]) -> None:
        for thread in task.threads:
            self._add_stack(
                thread.frames,
                images,
                report=number,
                thread=thread.index,
                role="crashed" if thread.crashed else "main" if thread.index == 0 else "thread",
                unit="threads",
                name=thread.name or thread.queue or "",
            )
        for tree in task.trees:
            self._add_tree(tree, images, number, _unit(task))

    def _add_tree(self, tree: SampledTree, images: Sequence[int], number: int, unit: str) -> None:
        if tree.is_inverted:
            return
        for path, own in _own_samples(tree):
            frames = [tree.nodes[at].frame for at in reversed(path)]
            self._add_stack(
                frames,
                images,
                report=number,
                weight=own,
                role="sample",
                unit=unit,
                name=tree.name or tree.queue or "",
            )

    def _add_stack(
        self,
        frames: Sequence[ReportedFrame],
        images: Sequence[int],
        *,
        report: int,
        role: str,
        unit: str,
        weight: int = 1,
        thread: int = -1,
        name: str = "",
    ) -> int:
        numbers = self._numbers(frames, images)
        depth = len(numbers)
        self._depths.extend(range(1, depth + 1))
        self._rows.extend(reversed(numbers))
        columns = self._occurrences
        columns["report"].append(report)
        columns["node"].append(len(self._rows) - 1 if depth else -1)
        columns["weight"].append(weight)
        columns["time"].append(None)
        columns["thread"].append(thread)
        columns["role"].append(role)
        columns["unit"].append(unit)
        columns["name"].append(_text(name))
        return len(columns["node"]) - 1

    def _numbers(self, frames: Sequence[ReportedFrame], images: Sequence[int]) -> list[int]:
        """Return the numbers of machine frames, innermost first; inlined calls are names."""
        known, names = self._frames, self._names
        numbers: list[int] = []
        inlined: list[_Call] = []
        for address, image, offset, adjustment, symbol, location, is_inline, _ in frames:
            if is_inline:
                if symbol is not None:
                    inlined.append(_call(symbol, location))
                continue
            # To hash an enumeration's member takes longer than all the rest.
            code = _RETURN_CODE if adjustment is _RETURN else _ADJUSTMENTS[adjustment]
            row: _FrameRow
            if image is not None and offset is not None:
                row = (images[image], offset, code, 0, "")
            elif address is not None:
                row = (-1, address, code, 1, "")
            else:
                text = "" if symbol is None else _text(symbol.name)
                row = (-1, 0, 0, int(FrameKind.TEXT), text)
            number = known.get(row)
            if number is None:
                number = known[row] = len(known)
            numbers.append(number)
            if symbol is not None and number not in names:
                names[number] = (*inlined, _call(symbol, location))
            if inlined:
                inlined = []
        return numbers

    def _image_numbers(self, task: ReportedTask) -> list[int]:
        owners = owners_of(task)
        return [
            self._image(image, owner.owner.value)
            for image, owner in zip(task.images, owners, strict=True)
        ]

    def _image(self, image: ReportedImage, owner: str) -> int:
        identity = image_identity(image)
        number = self._images.setdefault(identity, len(self._images))
        if number == len(self._image_rows):
            self._image_rows.append(
                {
                    "identity": identity,
                    "uuid": "" if image.uuid is None else image.uuid.hex,
                    "name": _text(image.name or image.path.rpartition("/")[2]),
                    "path": _text(image.path),
                    "arch": image.arch or "",
                    "owner": owner,
                }
            )
        return number


def report_key(report: Report, source: Source) -> bytes:
    """Return what identifies a report: its incident, else its bytes."""
    incident = report.incident.id
    if incident:
        words = f"incident\0{incident.lower()}\0{report.kind.weight}"
        text = words.encode("utf-8", "surrogatepass")
    else:
        # Two devices, or one at two times, may have equal profiles.
        device = source.device or (_device(report, source) if source.devices else "")
        facts = f"{device}\0{source.time}\0" if device or source.time else ""
        text = b"body\0" + source.number.to_bytes(4, "little") + facts.encode() + source.body
    return blake2b(text, digest_size=16).digest()


def report_kind(report: Report) -> str:
    """Return what a report is about: ``crash``, ``hang`` and the like."""
    if report.watch is not None:
        return report.watch.kind.value
    if report.kind is ReportKind.SPOOL:
        return "audit"
    if (report.incident.kind or "").lower() == "hang":
        return "hang"
    if report.kind in _PROFILES:
        return "profile"
    is_handled = report.kind is ReportKind.SENTRY and report.incident.kind == "handled"
    is_crash = not is_handled and (
        report.exception is not None
        or report.language_exception is not None
        or report.crashed_thread is not None
    )
    if is_crash:
        return "crash"
    return "profile" if report.trees else "stacks"


def parse_time(text: str | None) -> int | None:
    """Return ns since 1970 of a time as reports write it; None if it is unknown. UTC by default."""
    if not text:
        return None
    for pattern in _FORMATS:
        try:
            time = datetime.strptime(text.strip(), pattern)  # noqa: DTZ007 - see below
        except ValueError:
            continue
        break
    else:
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            return None
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    try:
        return round(aware.timestamp() * 1_000_000) * 1000
    except (OverflowError, ValueError):
        return None


def _report_row(report: Report, key: bytes, source: Source) -> dict[str, Any]:
    process, system, exception = report.process, report.system, report.exception
    # The process of a profile is no more than the path of its first image.
    names = process.name or "", source.app
    named = next(filter(None, reversed(names) if report.kind in _PROFILES else names), "")
    raised = "" if exception is None else exception.type or exception.signal or ""
    hang = hang_of(report) or Hang(None, "")
    return {
        "key": key,
        "received": source.received,
        "time": _credible(parse_time(report.incident.time) or source.time, source.received),
        "kind": report_kind(report),
        "format": report.kind.value,
        "app": _text(process.identifier or named),
        "version": _text(process.version or ""),
        "build": _text(process.build or source.build),
        "os": _text(system.os_name or ""),
        "model": _text(system.model or ""),
        "device": _text(_device(report, source)),
        "exception": _text(raised),
        "incident": _text(report.incident.id or ""),
        "raw": source.raw,
        "raw_offset": source.raw_offset,
        "duration": hang.duration,
        "waits_for": _text(hang.waits_for),
    }


def _device(report: Report, source: Source) -> str:
    stated = (report.system.crash_reporter_key or "").strip()
    return source.devices.get(stated, stated) or source.device.strip()


def _credible(time: int, received: int) -> int | None:
    """Return a time that a report states; None if it states none, or its clock was wrong."""
    is_late = time > received + _AHEAD and received >= _EARLIEST
    return None if time < _EARLIEST or is_late else time


def _own_samples(tree: SampledTree) -> Iterator[tuple[list[int], int]]:
    """Yield the path to each node with samples of its own, and their number."""
    own = [node.samples for node in tree.nodes]
    for node in tree.nodes:
        if node.parent is not None:
            own[node.parent] -= node.samples
    for number, samples in enumerate(own):
        if samples <= 0:
            continue
        path: list[int] = []
        at: int | None = number
        while at is not None:
            path.append(at)
            at = tree.nodes[at].parent
        yield path[::-1], samples


def _unit(task: ReportedTask) -> str:
    return f"{task.kind.weight}s" if isinstance(task, Report) else "samples"


def _call(symbol: ReportedSymbol, location: SourceLocation | None) -> _Call:
    file, line = ("", 0) if location is None else (location.path, location.line or 0)
    return _text(symbol.name), _text(file), line, symbol.source.value


def _text(text: str) -> str:
    """Return a text that Arrow holds: valid and of bounded length."""
    return text[:_MAX_LENGTH].encode("utf-8", "replace").decode()


def _table(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def _columns(columns: Sequence[Any], schema: pa.Schema) -> pa.Table:
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
