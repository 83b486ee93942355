"""A profile for speedscope (https://www.speedscope.app): one sampled profile a thread.

Source of the format: ``file-format-spec.ts`` of github.com/jlfwong/speedscope, and the JSON schema
in its npm package. The frames of a stack are functions; a sample lasts one interval of sampling.
A thread that used processor time has a second profile, behind those of all threads, in which the
same samples last as long as the processor time before each.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TextIO

from machtrace.model.profile import Profile
from machtrace.model.text import encodable
from machtrace.render.call_tree import bounded
from machtrace.render.functions import (
    Function,
    ThreadSamples,
    functions_of,
    thread_samples,
    without_repeats,
)

CPU_SUFFIX = " (CPU)"
"""At the end of the names of profiles of processor time."""
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def document(profile: Profile) -> dict[str, Any]:
    """Return the file as values that :mod:`json` can write."""
    profile = bounded(profile)
    table = functions_of(profile.frames)
    keys = table.keys
    stacks: dict[int, list[int]] = {}

    def stack(row: int) -> list[int]:
        """Return functions, outermost first."""
        functions = stacks.get(row)
        if functions is None:
            frames = list(profile.stacks.frames_of(row))
            functions = stacks[row] = [one for frame in reversed(frames) for one in keys[frame]]
        return functions

    rows: dict[tuple[int, ...], int] = {}

    def first_row(row: int) -> int:
        """Return the first row with the same functions; frames differ by address, too."""
        return rows.setdefault(tuple(stack(row)), row)

    def sampled(name: str, samples: ThreadSamples, nanoseconds: Iterable[int]) -> dict[str, Any]:
        weights = list(nanoseconds)
        return {
            "type": "sampled",
            "name": name,
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": [stack(row) for row in samples.stacks],
            "weights": weights,
        }

    process = encodable(profile.process.name) or "process"
    interval = profile.run.interval_ns
    wall, cpu = [], []
    for thread, samples in zip(profile.threads, thread_samples(profile), strict=True):
        stacks_of = array("i", map(first_row, samples.stacks))
        merged = without_repeats(replace(samples, stacks=stacks_of))
        wall.append(sampled(thread.label, merged, (weight * interval for weight in merged.weights)))
        if any(used > 0 for used in merged.cpu_ns):
            used_ns = (max(0, used) for used in merged.cpu_ns)
            cpu.append(sampled(f"{thread.label}{CPU_SUFFIX}", merged, used_ns))
    return {
        "$schema": _SCHEMA,
        "name": process if profile.process.pid is None else f"{process} [{profile.process.pid}]",
        "exporter": "machtrace",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(function) for function in table.functions]},
        "profiles": [*wall, *cpu],
    }


def write(profile: Profile, sink: TextIO) -> None:
    """Write the document, with a line end."""
    sink.write(json.dumps(document(profile), separators=(",", ":")))  # dump() is many times slower
    sink.write("\n")


def _frame(function: Function) -> dict[str, Any]:
    frame: dict[str, Any] = {"name": encodable(function.name)}
    if function.path:
        frame["file"] = encodable(function.path)
    elif function.image is not None:
        frame["file"] = encodable(function.image.path)
    return frame
