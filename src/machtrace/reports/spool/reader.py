"""The agent's spool as a report: a tree of callers for each watched function, weighted by calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from machtrace.model.report import Report
from machtrace.reports.source import ReportSource
from machtrace.reports.spool.records import MAGIC

if TYPE_CHECKING:  # every file is offered to this reader: only spools need numpy
    from machtrace.reports.spool.spool import Spool


def recognises(source: ReportSource) -> bool:
    """Return whether a file is a spool; see :class:`~machtrace.reports.readers.ReportReader`."""
    return source.data.startswith(MAGIC)


def read(source: ReportSource) -> tuple[Report, ...]:
    """Return its one report.

    Raises:
        FormatError: it is of another version, or its head is damaged.
    """
    from machtrace.reports.spool.spool import Spool

    return tuple(_reports(Spool.parse(source.data, source.name)))


def _reports(spool: Spool) -> Iterator[Report]:
    from machtrace.reports.spool.calls import report_of_spool

    yield report_of_spool(spool)
