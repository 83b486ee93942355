"""machtrace's own JSON of stacks and of profiles: ``backtrace`` and ``sample --format json``.

The schemas are in ``docs/json-format.md`` and ``docs/sampling.md``. Keys that are not known here
are stored in the details, and written again.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from machtrace.errors import FormatError
from machtrace.model.capture import Capture
from machtrace.model.image import ImageList
from machtrace.model.incident.facts import WaitsFor
from machtrace.model.process_metadata import cause_of_json
from machtrace.model.profile import (
    OUTERMOST,
    STATES,
    UNKNOWN,
    MissingFrames,
    Profile,
    ProfileFrame,
    SampledThread,
    SampleTable,
    SamplingEnd,
    SamplingRun,
    StackTable,
)
from machtrace.model.report import JsonValue, Report, ReportedFrame, ReportedThread, SampledTree
from machtrace.model.snapshot import GilState, ThreadId, ThreadInfo
from machtrace.model.stack import (
    Gap,
    Stop,
    StopReason,
)
from machtrace.model.symbol import (
    CallStack,
    FrameChain,
)
from machtrace.render import json_document, profile_json
from machtrace.reports.machtrace_json import shown
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import WAITS_FOR, capture_of, stored
from machtrace.reports.stacks.json_values import (
    WORD,
    JsonImages,
    JsonObject,
    SchemaError,
    address_or_none,
    enum_member,
    json_column,
    json_list,
    json_number,
    json_object,
    json_objects,
    number_or_none,
    read_frame,
    read_problems,
    read_process,
    text_or_none,
)
from machtrace.reports.stacks.profiles import profile_of
from machtrace.reports.stacks.reported import report_of_capture, report_of_profile

_SCHEMA = 1
_OTHER = "json"
"""The detail of a report, a thread or a frame: keys that have no field."""
_MAX_SHARED = 1 << 20
"""Frames that threads may have by sharing another one's stack."""
_OF_STACKS = frozenset({"schema", "process", "images", "threads"})
_OF_PROFILES = frozenset({"run", "frames", "stacks", "samples"})


def recognises(source: ReportSource) -> bool:
    """Return whether it has the keys of stacks or of a profile."""
    value = source.value
    return (
        isinstance(value, dict)
        and value.keys() >= _OF_STACKS
        and "problems" in value
        and (value.keys() >= _OF_PROFILES or not _OF_PROFILES & value.keys())
    )


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return the one report.

    Raises:
        FormatError: the schema is unknown, or a value violates it.
    """
    document = json_object(source.value)
    if document.get("schema") != _SCHEMA:
        raise FormatError(
            f"schema {shown(document.get('schema'))}",
            source=source.name,
            offset=0,
            remedy=f"read it with a newer machtrace; this one reads {_SCHEMA}",
        )
    try:
        if "samples" in document:
            return (_read_profile(document),)
        return (_read_capture(document),)
    except (SchemaError, ValueError) as error:
        raise source.error(str(error)) from error


def _left(entry: JsonObject, written: JsonObject) -> dict[str, JsonValue]:
    """Return the entries that a written one lacks."""
    return {key: value for key, value in entry.items() if key not in written}


# --- stacks ---


def _read_capture(document: JsonObject) -> Report:
    process = read_process(document)
    images = JsonImages(document, process.arch)
    entries_read = json_objects(document.get("threads"))
    capture = Capture(
        process=process,
        images=ImageList(images.listed),
        stacks=tuple(_stack(entry, images) for entry in entries_read),
        problems=read_problems(document),
    )
    if sum(len(stack.others) * len(stack.frames) for stack in capture.stacks) > _MAX_SHARED:
        raise SchemaError("too many threads share deep stacks")
    of_threads = {
        id(stack.thread): entry for stack, entry in zip(capture.stacks, entries_read, strict=True)
    }
    capture = capture.of_each_thread
    # Threads that share a stack have an entry without frames.
    threads = [of_threads.get(id(stack.thread)) for stack in capture.stacks]
    report = report_of_capture(capture)
    document_again = json_document.document(capture)
    entries: Sequence[JsonObject] = document_again["threads"]
    details = {**report.details}
    if left := _left(document, document_again):
        details[_OTHER] = left
    return replace(
        report,
        details=details,
        threads=tuple(
            thread if entry is None else _with_left(thread, entry, again)
            for thread, entry, again in zip(report.threads, threads, entries, strict=True)
        ),
    )


def _with_left(thread: ReportedThread, entry: JsonObject, again: JsonObject) -> ReportedThread:
    """Return the thread with the keys of its entry and of its frames that have no field."""
    before, after = json_objects(entry.get("frames")), json_objects(again["frames"])
    left = [_left(one, other) for one, other in zip(before, after, strict=True)]
    frames, details = thread.frames, thread.details
    if any(left):
        of_frames = iter(left)
        frames = tuple(
            frame if frame.is_inline else _with_other(frame, next(of_frames)) for frame in frames
        )
    if others := _left(entry, again):
        details = {**details, _OTHER: others}
    return replace(thread, frames=frames, details=details)


def _with_other(frame: ReportedFrame, left: dict[str, JsonValue]) -> ReportedFrame:
    return frame._replace(details={**frame.details, _OTHER: left}) if left else frame


def _stack(entry: JsonObject, images: JsonImages) -> CallStack:
    info = _identity(entry)
    registers = json_object(entry.get("registers") or {})
    frames = tuple(read_frame(item, images) for item in json_objects(entry.get("frames")))
    physical_stop = entry.get("physical_stop")
    remainder = None
    if physical_stop is not None:
        entries = json_objects(entry.get("physical_remainder"))
        rest = tuple(read_frame(item, images) for item in entries)
        gap = _gap(entry.get("physical_gap"))
        remainder = FrameChain(frames=rest, stop=_stop(physical_stop), gap=gap)
    return CallStack(
        thread=info,
        frames=frames,
        stop=_stop(entry.get("stop")),
        gap=_gap(entry.get("gap")),
        stopped_for_ns=number_or_none(entry.get("stopped_for_ns")),
        physical_remainder=remainder,
        registers=tuple((name, json_number(value)) for name, value in registers.items()),
        overflowed_stack=address_or_none(entry.get("overflowed_stack")),
        others=tuple(
            replace(_identity(other), cause=info.cause)
            for other in json_objects(entry.get("others", []))
        ),
    )


def _identity(entry: JsonObject) -> ThreadInfo:
    return ThreadInfo(
        id=ThreadId(json_number(entry.get("id"))),
        index=json_number(entry.get("index"), least=1),
        name=text_or_none(entry.get("name")),
        queue=text_or_none(entry.get("queue")),
        crashed=entry.get("crashed") is True,
        cause=cause_of_json(entry.get("cause")),
        gil=None if entry.get("gil") is None else enum_member(GilState, entry["gil"]),
        waits_for=stored(entry, WAITS_FOR, WaitsFor),
    )


def _stop(value: JsonValue) -> Stop:
    entry = json_object(value)
    return Stop(enum_member(StopReason, entry.get("reason")), address_or_none(entry.get("at")))


def _gap(value: JsonValue) -> Gap | None:
    if value is None:
        return None
    entry = json_object(value)
    return Gap(json_number(entry.get("after")), json_number(entry.get("count")))


def stacks_json(report: Report) -> str:
    """Return the report's stacks as ``machtrace backtrace --format json`` writes them."""
    capture = capture_of(report)
    document = json_document.document(capture)
    for thread, stack, entry in zip(
        report.threads, capture.stacks, document["threads"], strict=False
    ):
        if stack.registers:
            entry["registers"] = dict(stack.registers)
        _restore(entry, thread.details)
        machine_frames = (frame for frame in thread.frames if not frame.is_inline)
        for frame, written in zip(machine_frames, entry["frames"], strict=False):
            _restore(written, frame.details)
    _restore(document, report.details)
    return json.dumps(document, indent=2) + "\n"


def _restore(entry: dict[str, Any], details: JsonObject) -> None:
    left = details.get(_OTHER)
    if isinstance(left, dict):
        for key, value in left.items():
            entry.setdefault(key, value)


# --- profiles ---


def _read_profile(document: JsonObject) -> Report:
    process = read_process(document)
    images = JsonImages(document, process.arch)
    threads = json_objects(document.get("threads"))
    frames = [_profile_frame(entry, images) for entry in json_objects(document.get("frames"))]
    stacks, samples = json_object(document.get("stacks")), json_object(document.get("samples"))
    callers = json_column(stacks, "callers", least=OUTERMOST, below=WORD >> 33)
    of_rows = json_column(stacks, "frames", least=0, below=len(frames))
    columns = (
        json_column(samples, "times_ns", least=0, below=WORD >> 2),
        json_column(samples, "threads", least=0, below=len(threads)),
        json_column(samples, "stacks", least=OUTERMOST, below=len(callers)),
        json_column(samples, "weights", least=0, below=1 << 48),
        _optional_column(samples, "states", _state),
        _optional_column(samples, "cpu_ns", _cpu_ns),
    )
    if len(callers) != len(of_rows) or len({len(column) for column in columns}) != 1:
        raise SchemaError("columns of a table differ in length")
    if any(caller >= row for row, caller in enumerate(callers)):
        raise SchemaError("a stack's caller follows it")
    profile = Profile(
        process=process,
        images=tuple(images.listed),
        threads=tuple(_sampled(entry, index) for index, entry in enumerate(threads, 1)),
        frames=tuple(frames),
        stacks=StackTable(array("i", callers), array("i", of_rows)),
        samples=SampleTable(*map(array, "qiiqbq", columns)),
        run=_run(json_object(document.get("run"))),
        problems=read_problems(document),
    )
    report = report_of_profile(profile)
    written = profile_json.document(profile)
    details = {**report.details}
    if left := _left(document, written):
        details[_OTHER] = left
    pairs = zip(report.trees, threads, written["threads"], strict=True)
    trees = tuple(_tree_with_left(tree, _left(entry, again)) for tree, entry, again in pairs)
    return replace(report, details=details, trees=trees)


_STATES = {state.value: number for number, state in enumerate(STATES)}


def _count(value: JsonValue) -> int | None:
    return None if value is None else json_number(value)


def _state(value: object) -> int | None:
    return _STATES.get(value) if isinstance(value, str) else None


def _cpu_ns(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 48 else None


def _optional_column(
    table: JsonObject, name: str, number: Callable[[object], int | None]
) -> list[int]:
    """Return a column that older files lack, and whose values may be unknown."""
    if name not in table:
        return [UNKNOWN] * len(json_list(table.get("times_ns")))
    column = []
    for value in json_list(table[name]):
        known = UNKNOWN if value is None else number(value)
        if known is None:
            raise SchemaError(f"{shown(value)} in {name} is invalid")
        column.append(known)
    return column


def _tree_with_left(tree: SampledTree, left: dict[str, JsonValue]) -> SampledTree:
    return replace(tree, details={**tree.details, _OTHER: left}) if left else tree


def _profile_frame(entry: JsonObject, images: JsonImages) -> ProfileFrame:
    if "missing" in entry:
        return enum_member(MissingFrames, entry["missing"])
    return read_frame(entry, images)


def _sampled(entry: JsonObject, index: int) -> SampledThread:
    return SampledThread(
        info=ThreadInfo(
            id=ThreadId(json_number(entry.get("id"))),
            index=index,
            name=text_or_none(entry.get("name")),
            queue=text_or_none(entry.get("queue")),
            is_main=entry.get("is_main") is True,
        ),
        samples=json_number(entry.get("samples")),
        stopped_ns=number_or_none(entry.get("stopped_ns")),
        longest_stop_ns=number_or_none(entry.get("longest_stop_ns")),
        running=_count(entry.get("running")),
        cpu_ns=_count(entry.get("cpu_ns")),
        left_out=_count(entry.get("left_out")) or 0,
        merged=_count(entry.get("merged")),
    )


def _run(entry: JsonObject) -> SamplingRun:
    return SamplingRun(
        started_at_ns=json_number(entry.get("started_at_ns")),
        duration_ns=json_number(entry.get("duration_ns"), least=1),
        interval_ns=json_number(entry.get("interval_ns"), least=1),
        ticks=json_number(entry.get("ticks")),
        lost=json_number(entry.get("lost")),
        end=enum_member(SamplingEnd, entry.get("end")),
    )


def profile_document(report: Report) -> str:
    """Return the report's stacks as ``machtrace sample --format json`` writes them."""
    document = profile_json.document(profile_of(report))
    if len(report.trees) == len(document["threads"]):
        for tree, entry in zip(report.trees, document["threads"], strict=True):
            _restore(entry, tree.details)
    _restore(document, report.details)
    return json.dumps(document, separators=(",", ":")) + "\n"
