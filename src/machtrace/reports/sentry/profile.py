"""Reader of Sentry's profiles: the sample format, version 1, and chunks, version 2.

Sources: develop.sentry.dev, *Profiles*, *Sample Format V1* and *V2*; sentry-cocoa's
``SentryProfilerState.mm`` and ``SentryProfilerSerialization.m``. Stacks are lists of numbers of
frames, innermost first. The times of samples stay in the details.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from machtrace.model.report import (
    Adjustment,
    Incident,
    JsonValue,
    Report,
    ReportedFrame,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.reports.consume import ObjectReader
from machtrace.reports.sentry.facts import read_images, read_process, read_system, time_of
from machtrace.reports.sentry.frames import FrameReader
from machtrace.reports.source import ReportSource

_PARTS = frozenset({"frames", "stacks", "samples"})
_MAX_NODES = 1_000_000
"""The nodes of all trees: each thread has its own, whereas stacks are shared."""


def recognises(source: ReportSource) -> bool:
    """Return whether it is a profile or a chunk of one."""
    value = source.value
    profile = value.get("profile") if isinstance(value, dict) else None
    return isinstance(profile, dict) and profile.keys() >= _PARTS


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report, with a tree of each thread."""
    document = source.documents[0]
    body = ObjectReader.of(document.value, "", list(document.warnings))
    images, places = read_images(body)
    frames = FrameReader(images, places)
    trees = _trees(body, frames)
    device, system = body.inner("device"), body.inner("os")
    app = body.inner("contexts").inner("app")
    identity = next(
        (text for key in ("chunk_id", "profile_id", "event_id") if (text := body.text(key))), None
    )
    return (
        Report(
            kind=ReportKind.SENTRY,
            incident=Incident(id=identity, time=time_of(body, "timestamp"), kind="profile"),
            process=read_process(body, app, device.text("architecture")),
            system=read_system(body, app, device, system),
            trees=trees,
            images=frames.images.all(),
            details=body.details(),
            warnings=tuple(body.warnings),
        ),
    )


def _trees(body: ObjectReader, frames: FrameReader) -> tuple[SampledTree, ...]:
    profile = body.inner("profile")
    stacks = _Stacks(profile, frames)
    samples = profile.left.get("samples")
    by_thread: dict[str, Counter[int]] = {}
    queues: dict[str, str] = {}
    for sample in samples if isinstance(samples, list) else ():
        if not isinstance(sample, dict) or type(stack := sample.get("stack_id")) is not int:
            stacks.missing += 1
            continue
        thread = str(sample.get("thread_id", ""))
        by_thread.setdefault(thread, Counter())[stack] += 1
        queues.setdefault(thread, str(sample.get("queue_address", "")))
    names = _labels(profile, "thread_metadata", "name")
    labels = _labels(profile, "queue_metadata", "label")
    active = body.inner("transaction").left.get("active_thread_id")
    trees = tuple(
        SampledTree(
            nodes=stacks.tree(counts),
            thread=int(thread) if thread.isdecimal() and len(thread) < 20 else None,  # noqa: PLR2004 - a word
            name=names.get(thread),
            queue=labels.get(queues[thread]),
            count=counts.total(),
            is_attributed=active is not None and str(active) == thread,
        )
        for thread, counts in by_thread.items()
    )
    if stacks.missing:
        body.warnings.append(f"{stacks.missing} samples have a stack or frames that are not listed")
    if stacks.left_out:
        body.warnings.append(f"{stacks.left_out} samples are left out: the trees are too large")
    return trees


def _labels(profile: ObjectReader, table: str, key: str) -> dict[str, str]:
    entries = profile.left.get(table)
    labels: dict[str, str] = {}
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        label = entry.get(key) if isinstance(entry, dict) else None
        if isinstance(label, str):
            labels[name] = label
    return labels


class _Stacks:
    """The listed stacks, whose frames are read on first use."""

    def __init__(self, profile: ObjectReader, reader: FrameReader) -> None:
        self._entries = _list(profile.left.get("frames"))
        self._stacks = _list(profile.left.get("stacks"))
        self._reader = reader
        self._read: dict[tuple[int, Adjustment], ReportedFrame] = {}
        self._room = _MAX_NODES
        self.missing = 0
        """Samples without a listed stack, or with frames that are not listed."""
        self.left_out = 0

    def tree(self, counts: Mapping[int, int]) -> tuple[SampledNode, ...]:
        """Return the nodes of a thread's samples, which are numbers of samples by stack."""
        own: list[int] = []
        made: list[tuple[int | None, ReportedFrame]] = []
        places: dict[tuple[int | None, int, Adjustment], int] = {}
        for number, count in counts.items():
            stack = self._stacks[number] if 0 <= number < len(self._stacks) else None
            if not isinstance(stack, list):
                self.missing += count
                continue
            if len(stack) > self._room:
                self.left_out += count
                continue
            self._room -= len(stack)
            parent: int | None = None
            for place in range(len(stack) - 1, -1, -1):
                entry = stack[place]
                if type(entry) is not int or not 0 <= entry < len(self._entries):
                    self.missing += count
                    continue
                adjustment = Adjustment.RETURN if place else Adjustment.EXACT
                key = (parent, entry, adjustment)
                if key not in places:
                    places[key] = len(made)
                    made.append((parent, self._frame(entry, adjustment)))
                    own.append(0)
                parent = places[key]
                own[parent] += count
        return tuple(
            SampledNode(parent, count, frame)
            for (parent, frame), count in zip(made, own, strict=True)
        )

    def _frame(self, number: int, adjustment: Adjustment) -> ReportedFrame:
        key = (number, adjustment)
        if key not in self._read:
            entry = ObjectReader.of(self._entries[number], f"frame {number}", [])
            self._read[key] = self._reader.frame(entry, adjustment)
        return self._read[key]


def _list(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, list) else ()
