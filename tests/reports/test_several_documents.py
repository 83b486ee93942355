"""Files of several documents: lists of reports, a report a line, and what else follows one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from machtrace.errors import FormatError
from machtrace.model.report import Report, ReportKind
from machtrace.reports.machtrace_json import reports_json
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from tests.support.reports.samples import REPORT_SAMPLES

KSCRASH, METRICKIT = (json.loads(REPORT_SAMPLES[kind]) for kind in ("kscrash", "metrickit"))


def read(text: str) -> tuple[Report, ...]:
    """Return the reports in a file."""
    return read_source(ReportSource("given", text.encode("utf-8", "surrogateescape"))).reports


@pytest.mark.parametrize("document", [KSCRASH, METRICKIT], ids=["kscrash", "metrickit"])
@pytest.mark.parametrize("form", ["list", "lines", "without a space"])
def test_each_document_is_read(document: dict[str, Any], form: str) -> None:
    """As if it were alone."""
    line = json.dumps(document)
    text = {
        "list": json.dumps([document, document]),
        "lines": f"{line}\n{line}\n",
        "without a space": line + line,
    }[form]
    alone = read(line)
    assert read(text) == alone + alone


def test_kinds_may_be_mixed() -> None:
    """One of them may be machtrace's own JSON."""
    own = reports_json(read(json.dumps(KSCRASH)))
    text = f"{json.dumps(METRICKIT)}\n{own}{json.dumps(KSCRASH)}"
    kinds = [one.kind for one in read(text)]
    assert kinds[-2:] == [ReportKind.KSCRASH] * 2
    assert set(kinds[:-2]) == {ReportKind.METRICKIT}


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("{0}\n{1}\nwords", '{"a": 1}\nwords'),
        ('[{1}, {0}, {1}, {{"threads": 2}}]', '{"a": 1}\n{"a": 1}\n{"threads": 2}'),
        ("{0}\n```\ngoodbye \udcff", "```\ngoodbye \udcff"),
        ("{0}{{", "{"),
    ],
)
def test_other_objects_are_stored_with_a_report(text: str, after: str) -> None:
    """They stay in order, and a warning states it."""
    (report,) = read(text.format(json.dumps(KSCRASH), '{"a": 1}'))
    (alone,) = read(json.dumps(KSCRASH))
    assert report.details == {**alone.details, "after": after}
    assert report.warnings[-1] == "the file has more, which is not a report"
    assert read(reports_json([report])) == (report,)


@pytest.mark.parametrize("text", ["[]", "[{}, {}]", "[1, 2]", '[{"a": {"crash": 1}}]', "[[{}]]"])
def test_lists_of_other_things_are_no_reports(text: str) -> None:
    """However much there is of them."""
    with pytest.raises(FormatError, match="unknown kind of report"):
        read(text)


def test_a_hundred_thousand_unrelated_objects_are_read_quickly() -> None:
    """Objects without any of the keys are not tried."""
    (report,) = read(json.dumps(KSCRASH) + "{}" * 100_000)
    assert report.details["after"] == "\n".join(["{}"] * 100_000)
