"""A scanned app as text: the matrix of libraries and data, then each finding with its places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from machtrace.audit.baseline import Change, Comparison
from machtrace.audit.findings import AuditReport, Finding, Occurrence
from machtrace.audit.policies import Severity
from machtrace.audit.scan.attribution import Evidence
from machtrace.audit.scan.image import Certainty
from machtrace.model.text import counted

SHOWN = 3
"""Places of a finding that are shown."""
_MAX_FUNCTION_LENGTH = 72


def verdict(report: AuditReport) -> str:
    """Return the first line: the number of findings of each severity."""
    counts = {
        each: sum(finding.severity is each for finding in report.findings) for each in Severity
    }
    images = counted(len(report.app.images), "image")
    if not any(counts.values()):
        return f"{report.app.path}: nothing found in {images}"
    parts = [counted(counts[each], each.value) for each in Severity if counts[each]]
    return f"{report.app.path}: {', '.join(parts)} in {images}"


def matrix(report: AuditReport, language: str = "en") -> list[tuple[str, ...]]:
    """Return the calls by library and category: the heading, then a row for each pair.

    Columns: library, category, calls that are certain or likely, possible ones.
    """
    sure: dict[tuple[str, str], int] = defaultdict(int)
    possible: dict[tuple[str, str], int] = defaultdict(int)
    for image in report.app.images:
        for site in image.scan.sites:
            library = image.attribution(site).library
            key = library, site.rule.category_in(language)
            (possible if site.certainty is Certainty.POSSIBLE else sure)[key] += 1
    rows = [
        (*key, str(sure.get(key, 0)), str(possible.get(key, 0)))
        for key in sorted({*sure, *possible})
    ]
    return [("LIBRARY", "DATA", "CALLS", "POSSIBLE"), *rows]


def finding_lines(
    finding: Finding, *, every: bool = False, comparison: Comparison | None = None
) -> Iterator[str]:
    """Yield a finding: its sentence, then the places.

    Args:
        finding: which.
        comparison: with an earlier report; calls that it does not have come first.
        every: whether to show all places rather than the first :data:`SHOWN`.
    """
    state, occurrences = "", finding.occurrences
    if comparison is not None:
        change = comparison.changes[finding.identity]
        added = comparison.added[finding.identity]
        state = f" ({change.value})"
        if change is Change.MORE:
            state = f" ({counted(len(added), 'new call')})"
            occurrences = (*added, *(each for each in occurrences if each not in added))
    yield f"{finding.severity.value}{state}: {finding.message}"
    shown: Sequence[Occurrence] = occurrences if every else occurrences[:SHOWN]
    for occurrence in shown:
        yield f"    {place(occurrence)}"
    more = len(finding.occurrences) - len(shown)
    if more:
        yield f"    … {more} more"


def place(occurrence: Occurrence) -> str:
    """Return an occurrence: the call, the function that makes it, and how certain that is."""
    site = occurrence.site
    function = site.function or f"unnamed_{site.function_offset:x}"
    if len(function) > _MAX_FUNCTION_LENGTH:
        function = f"{function[: _MAX_FUNCTION_LENGTH - 1]}…"
    distance = site.offset - site.function_offset
    text = f"{site.rule.watch} in {function} + {distance}, {occurrence.image}"
    attribution = occurrence.attribution
    if attribution.evidence not in (Evidence.IMAGE, Evidence.NONE):
        text = f"{text}, {attribution.library} ({attribution.evidence.value})"
    if site.certainty is Certainty.CERTAIN:
        return text
    return f"{text} ({site.certainty.value}: {site.evidence})"
