"""``crash.error.profile``: stacks that were sampled, as numbers of frames that are listed once.

Source: KSCrash, ``KSCrashReportFields.h`` and its module *Profiler*, versions 2.5 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.model.json_value import JsonValue
from machtrace.model.reported_frame import Adjustment, ReportedFrame
from machtrace.model.reported_tree import SampledNode, SampledTree
from machtrace.reports.kscrash.threads import ThreadReader
from machtrace.reports.consume import ObjectReader


def read_profile(error: ObjectReader, reader: ThreadReader) -> tuple[SampledTree, ...]:
    """A tree of each thread's samples, merged; none where there is no profile.

    The profile itself stays in the details as it is: trees do not tell when samples were taken.
    """
    profile = error.left.get("profile")
    if not isinstance(profile, dict):
        return ()
    given = profile.get("frames")
    frames = _Frames(given if isinstance(given, list) else [], reader)
    threads = profile.get("threads")
    alone: list[JsonValue] = [{"samples": profile.get("samples")}]
    trees = [_tree(one, frames) for one in (threads if isinstance(threads, list) else alone)]
    if frames.missing:
        error.warnings.append(f"{frames.missing} frames of samples are not listed")
    return tuple(tree for tree in trees if tree is not None)


class _Frames:
    """The listed frames, read when they are first asked for."""

    def __init__(self, given: Sequence[JsonValue], reader: ThreadReader) -> None:
        self._given = given
        self._reader = reader
        self._read: dict[tuple[int, Adjustment], ReportedFrame] = {}
        self.missing = 0

    def get(self, number: JsonValue, adjustment: Adjustment) -> ReportedFrame | None:
        if type(number) is not int or not 0 <= number < len(self._given):
            self.missing += 1
            return None
        key = (number, adjustment)
        if key not in self._read:
            entry = ObjectReader.of(self._given[number], f"frame {number}", [])
            self._read[key] = self._reader.frame(entry, adjustment)
        return self._read[key]


def _tree(thread: JsonValue, frames: _Frames) -> SampledTree | None:
    samples = thread.get("samples") if isinstance(thread, dict) else None
    if not isinstance(thread, dict) or not isinstance(samples, list):
        return None
    counts: list[int] = []
    made: list[tuple[int | None, ReportedFrame]] = []
    places: dict[tuple[int | None, int, Adjustment], int] = {}
    for sample in samples:
        numbers = sample.get("frames") if isinstance(sample, dict) else None
        parent: int | None = None
        if not isinstance(numbers, list):
            continue
        for place in range(len(numbers) - 1, -1, -1):  # the innermost frame comes first
            number = numbers[place]
            adjustment = Adjustment.RETURN if place else Adjustment.EXACT
            frame = frames.get(number, adjustment)
            if frame is None or type(number) is not int:
                continue
            key = (parent, number, adjustment)
            if key not in places:
                places[key] = len(made)
                made.append((parent, frame))
                counts.append(0)
            parent = places[key]
            counts[parent] += 1
    name = thread.get("name")
    return SampledTree(
        nodes=tuple(
            SampledNode(parent, count, frame)
            for (parent, frame), count in zip(made, counts, strict=True)
        ),
        name=name if isinstance(name, str) else None,
        count=len(samples),
        is_attributed=thread.get("is_primary") is True or thread.get("primary") is True,
    )
