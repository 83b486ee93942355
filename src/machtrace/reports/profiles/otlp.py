"""Profiles of OpenTelemetry's protocol: a dictionary, and samples that refer to it.

Source: ``profiles/v1development/profiles.proto`` of github.com/open-telemetry/opentelemetry-proto
1.11, whose field numbers these are. That version is in development: a later one may give the same
numbers to other fields. Index 0 of each table is the absent value. Stacks are innermost first, as
are the lines of a location; addresses count as being inside calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.frame_changes import with_changed_frames
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.profile import OUTERMOST, ProfileFrame
from machtrace.model.report import Report, ReportKind
from machtrace.model.snapshot import ProcessInfo
from machtrace.reports.images import build_id
from machtrace.reports.plcrash.wire import Message
from machtrace.reports.profiles.functions import (
    labelled_thread,
    named_profile,
    report_without_architecture,
    sampled,
)
from machtrace.reports.profiles.locations import (
    MAX_COUNT,
    MAX_FIELDS,
    Call,
    Function,
    frame_at,
    without_offsets,
)
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.profiles import INTERVAL_NS, ProfileBuilder

_KEYS = (b"\x0a", b"\x12")
"""The keys of the two fields of a request: profiles by resource, and the dictionary."""
_BUILD_IDS = ("process.executable.build_id.gnu", "process.executable.build_id.go")
_DEVICES = ("host.id", "service.instance.id", "host.name")
_NANOSECONDS = "nanoseconds"

_Value: TypeAlias = str | int | None
_Attributes: TypeAlias = dict[str, _Value]


def recognises(source: ReportSource) -> bool:
    """Return whether it is a request with a dictionary of strings, the first of which is empty."""
    if not source.data.startswith(_KEYS):
        return False
    message = Message(memoryview(source.data), source.name, most=MAX_FIELDS)
    if message.error is not None:
        return False
    strings = list(message.message(2).strings(5))
    return bool(strings) and not strings[0] and any(True for _ in message.messages(1))


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return a report for each profile that has samples.

    Raises:
        FormatError: a message is cut, or has too many fields.
    """
    message = Message(memoryview(source.data), source.name, most=MAX_FIELDS)
    return tuple(_reports(message))


def _reports(message: Message) -> Iterator[Report]:
    dictionary = _Dictionary(message.message(2).checked())
    for resource in message.messages(1):
        facts = dictionary.attributes_of(resource.message(1).messages(1))
        for scope in resource.messages(2):
            for profile in scope.messages(2):
                report = _Profile(profile.checked(), dictionary).report(facts)
                if report.trees:
                    yield report


class _Dictionary:
    """The tables that samples refer to; an index outside of one is the absent value."""

    def __init__(self, message: Message) -> None:
        self._strings = list(message.strings(5))
        self._attributes = [self._attribute(each) for each in message.messages(6)]
        self._functions = [
            Function(self.text(each.integer(1)), self.text(each.integer(3)))
            for each in message.messages(3)
        ]
        self.images = [self._image(each) for each in message.messages(1)]
        frames = [self._frame(each) for each in message.messages(2)]
        self._frames = [None, *frames[1:]]
        self._stacks = [each.integers(1) for each in message.messages(7)]

    def text(self, number: int | None) -> str:
        return self._strings[number] if number and number < len(self._strings) else ""

    def attributes(self, numbers: tuple[int, ...]) -> _Attributes:
        """Return the attributes that a message refers to."""
        return dict(
            self._attributes[number] for number in numbers if 0 < number < len(self._attributes)
        )

    def attributes_of(self, pairs: Iterator[Message]) -> _Attributes:
        """Return the attributes that a message has itself."""
        return {
            pair.text(1) or self.text(pair.integer(3)): self._value(pair.message(2))
            for pair in pairs
        }

    def frames(self, stack: int) -> list[ProfileFrame]:
        """Return the frames of a stack, innermost first."""
        if not 0 < stack < len(self._stacks):
            return []
        known = len(self._frames)
        numbers = (each for each in self._stacks[stack] if each < known)
        return [frame for number in numbers if (frame := self._frames[number]) is not None]

    def _attribute(self, entry: Message) -> tuple[str, _Value]:
        return self.text(entry.integer(1)), self._value(entry.message(2))

    def _value(self, value: Message) -> _Value:
        text = value.text(1)
        if text is None and (number := value.integer(8)) is not None:
            text = self.text(number)
        return value.signed(3) if text is None else text

    def _image(self, entry: Message) -> BinaryImage | None:
        start, limit, before = (entry.integer(each) or 0 for each in (1, 2, 3))
        path = self.text(entry.integer(4))
        facts = self.attributes(entry.integers(5))
        uuid = next(filter(None, (build_id(str(facts.get(name, ""))) for name in _BUILD_IDS)), None)
        if not path and uuid is None:
            return None
        start -= before if before <= start else 0
        return BinaryImage(
            path=path,
            uuid=uuid,
            arch=Arch.ARM64,
            format=ImageFormat.identified_by(uuid),
            load_address=Avma(start),
            header_svma=Svma(0),
            size=max(0, limit - start),
        )

    def _frame(self, entry: Message) -> ProfileFrame | None:
        mapping, address = entry.integer(1) or 0, entry.integer(2) or 0
        image = self.images[mapping] if 0 < mapping < len(self.images) else None
        calls = [
            Call(
                self._function(line.integer(1) or 0),
                line.integer(2) or None,
                line.integer(3) or None,
            )
            for line in entry.messages(3)
        ]
        if image is None and not address and not calls:
            return None
        return frame_at(image, Avma(address), calls)

    def _function(self, number: int) -> Function:
        return self._functions[number] if number < len(self._functions) else Function("", "")


class _Profile:
    def __init__(self, message: Message, dictionary: _Dictionary) -> None:
        self._dictionary = dictionary
        kind, period = message.message(1), message.message(5)
        self._facts = dictionary.attributes(message.integers(11))
        self._started, self._duration = message.integer(3) or 0, message.integer(4) or 0
        is_time = dictionary.text(period.integer(2)) == _NANOSECONDS
        self._period = (message.signed(6) or 0) if is_time else 0
        is_weighted = dictionary.text(kind.integer(2)) == _NANOSECONDS and self._period > 0
        self._weight = self._period if is_weighted else 1
        self._builder = ProfileBuilder()
        self._threads: dict[tuple[str, int], int] = {}
        self._totals: list[int] = []
        for sample in message.messages(2):
            self._sample(sample)

    def _sample(self, sample: Message) -> None:
        values, times = sample.integers(4), sample.integers(5)
        # One value for each time, or only one of both.
        weight = sum(values) // self._weight if values else len(times)
        if not 0 < weight < MAX_COUNT:
            return
        facts = self._dictionary.attributes(sample.integers(2))
        name, number = str(facts.get("thread.name") or ""), facts.get("thread.id")
        key = name, number if isinstance(number, int) and number >= 0 else -1
        thread = self._threads.setdefault(key, len(self._threads))
        if thread == len(self._totals):
            self._totals.append(0)
            label = f"{name or 'thread'} [{key[1]}]" if key[1] >= 0 else name
            self._builder.begin(sampled(labelled_thread(label, thread), 0))
        self._totals[thread] += weight
        rows = self._builder.calls(OUTERMOST, self._dictionary.frames(sample.integer(1) or 0))
        self._builder.samples.append(0, thread, rows[-1] if rows else OUTERMOST, weight)

    def report(self, resource: Mapping[str, _Value]) -> Report:
        """Return the report of the samples of a resource."""
        builder, interval = self._builder, self._period if self._period > 0 else INTERVAL_NS
        builder.threads[:] = [
            replace(thread, samples=total)
            for thread, total in zip(builder.threads, self._totals, strict=True)
        ]
        text = partial(_text, {**resource, **self._facts})
        path = text("process.executable.path") or text("process.executable.name")
        process = ProcessInfo(pid=None, path=path, arch=Arch.ARM64)
        profile = named_profile(builder, process, interval, max(self._totals, default=0))
        run = replace(profile.run, started_at_ns=self._started)
        if self._duration:
            run = replace(run, duration_ns=self._duration)
        report = report_without_architecture(replace(profile, run=run), ReportKind.OTLP)
        pid = {**resource, **self._facts}.get("process.pid")
        report = replace(
            report,
            process=replace(
                report.process,
                identifier=text("service.name") or None,
                version=text("service.version") or None,
                pid=pid if isinstance(pid, int) else None,
            ),
            system=replace(
                report.system,
                os_name=text("os.description") or text("os.name") or text("os.type") or None,
                crash_reporter_key=next(filter(None, map(text, _DEVICES)), None),
            ),
        )
        return with_changed_frames(report, without_offsets)


def _text(facts: Mapping[str, _Value], name: str) -> str:
    value = facts.get(name)
    return value if isinstance(value, str) else ""
