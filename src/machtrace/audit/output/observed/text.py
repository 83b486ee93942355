"""Observed calls as text: findings with their stacks, and what observed nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from machtrace.audit.baseline import Comparison
from machtrace.audit.observed import recall
from machtrace.audit.observed.builds import Builds
from machtrace.audit.observed.code import RecordedCode
from machtrace.audit.observed.report import (
    EVIDENCE,
    UNKNOWN_NAME,
    ObservedFinding,
    ObservedReport,
    ObservedStack,
)
from machtrace.audit.observed.summary import library_calls
from machtrace.audit.trail.app_code import AppSite
from machtrace.audit.trail.libraries import Evidence
from machtrace.audit.trail.stacks import NO_IMAGE, OUTER_MISSING, CodeAddress
from machtrace.model.text import counted

SHOWN, SHOWN_SITES = 2, 3
"""Stacks and sites of a finding that are shown."""
HEADING = ("LIBRARY", "OWNER", "DATA", "CALLED", "WITHOUT CONSENT", "WITH", "UNSTATED")
COVERAGE_HEADING = ("LIBRARY", "CALLED", "REACHED", "SITES")
_MAX_DEAD = 8
"""Rules of one reason that are listed one by one."""


def matrix(report: ObservedReport, language: str = "en") -> list[tuple[str, ...]]:
    """Return a row for each library, owner and function."""
    return [
        (
            row.library,
            row.owner,
            row.rule.category_in(language),
            row.rule.watch,
            *(f"{calls:,}" for calls in (row.without_consent, row.with_consent, row.unstated)),
        )
        for row in library_calls(report)
    ]


def coverage_line(report: ObservedReport) -> str:
    """Return how many of the call sites were reached; empty without the app's files."""
    coverage = report.coverage
    if coverage is None:
        return ""
    line = f"coverage: {coverage.reached} of {counted(len(coverage.sites), 'call site')} reached"
    places = len({each.place for each in coverage.unlisted})
    if not places:
        return line
    return f"{line}; calls from {counted(places, 'place')} where the scan lists none"


def coverage_rows(report: ObservedReport) -> list[tuple[str, ...]]:
    """Return a row for each library and function that has call sites."""
    rows = () if report.coverage is None else report.coverage.rows()
    return [
        (row.library or UNKNOWN_NAME, row.rule.watch, f"{row.reached:,}", f"{row.sites:,}")
        for row in rows
    ]


def missed_lines(report: ObservedReport) -> Iterator[str]:
    """Yield the call sites that were not reached."""
    for each in () if report.coverage is None else report.coverage.missed():
        yield f"not reached: {site_text(each)}"


def site_text(site: AppSite) -> str:
    """Return a call site: what it calls, its function, and its image."""
    call = site.site
    file = site.image.path.rpartition("/")[2] or site.image.uuid
    if not call.function:
        return f"{call.rule.watch} at {file} + {call.offset:#x}"
    return f"{call.rule.watch} in {call.function} + {call.offset - call.function_offset}, {file}"


def finding_lines(
    report: ObservedReport,
    finding: ObservedFinding,
    code: RecordedCode,
    comparison: Comparison | None = None,
    builds: Builds | None = None,
    *,
    every: bool = False,
) -> Iterator[str]:
    """Yield a finding: its sentence, then its stacks."""
    state = "" if comparison is None else f" ({comparison.changes[finding.identity].value})"
    yield f"{finding.severity.value}{state}: {finding.message}"
    where = "" if builds is None else builds.text(finding)
    if where:
        yield f"    {where}"
    shown = finding.stacks if every else finding.stacks[:SHOWN]
    for stack in shown:
        yield f"    {counted(stack.calls, 'call')}: {asker_text(stack)}"
        yield from (f"      {line}" for line in stack_lines(report, stack, code))
    more = len(finding.stacks) - len(shown)
    if more:
        yield f"    … {counted(more, 'more stack')}"
    places = finding.occurrences if every else finding.occurrences[:SHOWN_SITES]
    for place in places:
        function = place.site.function or f"{place.site.function_offset:#x}"
        yield f"    in {function}, {place.image} + {place.site.offset:#x}"
    if len(places) < len(finding.occurrences):
        yield f"    … {counted(len(finding.occurrences) - len(places), 'more site')}"


def asker_text(stack: ObservedStack) -> str:
    """Return whose the calls are, and how that is known."""
    asker = stack.asker
    owner = "" if asker.owner == asker.library else f", added by {asker.owner}"
    is_known = asker.evidence != EVIDENCE[Evidence.NONE]
    evidence = f"by {asker.evidence}" if is_known else "its image has no evidence of libraries"
    parts = "; ".join((evidence, *asker.circumstances))
    return f"{asker.library}{owner} ({parts})"


def stack_lines(report: ObservedReport, stack: ObservedStack, code: RecordedCode) -> Iterator[str]:
    """Yield the frames of a stack, innermost first; the asker's has a mark."""
    for number, address in enumerate(stack.frames):
        mark = ">" if number == stack.asker.frame else " "
        yield f"{mark} {number:<3} {frame_text(report, address, code)}"


def frame_text(report: ObservedReport, address: CodeAddress, code: RecordedCode) -> str:
    """Return a frame: its image, and its function or offset."""
    if address.image == NO_IMAGE:
        missing = address.offset == OUTER_MISSING
        return "… frames are missing" if missing else f"{address.offset:#018x}"
    image = report.recording.trail.images[address.image]
    file = image.path.rpartition("/")[2] or image.uuid
    name, distance = code.name(address), code.distance(address)
    if not name:
        return f"{file} + {address.offset:#x}"
    return f"{file}  {name}" if distance is None else f"{file}  {name} + {distance}"


def dead_lines(report: ObservedReport, *, every: bool = True) -> Iterator[str]:
    """Yield the rules that could observe nothing; unless ``every``, many of one reason together."""
    recording = report.recording
    dead = Counter((each.watch, each.reason) for each in recording.dead)
    rows = Counter((reason, number) for (_, reason), number in dead.items())
    for (reason, number), rules in rows.items():
        of = f"{reason} ({counted(number, 'process', 'processes')})"
        if rules > _MAX_DEAD and not every:
            yield f"dead: {counted(rules, 'rule')}: {of}; --all lists them"
            continue
        for (watch, why), times in dead.items():
            if (why, times) == (reason, number):
                yield f"dead: {watch}: {of}"
    if recording.unwatched:
        yield f"not watched: {counted(recording.unwatched, 'rule')} of {len(report.rules)}"
    if recording.unruled:
        yield f"watched without a rule: {', '.join(recording.unruled)}"
    yield from recording.costs


def recall_lines(report: ObservedReport) -> Iterator[str]:
    """Yield what the system itself recorded, if its report was passed."""
    if report.recall is not None:
        yield from recall.recall_lines(report.recall)
