"""Reports as the formats that they are written in show names."""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.model.report import Report
from machtrace.reports.formats import ReportFormat


def as_shown(reports: Sequence[Report], chosen: ReportFormat) -> Sequence[Report]:
    """For formats that are views, with names as people write them; else as they are."""
    if not chosen.is_view:
        return reports
    from machtrace.symbolizer.demangled_reports import demangled_report

    return [demangled_report(report) for report in reports]
