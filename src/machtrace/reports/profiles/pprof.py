"""Profiles of pprof: a protocol buffer of samples, locations and functions.

Source: ``proto/profile.proto`` of github.com/google/pprof, whose field numbers these are. Addresses
are already inside calls; a location's last line is the function that holds the others.
"""

from __future__ import annotations

from dataclasses import replace

from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.frame_changes import with_changed_frames
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.profile import OUTERMOST, STATES, UNKNOWN, ProfileFrame, SamplingRun
from machtrace.model.report import (
    Report,
    ReportKind,
)
from machtrace.model.snapshot import ProcessInfo, ThreadId, ThreadInfo
from machtrace.reports.images import build_id, uuid_of
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

_FIRST_FIELD = b"\x0a"
"""The key of ``sample_type``, which writers put first."""


_CPU = "cpu", "nanoseconds"
_STATES = {state.value: number for number, state in enumerate(STATES)}


def recognises(source: ReportSource) -> bool:
    """Return whether it is a message with sample types and a table of strings."""
    if not source.data.startswith(_FIRST_FIELD):
        return False
    message = Message(memoryview(source.data), source.name, most=MAX_FIELDS)
    strings = list(message.strings(6)) if message.error is None else []
    return bool(strings) and not strings[0] and any(True for _ in message.messages(1))


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report."""
    return (_Reader(Message(memoryview(source.data), source.name, most=MAX_FIELDS)).report(),)


class _Reader:
    def __init__(self, message: Message) -> None:
        self._strings = list(message.strings(6))
        kinds = [
            (self._text(kind.integer(1)), self._text(kind.integer(2)))
            for kind in message.messages(1)
        ]
        types = [kind for kind, _ in kinds]
        self._value = types.index("samples") if "samples" in types else 0
        self._cpu = kinds.index(_CPU) if _CPU in kinds else UNKNOWN
        self._images = {
            (entry.integer(1) or 0): self._image(entry) for entry in message.messages(3)
        }
        self._functions = {
            (entry.integer(1) or 0): Function(
                self._text(entry.integer(2)), self._text(entry.integer(4))
            )
            for entry in message.messages(5)
        }
        self._frames = {
            (entry.integer(1) or 0): self._frame(entry) for entry in message.messages(4)
        }
        self._builder = ProfileBuilder()
        self._threads: dict[tuple[str, int | None], int] = {}
        self._totals: list[int] = []
        for sample in message.messages(2):
            self._sample(sample)
        self._period = message.signed(12) or 0
        self._started, self._duration = message.signed(9) or 0, message.signed(10) or 0

    def _text(self, number: int | None) -> str:
        return self._strings[number] if number and number < len(self._strings) else ""

    def _image(self, entry: Message) -> BinaryImage:
        start, limit = entry.integer(2) or 0, entry.integer(3) or 0
        # The mapping of code: offsets count from the file's beginning.
        before = entry.integer(4) or 0
        start -= before if before <= start else 0
        path, text = self._text(entry.integer(5)), self._text(entry.integer(6))
        uuid = (uuid_of(text) if "-" in text else None) or build_id(text)
        return BinaryImage(
            path=path,
            uuid=uuid,
            arch=Arch.ARM64,
            format=ImageFormat.identified_by(uuid),
            load_address=Avma(start),
            header_svma=Svma(0),
            size=max(0, limit - start),
        )

    def _frame(self, entry: Message) -> ProfileFrame:
        image = self._images.get(entry.integer(2) or 0)
        address = Avma(entry.integer(3) or 0)
        calls = [
            Call(
                self._functions.get(line.integer(1) or 0, Function("", "")),
                line.integer(2) or None,
                line.integer(3) or None,
            )
            for line in entry.messages(4)
        ]
        return frame_at(image, address, calls)

    def _sample(self, sample: Message) -> None:
        frames = [self._frames[number] for number in sample.integers(1) if number in self._frames]
        values = sample.integers(2)
        weight = values[self._value] if self._value < len(values) else 1
        if not 0 < weight < MAX_COUNT:
            return
        label, number, state = "", None, UNKNOWN
        for entry in sample.messages(3):
            key = self._text(entry.integer(1))
            text, value = self._text(entry.integer(2)), entry.integer(3)
            label = text if key == "thread" else label
            number = value if key in ("tid", "thread_id") else number
            state = _STATES.get(text, UNKNOWN) if key == "state" else state
        thread = self._thread(label, number)
        self._totals[thread] += weight
        rows = self._builder.calls(OUTERMOST, frames)
        cpu_ns = values[self._cpu] if 0 <= self._cpu < len(values) else UNKNOWN
        cpu_ns = cpu_ns if cpu_ns < MAX_COUNT else UNKNOWN
        row = rows[-1] if rows else OUTERMOST
        self._builder.samples.append(0, thread, row, weight, state, cpu_ns)

    def _thread(self, label: str, number: int | None) -> int:
        key = label, number
        if key not in self._threads:
            self._threads[key] = index = len(self._threads)
            self._totals.append(0)
            info: ThreadInfo = labelled_thread(label, index)
            if number is not None:
                info = replace(info, id=ThreadId(number))
            self._builder.begin(sampled(info, 0))
        return self._threads[key]

    def report(self) -> Report:
        """Return the report of all samples."""
        builder, interval = self._builder, self._period if self._period > 0 else INTERVAL_NS
        builder.threads[:] = [
            replace(thread, samples=total)
            for thread, total in zip(builder.threads, self._totals, strict=True)
        ]
        program = next(iter(self._images.values()), None)
        process = ProcessInfo(
            pid=None, path="" if program is None else program.path, arch=Arch.ARM64
        )
        ticks = max(self._totals, default=0)
        profile = named_profile(builder, process, interval, ticks)
        run: SamplingRun = replace(
            profile.run,
            started_at_ns=max(0, self._started),
            duration_ns=self._duration if self._duration > 0 else profile.run.duration_ns,
        )
        images = tuple(dict.fromkeys(self._images.values()))
        report = report_without_architecture(
            replace(profile, run=run, images=images), ReportKind.PPROF
        )
        return with_changed_frames(report, without_offsets)
