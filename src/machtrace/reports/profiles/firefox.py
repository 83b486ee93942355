"""Profiles of the Firefox Profiler, in the form with tables that all threads share.

Source: ``src/types/profile.ts`` of github.com/firefox-devtools/profiler. machtrace writes
version 70 of that format. Addresses are offsets in libraries, already inside calls.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from machtrace.errors import FormatError
from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.profile import OUTERMOST, RUNNING, UNKNOWN, ProfileFrame
from machtrace.model.report import JsonValue, Report, ReportKind
from machtrace.model.snapshot import ProcessInfo, ThreadId, ThreadInfo
from machtrace.model.stack import NO_ADDRESS, AddressKind, FrameAddress, FrameTrust
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
from machtrace.render.firefox import IDLE, PYTHON_ENDS, STATE_OF_END
from machtrace.reports.images import build_id
from machtrace.reports.profiles.functions import missing_frames, named_profile, sampled
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.json_values import (
    JsonObject,
    SchemaError,
    enum_member,
    json_column,
    json_list,
    json_object,
    json_objects,
    json_text,
    text_or_none,
)
from machtrace.reports.stacks.profiles import INTERVAL_NS, ProfileBuilder
from machtrace.reports.stacks.reported import report_of_profile

_TABLES = frozenset({"stackTable", "frameTable", "funcTable", "stringArray"})
_PYTHON = 2
"""The category of Python's functions in machtrace's profiles."""
_MAX_COUNT = 1 << 31
_NANOSECONDS = 1_000_000
_CPU_UNITS = {"ns": 1, "µs": 1000}
_LATEST = 1 << 42
"""Milliseconds since 1970: in the year 2109."""
_UUID_DIGITS = 32


def recognises(source: ReportSource) -> bool:
    """Return whether it has the profiler's metadata and tables."""
    value = source.value
    if not isinstance(value, dict) or not {"meta", "libs", "threads", "shared"} <= value.keys():
        return False
    meta, shared = value["meta"], value["shared"]
    return isinstance(meta, dict) and isinstance(shared, dict) and shared.keys() >= _TABLES


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report.

    Raises:
        FormatError: a table is malformed.
    """
    try:
        return (_Reader(json_object(source.value)).report(),)
    except (SchemaError, IndexError) as error:
        raise FormatError(
            f"a malformed table: {error}",
            source=source.name,
            offset=0,
            remedy="pass a profile that machtrace wrote",
        ) from error


def _cell(table: JsonObject, column: str, row: int) -> int | None:
    values = table.get(column)
    value = values[row] if isinstance(values, list) and 0 <= row < len(values) else None
    return value if type(value) is int and value >= 0 else None


class _Reader:
    def __init__(self, document: JsonObject) -> None:
        self._document = document
        shared = json_object(document["shared"])
        self._strings = [json_text(text) for text in json_list(shared["stringArray"])]
        self._frames = json_object(shared["frameTable"])
        self._functions = json_object(shared["funcTable"])
        self._symbols = json_object(shared.get("nativeSymbols") or {})
        self._sources = json_object(shared.get("sources") or {})
        stacks = json_object(shared["stackTable"])
        self._frame_of = json_column(stacks, "frame", least=0, below=_MAX_COUNT)
        offsets = json_column(stacks, "prefixOffset", least=0, below=_MAX_COUNT)
        if len(offsets) != len(self._frame_of):
            raise SchemaError("columns of stackTable differ in length")
        self._callers = [
            row - offset if offset else OUTERMOST for row, offset in enumerate(offsets)
        ]
        if any(caller < OUTERMOST for caller in self._callers):
            raise SchemaError("a caller before the table")
        self._images = self._libraries(json_objects(document["libs"]))
        self._builder = ProfileBuilder()
        self._rows: dict[int, int] = {}
        meta = json_object(document["meta"])
        categories = json_objects(meta.get("categories") or [])
        self._has_states = (
            meta.get("importedFrom") == "machtrace"
            and len(categories) > IDLE
            and categories[IDLE].get("name") == "Idle"
        )

    def _libraries(self, entries: list[JsonObject]) -> list[BinaryImage]:
        """Return the images, as large as the offsets in them require."""
        sizes = [1] * len(entries)
        for row in range(len(json_list(self._frames.get("func")))):
            lib, address = _cell(self._frames, "lib", row), _cell(self._frames, "address", row)
            if lib is not None and address is not None and lib < len(sizes):
                sizes[lib] = max(sizes[lib], address + 2)
        return [_library(entry, size) for entry, size in zip(entries, sizes, strict=True)]

    def _string(self, table: JsonObject, column: str, row: int | None) -> str:
        number = None if row is None else _cell(table, column, row)
        return "" if number is None else self._strings[number]

    def _call(self, row: int) -> tuple[str, SourceLocation | None]:
        """Return the function of a frame's row, and its location."""
        function = _cell(self._frames, "func", row)
        if function is None:
            raise SchemaError("a frame without a function")
        path = self._string(self._sources, "filename", _cell(self._functions, "source", function))
        line, column = _cell(self._frames, "line", row), _cell(self._frames, "column", row)
        name = self._string(self._functions, "name", function)
        return name, SourceLocation(path, line, column) if path else None

    def _is_part(self, row: int) -> bool:
        frame = self._frame_of[row]
        return bool(_cell(self._frames, "inlineDepth", frame)) or self._is_python(frame)

    def _is_python(self, frame: int) -> bool:
        end = self._end(frame)
        return end[0] == _PYTHON or (self._has_states and end in PYTHON_ENDS)

    def _end(self, frame: int) -> tuple[int, int]:
        """Return the category and the subcategory of a frame."""
        category = _cell(self._frames, "category", frame)
        return category or 0, _cell(self._frames, "subcategory", frame) or 0

    def _frame(self, rows: list[int]) -> ProfileFrame:
        """Return the frame of rows of the stack table: its own, and its parts' after it."""
        frame = self._frame_of[rows[0]]
        name, location = self._call(frame)
        lib, address = _cell(self._frames, "lib", frame), _cell(self._frames, "address", frame)
        image = None if lib is None else self._images[lib]
        if image is None and (missing := missing_frames(name)) is not None:
            return missing
        inlined: list[InlineFrame] = []
        python: list[PythonFrame] = []
        for row in reversed(rows[1:]):
            called, place = self._call(self._frame_of[row])
            if self._is_python(self._frame_of[row]):
                python.append(PythonFrame(called, place or SourceLocation("")))
            else:
                inlined.append(InlineFrame(called, place))
        is_known = image is not None and address is not None
        return Frame(
            address=FrameAddress(Avma(address or 0), FrameTrust.PREWALKED, AddressKind.ADJUSTED)
            if is_known
            else NO_ADDRESS,
            status=FrameStatus.UNKNOWN_IMAGE if image is None else FrameStatus.SYMBOLICATED,
            image=image,
            symbol=self._symbol(frame, name, image, address or 0),
            location=location,
            inlined=tuple(inlined),
            python=tuple(python),
        )

    def _symbol(
        self, frame: int, name: str, image: BinaryImage | None, address: int
    ) -> Symbol | None:
        number = _cell(self._frames, "nativeSymbol", frame)
        start = None if number is None else _cell(self._symbols, "address", number)
        if start is not None and image is not None and name == f"{image.name}+{start:#x}":
            return unnamed(ImageOffset(start), None)
        if not name or (image is not None and name in (image.name, f"{image.name}+{address:#x}")):
            return None
        return Symbol(
            name=name,
            linkage_name="",
            offset=ImageOffset(address if start is None else start),
            size=None,
            certainty=Certainty.EXACT,
        )

    def _row(self, stack: int) -> int:
        """Return the builder's row of a stack."""
        if stack in self._rows:
            return self._rows[stack]
        groups: list[list[int]] = [[]]
        row = stack
        while row != OUTERMOST:
            groups[-1].append(row)
            if not self._is_part(row) or self._callers[row] == OUTERMOST:
                groups.append([])
            row = self._callers[row]
        frames = [self._frame(group[::-1]) for group in groups if group]
        rows = self._builder.calls(OUTERMOST, frames)
        self._rows[stack] = rows[-1]
        return rows[-1]

    def _thread(self, entry: JsonObject, number: int) -> None:
        samples = json_object(entry.get("samples"))
        stacks, times = json_list(samples.get("stack")), json_list(samples.get("time"))
        weights = json_list(samples.get("weight") or [1] * len(stacks))
        cpu = [self._cpu_ns(delta) for delta in json_list(samples.get("threadCPUDelta") or [])]
        cpu = cpu or [UNKNOWN] * len(stacks)
        if not len(stacks) == len(times) == len(weights) == len(cpu):
            raise SchemaError("columns of samples differ in length")
        name, tid = text_or_none(entry.get("name")), entry.get("tid")
        thread = ThreadId(tid if type(tid) is int and tid >= 0 else number)
        info = ThreadInfo(
            id=thread,
            index=number + 1,
            name=None if name == f"thread {thread}" else name,
            is_main=entry.get("isMainThread") is True,
        )
        total = 0
        for stack, time, weight, cpu_ns in zip(stacks, times, weights, cpu, strict=True):
            if type(weight) is not int or not 0 <= weight < _MAX_COUNT:
                raise SchemaError("a weight that is not a number")
            row = OUTERMOST if stack is None else self._row(_row_number(stack, self._callers))
            total += weight
            state = UNKNOWN if stack is None else self._state(stack)
            self._pending.append((_nanoseconds(time), number, row, weight, state, cpu_ns))
        self._builder.begin(sampled(info, total))

    def _state(self, stack: JsonValue) -> int:
        """Return the state of a sample, by the category of the innermost frame of its stack."""
        if not self._has_states:
            return UNKNOWN
        frame = self._frame_of[_row_number(stack, self._callers)]
        return STATE_OF_END.get(self._end(frame), RUNNING)

    def _cpu_ns(self, delta: JsonValue) -> int:
        if not isinstance(delta, int | float) or not 0 <= delta < _LATEST or not self._cpu_scale:
            return UNKNOWN
        return min(round(delta * self._cpu_scale), _LATEST)

    def report(self) -> Report:
        """Return the report of all threads."""
        self._pending: list[tuple[int, int, int, int, int, int]] = []
        meta = json_object(self._document["meta"])
        unit = json_object(meta.get("sampleUnits") or {}).get("threadCPUDelta")
        self._cpu_scale = _CPU_UNITS.get(str(unit), 0)
        for number, entry in enumerate(json_objects(self._document["threads"])):
            self._thread(entry, number)
        for row in sorted(self._pending, key=lambda sample: sample[:2]):
            self._builder.samples.append(*row)
        threads = self._builder.threads
        ticks = max((thread.samples for thread in threads), default=0)
        process = ProcessInfo(
            pid=self._pid(), path=text_or_none(meta.get("product")) or "", arch=Arch.ARM64
        )
        interval = _nanoseconds(meta.get("interval")) or INTERVAL_NS
        profile = named_profile(self._builder, process, interval, ticks)
        run = replace(
            profile.run,
            started_at_ns=_nanoseconds(meta.get("startTime")),
            duration_ns=_nanoseconds(meta.get("profilingEndTime")) or profile.run.duration_ns,
        )
        made = replace(profile, run=run, images=tuple(self._images))
        return report_of_profile(made, ReportKind.FIREFOX)

    def _pid(self) -> int | None:
        for entry in json_objects(self._document["threads"]):
            pid = str(entry.get("pid"))
            if pid.isascii() and pid.isdecimal() and len(pid) < 10:  # noqa: PLR2004 - a process's
                return int(pid) or None
        return None


def _row_number(value: JsonValue, rows: list[int]) -> int:
    if type(value) is not int or not 0 <= value < len(rows):
        raise SchemaError(f"{value!r} is not a stack")
    return value


def _nanoseconds(value: JsonValue) -> int:
    """Return a time in milliseconds as nanoseconds; 0 for anything else."""
    if not isinstance(value, int | float) or not 0 <= value < _LATEST:
        return 0
    return round(value * _NANOSECONDS)


def _library(entry: JsonObject, size: int) -> BinaryImage:
    breakpad = text_or_none(entry.get("breakpadId")) or ""
    uuid = build_id(text_or_none(entry.get("codeId")) or "")
    identifier: UUID | None = None
    if uuid is None and len(breakpad) > _UUID_DIGITS:
        try:
            identifier = UUID(hex=breakpad[:_UUID_DIGITS])
        except ValueError:
            identifier = None
    try:
        arch = enum_member(Arch, entry.get("arch"))
    except SchemaError:
        arch = Arch.ARM64
    return BinaryImage(
        path=text_or_none(entry.get("path")) or text_or_none(entry.get("name")) or "",
        uuid=uuid or identifier,
        arch=arch,
        format=ImageFormat.identified_by(uuid or identifier),
        load_address=Avma(0),
        header_svma=Svma(0),
        size=size,
    )
