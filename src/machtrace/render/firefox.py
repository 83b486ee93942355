"""A profile for the Firefox Profiler (https://profiler.firefox.com).

Source of the format: ``src/types/profile.ts`` and ``docs-developer/CHANGELOG-formats.md`` of
github.com/firefox-devtools/profiler; this is version 70 of the processed format. Later versions of
the profiler upgrade what earlier ones read. Times are milliseconds since sampling began.
"""

from __future__ import annotations

import json
from typing import Any, TextIO

from machtrace.render.call_stacks import CallStacks, call_stacks
from machtrace.render.functions import functions_of
from machtrace.render.thread_samples import ThreadSamples, thread_samples
from machtrace.model.profile import OUTERMOST, Profile, SampledThread
from machtrace.render.firefox_tables import FirefoxTables, library
from machtrace.render.printable import encodable

VERSION = 70
"""``PROCESSED_PROFILE_VERSION`` of ``src/app-logic/constants.ts``."""

_GECKO_VERSION = 36
"""``GECKO_PROFILE_VERSION``, of the form that Firefox itself writes."""


def document(profile: Profile) -> dict[str, Any]:
    """The file as values that :mod:`json` can write."""
    functions = functions_of(profile.frames)
    stacks = call_stacks(profile.stacks, functions)
    tables = FirefoxTables(profile, functions, stacks)
    threads = zip(profile.threads, thread_samples(profile), strict=True)
    return {
        "meta": _meta(profile),
        "libs": [library(image) for image in profile.images],
        "shared": {
            "stackTable": _stack_table(stacks),
            "frameTable": tables.frames,
            "funcTable": tables.functions,
            "resourceTable": tables.resources,
            "nativeSymbols": tables.native_symbols,
            "sources": tables.sources,
            "sourceLocationTable": {"source": [], "line": [], "column": [], "length": 0},
            "stringArray": tables.strings,
        },
        "threads": [_thread(profile, one, samples, stacks) for one, samples in threads],
    }


def write(profile: Profile, sink: TextIO) -> None:
    """The document, with a line end."""
    json.dump(document(profile), sink, separators=(",", ":"))
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
        "markerSchema": [],
        "categories": [
            {"name": "Other", "color": "grey", "subcategories": ["Other"]},
            {"name": "Native", "color": "blue", "subcategories": ["Other"]},
            {"name": "Python", "color": "yellow", "subcategories": ["Other"]},
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


def _stack_table(stacks: CallStacks) -> dict[str, Any]:
    callers = stacks.stacks.callers
    offsets = (0 if caller == OUTERMOST else row - caller for row, caller in enumerate(callers))
    return {
        "frame": list(stacks.stacks.frames),
        "prefixOffset": list(offsets),
        "length": len(callers),
    }


def _thread(
    profile: Profile, thread: SampledThread, samples: ThreadSamples, stacks: CallStacks
) -> dict[str, Any]:
    info = thread.info
    times = [time / 1e6 for time in samples.times_ns]
    return {
        "processType": "default",
        "processName": encodable(profile.process.name) or "process",
        "processStartupTime": 0,
        "processShutdownTime": None,
        "registerTime": times[0] if times else 0,
        "unregisterTime": None,
        "pausedRanges": [],
        "name": encodable(info.name or info.queue or f"thread {info.id}"),
        "isMainThread": info.is_main,
        "pid": str(profile.process.pid or 0),
        "tid": info.id,
        "samples": {
            "stack": [None if row == OUTERMOST else stacks.rows[row] for row in samples.stacks],
            "time": times,
            "weight": list(samples.weights),
            "weightType": "samples",
            "length": len(times),
        },
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
