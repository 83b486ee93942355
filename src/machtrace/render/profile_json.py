"""A profile as JSON: ``machtrace sample --format json``, schema 1.

Addresses and times are integers. The schema is in ``docs/sampling.md``.
"""

from __future__ import annotations

import json
from typing import Any, TextIO

from machtrace.model.profile import (
    STATES,
    UNKNOWN,
    MissingFrames,
    Profile,
    ProfileFrame,
    SampleTable,
)
from machtrace.model.text import encodable
from machtrace.render.json_document import frame_entry, image_entry, process_entry

SCHEMA = 1
"""Raised when a reader of the old form would misread the new one."""


def document(profile: Profile) -> dict[str, Any]:
    """Return the profile as values that :mod:`json` can write."""
    run, samples = profile.run, profile.samples
    return {
        "schema": SCHEMA,
        "process": process_entry(profile.process),
        "run": {
            "started_at_ns": run.started_at_ns,
            "duration_ns": run.duration_ns,
            "interval_ns": run.interval_ns,
            "ticks": run.ticks,
            "lost": run.lost,
            "end": run.end.value,
            "stopped_share": profile.stopped_share,
        },
        "images": [image_entry(image) for image in profile.images],
        "threads": [
            {
                "id": thread.info.id,
                "name": None if thread.info.name is None else encodable(thread.info.name),
                "queue": thread.info.queue,
                "is_main": thread.info.is_main,
                "samples": thread.samples,
                "stopped_ns": thread.stopped_ns,
                "longest_stop_ns": thread.longest_stop_ns,
                "running": thread.running,
                "cpu_ns": thread.cpu_ns,
                "left_out": thread.left_out,
                "merged": thread.merged,
            }
            for thread in profile.threads
        ],
        "frames": [_frame(frame) for frame in profile.frames],
        "stacks": {
            "callers": list(profile.stacks.callers),
            "frames": list(profile.stacks.frames),
        },
        "samples": {
            "times_ns": list(samples.times_ns),
            "threads": list(samples.threads),
            "stacks": list(samples.stacks),
            "weights": list(samples.weights),
            **_activity(samples),
        },
        "problems": [
            {"thread": problem.thread, "error": str(problem.error)} for problem in profile.problems
        ],
    }


def _activity(samples: SampleTable) -> dict[str, Any]:
    """Return the columns that only some targets provide."""
    columns: dict[str, Any] = {}
    if samples.has_states:
        columns["states"] = [
            None if state == UNKNOWN else STATES[state].value for state in samples.states
        ]
    if samples.has_cpu:
        columns["cpu_ns"] = [None if cpu_ns == UNKNOWN else cpu_ns for cpu_ns in samples.cpu_ns]
    return columns


def write(profile: Profile, sink: TextIO) -> None:
    """Write the document, with a line end."""
    sink.write(json.dumps(document(profile), separators=(",", ":")))  # dump() is many times slower
    sink.write("\n")


def _frame(frame: ProfileFrame) -> dict[str, Any]:
    if isinstance(frame, MissingFrames):
        return {"missing": frame.value}
    entry = frame_entry(0, frame)
    del entry["index"]  # its position depends on the stack
    return entry
