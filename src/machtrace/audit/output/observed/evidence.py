"""The members of an audit's evidence: the report, all calls and stacks as columns, and the rules.

docs/audit.md describes them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from machtrace.audit.evidence import REPORT
from machtrace.audit.observed.report import ObservedReport
from machtrace.audit.trail.calls import CallFlag, Consent, Process

_CALLS = ("time", "process", "thread", "rule", "stack", "flags", "consent", "calls")
_STACKS = ("parent", "image", "offset")
TABLES = "tables.json"


def evidence_members(
    report: ObservedReport, document: dict[str, Any]
) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents, in their order.

    Args:
        report: the calls, judged.
        document: the same in JSON.
    """
    yield REPORT, _json({"schema": 1, **document})
    yield TABLES, _json(_tables(report))
    for number, (name, data) in enumerate(report.rules.files):
        yield f"rules/{number}-{PurePath(name).name}", data
    trail, answers = report.recording.trail, report.attribution
    for name in _CALLS:
        yield f"calls/{name}.npy", _column(getattr(trail.calls, name))
    yield "calls/judged_consent.npy", _column(report.consent)
    yield "calls/library.npy", _column(answers.asker[answers.row_of_call])
    yield "calls/owner.npy", _column(answers.owner[answers.row_of_call])
    for name in _STACKS:
        yield f"stacks/{name}.npy", _column(getattr(trail.stacks, name))


def _tables(report: ObservedReport) -> dict[str, Any]:
    """Return what the numbers in columns refer to."""
    recording = report.recording
    return {
        "schema": 1,
        "kind": "audit-tables",
        "rules": list(recording.trail.rules),
        "rule_files": [
            {"source": name, "sha256": sha256(data).hexdigest()}
            for name, data in report.rules.files
        ],
        "libraries": [library.name for library in report.attribution.code.libraries],
        "images": [
            {"path": image.path or None, "id": image.uuid or None, "role": image.role.value}
            for image in recording.trail.images
        ],
        "processes": [
            {"source": source, **_process(process)}
            for source, process in zip(recording.sources, recording.trail.processes, strict=True)
        ],
        "flags": {flag.name.lower(): flag.value for flag in CallFlag if flag.name},
        "consent": {state.name.lower(): state.value for state in Consent},
    }


def _process(process: Process) -> dict[str, Any]:
    return {
        "run": process.run,
        "pid": process.pid,
        "app": process.app or None,
        "device": process.device or None,
        "build": process.build or None,
        "from_start": process.from_start,
        "started": process.started,
        "wall_offset": process.wall_offset,
        "wall_error": process.wall_error,
        "resolution": process.resolution,
    }


def _column(values: npt.NDArray[Any]) -> bytes:
    sink = io.BytesIO()
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    np.lib.format.write_array(sink, np.ascontiguousarray(little), (1, 0), allow_pickle=False)
    return sink.getvalue()


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
