"""Reports as JSON of our own: all that a report holds, and nothing that it does not."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from machtrace.errors import FormatError
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    Adjustment,
    Incident,
    NameSource,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
    ReportedTask,
    ReportedThread,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.model.symbol import SourceLocation
from machtrace.reports.machtrace_json import reports_json, schema_text
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource

DOCUMENTS = Path(__file__).parents[2] / "docs"
FRAME = ReportedFrame(
    Avma(0x1000_4010),
    0,
    ImageOffset(0x4010),
    Adjustment.RETURN,
    ReportedSymbol("-[A b:]", 16, NameSource.DEBUG_INFORMATION),
    SourceLocation("/src/a.m", 7, 3),
    is_inline=True,
    details={"odd": [1, None, {"deep": "\udcff"}]},
)
REPORT = Report(
    kind=ReportKind.APPLE_IPS,
    incident=Incident(id="A", time="2026-01-01", details={"header": 1}),
    process=ReportedProcess(name="app", pid=7, is_translated=False),
    exception=ReportedException(type="EXC_CRASH", raw_codes=(1, -2)),
    application_information=(("libsystem", ("abort() called",)),),
    threads=(
        ReportedThread(
            index=0,
            crashed=True,
            frames=(FRAME, ReportedFrame(None, None, None)),
            registers=ReportedRegisters(
                registers=(ReportedRegister("pc", 2**64 - 1, "said", {"more": True}),)
            ),
        ),
    ),
    trees=(
        SampledTree(nodes=(SampledNode(None, 9, FRAME), SampledNode(0, 4, FRAME)), name="main"),
    ),
    images=(ReportedImage(uuid=UUID(int=1), name="app", load_address=Avma(0x1000_0000), size=9),),
    others=(ReportedTask(process=ReportedProcess(name="other")),),
    details={"unknown": {"z": 1, "a": 2}},
    warnings=("something was odd",),
)


def read(text: str) -> tuple[Report, ...]:
    """Return the reports of a text."""
    return read_source(ReportSource("reports.json", text.encode())).reports


def test_written_stacks_are_read_back() -> None:
    """They have every field, an odd byte, numbers of all sizes, and keys in their order."""
    text = reports_json([REPORT, Report(kind=ReportKind.LLDB)])
    again = read(text)
    assert again == (REPORT, Report(kind=ReportKind.LLDB))
    assert again[0].warnings == REPORT.warnings
    assert list(again[0].details["unknown"]) == ["z", "a"]


def test_the_published_schema_is_that_of_the_model() -> None:
    published = (DOCUMENTS / "report.schema.json").read_text(encoding="utf-8")
    assert published == schema_text(), "run `make schema`"


def test_written_reports_match_the_schema() -> None:
    """Another validator of JSON Schema accepts it."""
    jsonschema = pytest.importorskip("jsonschema", reason="a peer that validates JSON")
    jsonschema.validate(json.loads(reports_json([REPORT])), json.loads(schema_text()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"report_schema": 1, "reports": [{}]}, json.loads(schema_text()))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "novel"}, "is not one of ips"),
        ({"kind": 3}, "is not one of ips"),
        ({"threads": {}}, "is not a list"),
        ({"threads": [{}]}, "index is missing"),
        ({"threads": [{"index": "1"}]}, "is not of type integer"),
        ({"threads": [{"index": True}]}, "is not of type integer"),
        ({"strange": 1}, "'strange' is not a field"),
        ({"images": [{"uuid": "12"}]}, "is neither a UUID"),
        ({"details": []}, "is not an object"),
        ({"trees": [{"nodes": [{"parent": 0, "samples": 1, "frame": {}}]}]}, "missing"),
    ],
)
def test_violations_of_the_schema_are_refused(change: dict, complaint: str) -> None:
    """The error has one line."""
    document = json.loads(reports_json([Report(kind=ReportKind.LLDB)]))
    document["reports"][0] |= change
    with pytest.raises(FormatError, match=complaint):
        read(json.dumps(document))


def test_a_parent_comes_before_its_children() -> None:
    """A tree whose node names itself is no tree."""
    frame = {"address": 1, "image": None, "offset": None}
    tree = {"nodes": [{"parent": 0, "samples": 1, "frame": frame}]}
    document = {"report_schema": 1, "reports": [{"kind": "lldb", "trees": [tree]}]}
    with pytest.raises(FormatError, match="node 0 has the parent 0"):
        read(json.dumps(document))


def test_another_schema_is_not_guessed_at() -> None:
    """The remedy names the supported one."""
    with pytest.raises(FormatError, match="schema 99") as caught:
        read('{"report_schema": 99, "reports": []}')
    assert "this one reads 1" in caught.value.remedy
