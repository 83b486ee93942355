"""Hangs of reports: their durations, in the words of each source."""

from __future__ import annotations

import pytest

from machtrace.model.report import Incident, Report, ReportKind
from machtrace.reports.analysis.hang import hang_of


def metrickit(measured):
    """Return a diagnostic of a hang."""
    details = {"diagnosticMetaData": {"hangDuration": measured}}
    return Report(kind=ReportKind.METRICKIT, incident=Incident(kind="hang"), details=details)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20 sec", 20),
        ("1,5 s", 1.5),
        ("250 ms", 0.25),
        ("2 min", 120),
        ("a while", None),
        ("", None),
        (7, None),
    ],
)
def test_metrickit_states_it_as_a_measurement(text, seconds):
    hang = hang_of(metrickit(text))
    assert hang.duration == (None if seconds is None else seconds * 1e9)
    assert hang.waits_for == ""


def test_a_spindump_states_it_in_its_head():
    report = Report(
        kind=ReportKind.SPINDUMP, incident=Incident(kind="hang"), details={"Duration": "2.40s"}
    )
    assert hang_of(report).duration == 2_400_000_000


def test_other_reports_are_no_hangs():
    assert hang_of(Report(kind=ReportKind.SPINDUMP, incident=Incident(kind="cpu usage"))) is None
    assert hang_of(Report(kind=ReportKind.KSCRASH)) is None
