"""Reports in the formats of stacks and profiles, through the writers of captures and profiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO
from typing import TextIO

from machtrace.errors import ArgumentError
from machtrace.model.capture import Capture
from machtrace.model.profile import Profile
from machtrace.model.report import Report
from machtrace.render import bs, firefox, folded, lldb, nsthread, pprof, sample_text, speedscope
from machtrace.reports.analysis.reported_stacks import capture_of, profile_of


def _captures(reports: Sequence[Report], write: Callable[[Capture, TextIO], None]) -> str:
    captures = [capture for capture in map(capture_of, reports) if capture.stacks]
    if not captures and any(report.trees for report in reports):
        raise ArgumentError(
            "the report has sampled trees but no threads",
            remedy="choose sample, folded, speedscope, firefox or pprof",
        )
    sink = StringIO()
    for number, capture in enumerate(captures):
        if number:
            sink.write("\n")
        write(capture, sink)
    return sink.getvalue()


def _profiles(reports: Sequence[Report], write: Callable[[Profile, TextIO], None]) -> str:
    sink = StringIO()
    for report in reports:
        write(profile_of(report), sink)
    return sink.getvalue()


def nsthread_text(reports: Sequence[Report]) -> str:
    """See :mod:`~machtrace.render.nsthread`.

    Raises:
        ArgumentError: the reports have trees of samples alone.
    """
    return _captures(reports, nsthread.write)


def bs_text(reports: Sequence[Report]) -> str:
    """See :mod:`~machtrace.render.bs`.

    Raises:
        ArgumentError: the reports have trees of samples alone.
    """
    return _captures(reports, bs.write)


def lldb_text(reports: Sequence[Report]) -> str:
    """See :mod:`~machtrace.render.lldb`.

    Raises:
        ArgumentError: the reports have trees of samples alone.
    """
    return _captures(reports, lldb.write)


def folded_text(reports: Sequence[Report]) -> str:
    """See :mod:`~machtrace.render.folded`; of several reports the stacks of all."""
    return _profiles(reports, folded.write)


def sample_report(reports: Sequence[Report]) -> str:
    """See :mod:`~machtrace.render.sample_text`."""
    return _profiles(reports, sample_text.write)


def speedscope_json(reports: Sequence[Report]) -> str:
    """See :mod:`~machtrace.render.speedscope`."""
    return _profiles(reports, speedscope.write)


def firefox_json(reports: Sequence[Report]) -> str:
    """See :mod:`~machtrace.render.firefox`."""
    return _profiles(reports, firefox.write)


def pprof_data(reports: Sequence[Report]) -> bytes:
    """See :mod:`~machtrace.render.pprof`; several files are concatenated."""
    return b"".join(pprof.data(profile_of(report)) for report in reports)
