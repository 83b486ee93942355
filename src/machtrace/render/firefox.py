"""A profile for the Firefox Profiler (https://profiler.firefox.com).

Source of the format: ``src/types/profile.ts`` and ``docs-developer/CHANGELOG-formats.md`` of
github.com/firefox-devtools/profiler; this is version 70 of the processed format. Later versions of
the profiler upgrade what earlier ones read. Times are milliseconds since sampling began.

The profiler leaves out samples whose innermost frame has the category ``Idle``: stacks of idle
samples end in a frame of their own, a copy with that category.
"""

from __future__ import annotations

import json
from typing import Any, TextIO
from uuid import UUID

from machtrace.model.image import BinaryImage, BuildId
from machtrace.model.profile import OUTERMOST, RUNNING, STATES, UNKNOWN, Profile, SampledThread
from machtrace.model.symbol import Frame, Symbol
from machtrace.model.text import encodable
from machtrace.render.functions import (
    CallStacks,
    FrameCall,
    Function,
    FunctionKind,
    FunctionTable,
    ThreadSamples,
    call_stacks,
    functions_of,
    thread_samples,
)

_LIBRARY = 1
"""``ResourceType`` of a library."""

_CATEGORIES = {FunctionKind.MISSING: 0, FunctionKind.NATIVE: 1, FunctionKind.PYTHON: 2}
"""Indices into the categories that :func:`document` lists."""

_NATIVE, _PYTHON = _CATEGORIES[FunctionKind.NATIVE], _CATEGORIES[FunctionKind.PYTHON]
IDLE = len(_CATEGORIES)
_IDLE_STATES = tuple(state for state in range(len(STATES)) if state != RUNNING)
_ENDS = {
    (UNKNOWN, False): (_NATIVE, 1),
    (UNKNOWN, True): (_PYTHON, 1),
    **{
        (state, is_python): (IDLE, number + is_python * len(_IDLE_STATES))
        for is_python in (False, True)
        for number, state in enumerate(_IDLE_STATES)
    },
}
"""By the state of a sample that does not run, and whether its innermost function is Python's, the
category and the subcategory of the frame."""
STATE_OF_END = {end: state for (state, _), end in _ENDS.items()}
PYTHON_ENDS = frozenset(end for (_, is_python), end in _ENDS.items() if is_python)

_UUID_BYTES = 16

_Table = dict[str, Any]
"""Columns of equal length, and ``length``."""


class FirefoxTables:
    """All of a profile's tables but its stacks; rows of frames are those of ``stacks.calls``."""

    def __init__(self, profile: Profile, functions: FunctionTable, stacks: CallStacks) -> None:
        self._profile = profile
        self._functions = functions
        self._numbers: dict[str, int] = {}
        images = profile.named_images
        self._libraries = {image: number for number, image in enumerate(images)}
        self._symbols: dict[tuple[int, int], int] = {}
        self._paths: dict[str, int] = {}
        self.resources: _Table = _table(
            name=[self._string(image.name) for image in images],
            host=[None] * len(images),
            type=[_LIBRARY] * len(images),
        )
        self.native_symbols: _Table = _table(libIndex=[], address=[], name=[], functionSize=[])
        self.functions: _Table = self._function_table()
        self.frames: _Table = self._frame_table(stacks)
        self.sources: _Table = _table(
            id=[None] * len(self._paths),
            filename=[self._string(path) for path in self._paths],
            startLine=[1] * len(self._paths),
            startColumn=[1] * len(self._paths),
            sourceMapURL=[None] * len(self._paths),
            content=[None] * len(self._paths),
        )
        _measure(self.native_symbols)

    @property
    def strings(self) -> list[str]:
        """All names and paths, by number."""
        return list(self._numbers)

    def _string(self, text: str) -> int:
        return self._numbers.setdefault(encodable(text), len(self._numbers))

    def _function_table(self) -> _Table:
        functions = self._functions.functions
        empty = [None] * len(functions)
        return _table(
            name=[self._string(function.name) for function in functions],
            isJS=[False] * len(functions),
            relevantForJS=[False] * len(functions),
            resource=[self._library(function.image) for function in functions],
            source=[self._source(function) for function in functions],
            lineNumber=empty,
            columnNumber=empty,
            originalLocation=empty,
        )

    def _frame_table(self, stacks: CallStacks) -> _Table:
        rows = [self._frame_row(call) for call in stacks.calls]
        names = (
            *("address", "lib", "inlineDepth", "category", "subcategory", "func", "nativeSymbol"),
            *("innerWindowID", "line", "column", "originalLocation"),
        )
        columns = zip(*rows, strict=True) if rows else ([] for _ in names)
        return _table(**{name: list(column) for name, column in zip(names, columns, strict=True)})

    def _frame_row(self, frame_call: FrameCall) -> tuple[int | None, ...]:
        frame, call = self._profile.frames[frame_call.frame], frame_call.call
        function = self._functions.functions[call.function]
        address, lib, symbol = -1, -1, None
        if function.kind is FunctionKind.NATIVE and isinstance(frame, Frame):
            lib = self._library(frame.image)
            if frame.image is not None:
                if frame.is_placed:
                    address = frame.image.offset_of(frame.address.lookup)
                symbol = self._symbol(lib, frame.symbol)
        location = call.location
        return (
            address,
            lib,
            call.inline_depth,
            _CATEGORIES[function.kind],
            0,
            call.function,
            symbol,
            None,
            None if location is None else location.line,
            None if location is None else location.column,
            None,
        )

    def _library(self, image: BinaryImage | None) -> int:
        return -1 if image is None else self._libraries.get(image, -1)

    def _source(self, function: Function) -> int | None:
        if not function.path:
            return None
        return self._paths.setdefault(function.path, len(self._paths))

    def _symbol(self, lib: int, symbol: Symbol | None) -> int | None:
        if symbol is None or lib < 0:
            return None
        index = self._symbols.get((lib, symbol.offset))
        if index is None:
            index = self._symbols[lib, symbol.offset] = len(self._symbols)
            self.native_symbols["libIndex"].append(lib)
            self.native_symbols["address"].append(symbol.offset)
            self.native_symbols["name"].append(self._string(symbol.name))
            self.native_symbols["functionSize"].append(symbol.size)
        return index


def library(image: BinaryImage) -> dict[str, Any]:
    """Return an image as the profiler's ``Lib``."""
    name, path = encodable(image.name), encodable(image.path)
    return {
        "arch": image.arch.value,
        "name": name,
        "path": path,
        "debugName": name,
        "debugPath": path,
        "breakpadId": _breakpad_id(image.uuid),
        "codeId": str(image.uuid) if isinstance(image.uuid, BuildId) else None,
    }


def _breakpad_id(identifier: UUID | BuildId | None) -> str:
    """Return a UUID's digits, or a build-id's first bytes read as a GUID; and an age of 0."""
    if isinstance(identifier, BuildId):
        start = identifier.value[:_UUID_BYTES].ljust(_UUID_BYTES, b"\0")
        identifier = UUID(bytes_le=start)
    return "" if identifier is None else f"{identifier.hex.upper()}0"


def _table(**columns: list[Any]) -> _Table:
    table: _Table = dict(columns)
    _measure(table)
    return table


def _measure(table: _Table) -> None:
    columns = (column for name, column in table.items() if name != "length")
    table["length"] = len(next(columns))


VERSION = 70
"""``PROCESSED_PROFILE_VERSION`` of ``src/app-logic/constants.ts``."""

_GECKO_VERSION = 36
"""``GECKO_PROFILE_VERSION``, of the form that Firefox itself writes."""


def document(profile: Profile) -> dict[str, Any]:
    """Return the file as values that :mod:`json` can write."""
    functions = functions_of(profile.frames)
    stacks = call_stacks(profile.stacks, functions)
    tables = FirefoxTables(profile, functions, stacks)
    stack_table = _stack_table(stacks)
    ends = _Ends(tables.frames, stack_table, has_states=profile.samples.has_states)
    of_threads = [
        _thread(profile, thread, samples, stacks, ends)
        for thread, samples in zip(profile.threads, thread_samples(profile), strict=True)
    ]
    _measure(tables.frames)
    _measure(stack_table)
    return {
        "meta": _meta(profile),
        "libs": [library(image) for image in profile.named_images],
        "shared": {
            "stackTable": stack_table,
            "frameTable": tables.frames,
            "funcTable": tables.functions,
            "resourceTable": tables.resources,
            "nativeSymbols": tables.native_symbols,
            "sources": tables.sources,
            "sourceLocationTable": {"source": [], "line": [], "column": [], "length": 0},
            "stringArray": tables.strings,
        },
        "threads": of_threads,
    }


def write(profile: Profile, sink: TextIO) -> None:
    """Write the document, with a line end."""
    sink.write(json.dumps(document(profile), separators=(",", ":")))  # dump() is many times slower
    sink.write("\n")


def _meta(profile: Profile) -> dict[str, Any]:
    run = profile.run
    started = run.started_at_ns / 1e6
    return {
        "version": _GECKO_VERSION,
        "preprocessedProfileVersion": VERSION,
        "interval": run.interval_ns / 1e6,
        "startTime": started,
        "endTime": started + run.duration_ns / 1e6,
        "profilingStartTime": 0,
        "profilingEndTime": run.duration_ns / 1e6,
        "processType": 0,
        "product": encodable(profile.process.name) or "process",
        "importedFrom": "machtrace",
        "stackwalk": 1,
        "symbolicated": True,
        "usesOnlyOneStackType": True,
        "sourceCodeIsNotOnSearchfox": True,
        "keepProfileThreadOrder": True,
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
        "markerSchema": [],
        "categories": [
            {"name": "Other", "color": "grey", "subcategories": ["Other"]},
            {"name": "Native", "color": "blue", "subcategories": ["Other", "Unknown state"]},
            {"name": "Python", "color": "yellow", "subcategories": ["Other", "Unknown state"]},
            *([_IDLE_CATEGORY] if profile.samples.has_states else []),
        ],
        "extra": [
            {
                "label": "Sampling",
                "entries": [
                    {"label": "Ticks", "format": "integer", "value": run.ticks},
                    {"label": "Ticks lost", "format": "integer", "value": run.lost},
                    *(
                        []
                        if profile.stopped_share is None
                        else [
                            {
                                "label": "Time that threads were stopped",
                                "format": "percentage",
                                "value": profile.stopped_share,
                            }
                        ]
                    ),
                ],
            }
        ],
    }


_IDLE_CATEGORY = {
    "name": "Idle",
    "color": "transparent",
    "subcategories": [
        f"{STATES[state].value}{suffix}" for suffix in ("", ", in Python") for state in _IDLE_STATES
    ],
}


class _Ends:
    """Adds frames and stacks of samples that are not of running threads to the tables."""

    def __init__(self, frames: _Table, stacks: _Table, *, has_states: bool) -> None:
        self._frames, self._stacks = frames, stacks
        self._has_states = has_states
        self._rows: dict[tuple[int, int], int] = {}
        self._ends: dict[tuple[int, int], int] = {}

    def row(self, row: int, state: int) -> int:
        """Return the row of a stack's copy whose end has the category of a state."""
        if state == RUNNING or not self._has_states:
            return row
        frame = self._stacks["frame"][row]
        known = self._rows.get((row, state))
        if known is None:
            known = self._rows[row, state] = len(self._stacks["frame"])
            offset = self._stacks["prefixOffset"][row]
            self._stacks["frame"].append(self._end(frame, state))
            self._stacks["prefixOffset"].append(known - row + offset if offset else 0)
        return known

    def _end(self, frame: int, state: int) -> int:
        known = self._ends.get((frame, state))
        if known is None:
            known = self._ends[frame, state] = len(self._frames["func"])
            for name, column in self._frames.items():
                if name != "length":
                    column.append(column[frame])
            is_python = self._frames["category"][frame] == _PYTHON
            category, subcategory = _ENDS[state, is_python]
            self._frames["category"][known] = category
            self._frames["subcategory"][known] = subcategory
        return known


def _stack_table(stacks: CallStacks) -> dict[str, Any]:
    callers = stacks.stacks.callers
    offsets = (0 if caller == OUTERMOST else row - caller for row, caller in enumerate(callers))
    return {
        "frame": list(stacks.stacks.frames),
        "prefixOffset": list(offsets),
        "length": len(callers),
    }


def _thread(
    profile: Profile,
    thread: SampledThread,
    samples: ThreadSamples,
    stacks: CallStacks,
    ends: _Ends,
) -> dict[str, Any]:
    info = thread.info
    times = [time / 1e6 for time in samples.times_ns]
    name = info.name or info.queue or f"thread {info.id}"
    columns: dict[str, Any] = {
        "stack": [
            None if row == OUTERMOST else ends.row(stacks.rows[row], state)
            for row, state in zip(samples.stacks, samples.states, strict=True)
        ],
        "time": times,
        "weight": list(samples.weights),
    }
    if any(cpu_ns != UNKNOWN for cpu_ns in samples.cpu_ns):
        columns["threadCPUDelta"] = [
            None if cpu_ns == UNKNOWN else cpu_ns for cpu_ns in samples.cpu_ns
        ]
    return {
        "processType": "default",
        "processName": encodable(profile.process.name) or "process",
        "processStartupTime": 0,
        "processShutdownTime": None,
        "registerTime": times[0] if times else 0,
        "unregisterTime": None,
        "pausedRanges": [],
        "name": encodable(name if thread.merged is None else thread.label),
        "isMainThread": info.is_main,
        "pid": str(profile.process.pid or 0),
        "tid": info.id,
        "samples": columns | {"weightType": "samples", "length": len(times)},
        "markers": {
            "data": [],
            "name": [],
            "startTime": [],
            "endTime": [],
            "phase": [],
            "category": [],
            "length": 0,
        },
    }
