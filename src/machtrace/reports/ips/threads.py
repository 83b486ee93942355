"""``threads``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from machtrace.model.json_value import NO_DETAILS, JsonValue
from machtrace.model.reported_frame import Adjustment, ReportedFrame
from machtrace.model.reported_thread import ReportedThread
from machtrace.reports.ips.frames import FrameReader, frame_objects
from machtrace.reports.ips.registers import read_state, state_object
from machtrace.reports.ips.values import take_text, take_word

_THREADS_KEY = "threads"
_ODD = "thread"
"""The detail that an entry is kept under that is no thread."""


def read_threads(
    body: dict[str, Any], frames: FrameReader, warnings: list[str]
) -> tuple[ReportedThread, ...]:
    """Every thread; the innermost frame of each is where it was."""
    entries = body.get(_THREADS_KEY)
    if not isinstance(entries, list) or not entries:
        return ()
    del body[_THREADS_KEY]
    return tuple(_thread(index, one, frames, warnings) for index, one in enumerate(entries))


def _thread(
    index: int, entry: JsonValue, frames: FrameReader, warnings: list[str]
) -> ReportedThread:
    if not isinstance(entry, dict) or _ODD in entry:
        warnings.append(f"threads[{index}] is no thread; it was kept as it is")
        return ReportedThread(index=index, details={_ODD: entry})
    rest: dict[str, Any] = dict(entry)
    crashed = rest.get("triggered") is True
    if crashed:
        del rest["triggered"]
    stack: tuple[ReportedFrame, ...] = ()
    given = rest.get("frames")
    if isinstance(given, list) and given:
        del rest["frames"]
        stack = frames.read(given, innermost=Adjustment.EXACT, where=f"thread {index}")
    return ReportedThread(
        index=index,
        id=take_word(rest, "id"),
        name=take_text(rest, "name"),
        queue=take_text(rest, "queue"),
        crashed=crashed,
        registers=read_state(rest),
        frames=stack,
        details=rest or NO_DETAILS,
    )


def thread_object(
    thread: ReportedThread, absolute: int, bases: Sequence[int | None], *, is_of_ips: bool
) -> JsonValue:
    """The entry that says the same; ``absolute`` and ``bases`` as in :func:`frame_objects`."""
    if is_of_ips and _ODD in thread.details:
        return thread.details[_ODD]
    entry: dict[str, JsonValue] = {}
    if thread.crashed:
        entry["triggered"] = True
    if thread.id is not None:
        entry["id"] = thread.id
    if thread.name is not None:
        entry["name"] = thread.name
    if thread.registers is not None:
        entry["threadState"] = state_object(thread.registers)
    if thread.queue is not None:
        entry["queue"] = thread.queue
    if thread.frames or not is_of_ips:
        entry["frames"] = frame_objects(
            thread.frames,
            innermost=Adjustment.EXACT,
            absolute=absolute,
            bases=bases,
            is_of_ips=is_of_ips,
        )
    return entry | dict(thread.details)
