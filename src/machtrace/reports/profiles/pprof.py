"""Profiles of pprof: a protocol buffer of samples, locations and functions.

Source: ``proto/profile.proto`` of github.com/google/pprof, whose field numbers these are. Addresses
are already inside calls; a location's last line is the function that holds the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.frame_changes import with_changed_frames
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.profile import OUTERMOST, STATES, UNKNOWN, ProfileFrame, SamplingRun
from machtrace.model.report import (
    Report,
    ReportedFrame,
    ReportKind,
)
from machtrace.model.snapshot import ProcessInfo, ThreadId, ThreadInfo
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust
from machtrace.model.symbol import (
    Certainty,
    Frame,
    FrameStatus,
    InlineFrame,
    PythonFrame,
    SourceLocation,
    Symbol,
    unnamed,
)
from machtrace.reports.images import build_id, uuid_of
from machtrace.reports.plcrash.wire import Message
from machtrace.reports.profiles.functions import (
    labelled_thread,
    missing_frames,
    named_profile,
    report_without_architecture,
    sampled,
)
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.profiles import INTERVAL_NS, ProfileBuilder

_FIRST_FIELD = b"\x0a"
"""The key of ``sample_type``, which writers put first."""
_MOST = 1 << 48
"""Samples of one stack."""
_UNNAMED = re.compile(r"(?P<image>.{1,4096})\+0x(?P<offset>[0-9a-f]{1,16})")


_CPU = "cpu", "nanoseconds"
_STATES = {state.value: number for number, state in enumerate(STATES)}


class _Function(NamedTuple):
    name: str
    path: str


class _Call(NamedTuple):
    function: _Function
    line: int | None
    column: int | None

    @property
    def location(self) -> SourceLocation | None:
        path = self.function.path
        return SourceLocation(path, self.line, self.column) if path else None


def recognises(source: ReportSource) -> bool:
    """Return whether it is a message with sample types and a table of strings."""
    if not source.data.startswith(_FIRST_FIELD):
        return False
    message = Message(memoryview(source.data), source.name)
    strings = list(message.strings(6)) if message.error is None else []
    return bool(strings) and not strings[0] and any(True for _ in message.messages(1))


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report."""
    return (_Reader(Message(memoryview(source.data), source.name)).report(),)


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
            (entry.integer(1) or 0): _Function(
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
            _Call(
                self._functions.get(line.integer(1) or 0, _Function("", "")),
                line.integer(2) or None,
                line.integer(3) or None,
            )
            for line in entry.messages(4)
        ]
        holder = calls[-1] if calls else _Call(_Function("", ""), None, None)
        name = holder.function.name
        if image is None and (missing := missing_frames(name)) is not None:
            return missing
        inlined = [call for call in calls[:-1] if not call.function.path.endswith(".py")]
        python = [call for call in calls[:-1] if call.function.path.endswith(".py")]
        return Frame(
            address=FrameAddress(address, FrameTrust.PREWALKED, AddressKind.ADJUSTED),
            status=FrameStatus.UNKNOWN_IMAGE if image is None else FrameStatus.SYMBOLICATED,
            image=image,
            symbol=_symbol(name, address, image),
            location=holder.location,
            inlined=tuple(InlineFrame(call.function.name, call.location) for call in inlined),
            python=tuple(
                PythonFrame(call.function.name, SourceLocation(call.function.path, call.line))
                for call in python
            ),
        )

    def _sample(self, sample: Message) -> None:
        frames = [self._frames[number] for number in sample.integers(1) if number in self._frames]
        values = sample.integers(2)
        weight = values[self._value] if self._value < len(values) else 1
        if not 0 < weight < _MOST:
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
        cpu_ns = cpu_ns if cpu_ns < _MOST else UNKNOWN
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
        return with_changed_frames(report, _without_offsets)


def _symbol(name: str, address: Avma, image: BinaryImage | None) -> Symbol | None:
    """Return the function; machtrace's names of functions without one have their offset."""
    if image is not None and (match := _UNNAMED.fullmatch(name)) and match["image"] == image.name:
        return unnamed(ImageOffset(int(match["offset"], 16)), None)
    if name in ("", f"{address:#x}" if image is None else image.name):
        return None
    offset = ImageOffset(address if image is None else image.offset_of(address))
    return Symbol(name=name, linkage_name="", offset=offset, size=None, certainty=Certainty.EXACT)


def _without_offsets(frames: Sequence[ReportedFrame]) -> tuple[ReportedFrame, ...]:
    """Return the frames without offsets in functions, whose starts are unknown."""
    return tuple(
        frame if frame.symbol is None else frame._replace(symbol=frame.symbol._replace(offset=None))
        for frame in frames
    )
