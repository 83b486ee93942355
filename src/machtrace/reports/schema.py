"""The published schema: ``docs/report.schema.json``, JSON Schema 2020-12."""

from __future__ import annotations

import json
from typing import Any

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportedTask
from machtrace.model.reported_frame import ReportedFrame, ReportedSymbol
from machtrace.model.reported_image import ReportedImage
from machtrace.model.reported_process import (
    Incident,
    LanguageException,
    ReportedException,
    ReportedProcess,
    ReportedSystem,
    ReportedTermination,
)
from machtrace.model.reported_thread import ReportedRegister, ReportedRegisters, ReportedThread
from machtrace.model.reported_tree import SampledNode, SampledTree
from machtrace.model.symbol import SourceLocation
from machtrace.reports.machtrace_json import REPORT_SCHEMA
from machtrace.reports.records import definition

_RECORDS: tuple[Any, ...] = (
    *(Report, ReportedTask, Incident, ReportedProcess, ReportedSystem, ReportedException),
    *(ReportedTermination, LanguageException, ReportedThread, ReportedRegisters, ReportedRegister),
    *(ReportedFrame, ReportedSymbol, SourceLocation, ReportedImage, SampledTree, SampledNode),
)


def schema_text() -> str:
    """The schema, indented."""
    schema: dict[str, JsonValue] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Reports of machtrace",
        "type": "object",
        "properties": {
            "report_schema": {"const": REPORT_SCHEMA},
            "reports": {"type": "array", "items": {"$ref": "#/$defs/Report"}},
        },
        "required": ["report_schema", "reports"],
        "$defs": {kind.__name__: definition(kind) for kind in _RECORDS},
    }
    return json.dumps(schema, indent=2) + "\n"
