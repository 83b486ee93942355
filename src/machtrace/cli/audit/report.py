"""Observed calls, judged and printed, for the commands that record or read them."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from machtrace.cli.audit.commands import CANNOT_JUDGE, FINDINGS, Language
from machtrace.cli.tables import write_json, write_table

if TYPE_CHECKING:
    from machtrace.audit.baseline import Comparison
    from machtrace.audit.observed.code import RecordedCode
    from machtrace.audit.observed.consent import ConsentMarker
    from machtrace.audit.observed.recall import Recall
    from machtrace.audit.observed.recording import Recording
    from machtrace.audit.observed.report import ObservedReport
    from machtrace.audit.rules import RuleSet
    from machtrace.audit.scan.app import Declarations
    from machtrace.audit.trail.app_code import AppCode
    from machtrace.audit.trail.calls import Trail


class RunFormat(StrEnum):
    """Output formats of observed calls."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    SARIF = "sarif"
    CSV = "csv"


class AppFiles(NamedTuple):
    """The files of the recorded app."""

    path: Path
    link_map: Path | None

    def read(self, trail: Trail, rules: RuleSet, search: tuple[str, ...]) -> AppCode:
        """Return the evidence that they have for recorded calls."""
        from machtrace.audit.scan.link_map import read_link_map
        from machtrace.audit.trail.app_code import read_app_code

        linked = None if self.link_map is None else read_link_map(self.link_map)
        return read_app_code(self.path, trail, rules, link_map=linked, search=search)

    def declarations(self) -> Declarations | None:
        """Return what their manifests declare; None of files of other systems than Apple's."""
        from machtrace.audit.scan.app import read_declarations
        from machtrace.errors import FormatError

        try:
            declarations = read_declarations(self.path)
        except FormatError:
            return None
        return declarations if declarations.units else None


def report_calls(  # noqa: PLR0913 - the options of the commands
    recording: Recording,
    rules: RuleSet,
    marker: ConsentMarker | None,
    search: tuple[str, ...],
    form: RunFormat,
    language: Language,
    baseline: Path | None,
    evidence: Path | None,
    *,
    every: bool,
    recall: Recall | None = None,
    files: AppFiles | None = None,
) -> int:
    """Judge calls, write the evidence, print the report, and return the exit status."""
    from dataclasses import replace

    from machtrace.audit.baseline import compare
    from machtrace.audit.observed.code import RecordedCode
    from machtrace.audit.observed.report import judge_calls
    from machtrace.audit.policies import Severity
    from machtrace.cli.console import output, warn
    from machtrace.symbolizer.report_names import ReportNames

    app = None if files is None else files.read(recording.trail, rules, search)
    declarations = None if files is None else files.declarations()
    libraries, ranges = ((), None) if app is None else (app.libraries, app.ranges)
    if app is not None:
        trail = recording.trail
        recording = replace(recording, trail=replace(trail, images=(*trail.images, *app.images)))
    code = RecordedCode(recording.trail, ReportNames(search), libraries)
    report = judge_calls(
        recording,
        rules,
        code.map(ranges),
        app=app,
        declarations=declarations,
        marker=marker,
        recall=recall,
    )
    comparison = None if baseline is None else compare(report.findings, baseline)
    if evidence is not None:
        _write_evidence(evidence, report, code, comparison)
    with output():
        _write(report, code, comparison, form, language, every=every)
    for line in report.unjudged:
        warn(f"not judged: {line}")
    if report.unjudged:
        return CANNOT_JUDGE
    counted_findings = [
        finding
        for finding in report.findings
        if finding.severity is not Severity.NOTE
        and (comparison is None or comparison.is_news(finding))
    ]
    return FINDINGS if counted_findings else 0


def _write_evidence(
    path: Path, report: ObservedReport, code: RecordedCode, comparison: Comparison | None
) -> None:
    from machtrace import __version__
    from machtrace.audit.evidence import write_evidence
    from machtrace.audit.output.observed.document import observed_document
    from machtrace.audit.output.observed.evidence import evidence_members

    document = observed_document(report, code, comparison)
    write_evidence(path, evidence_members(report, document), __version__)


def _write(
    report: ObservedReport,
    code: RecordedCode,
    comparison: Comparison | None,
    form: RunFormat,
    language: Language,
    *,
    every: bool,
) -> None:
    match form:
        case RunFormat.TEXT:
            _write_text(report, code, comparison, language, every=every)
        case RunFormat.JSON:
            from machtrace.audit.output.observed.document import observed_document

            write_json(observed_document(report, code, comparison))
        case RunFormat.HTML:
            from machtrace.audit.output.observed.page import observed_page

            sys.stdout.write(observed_page(report, code, comparison, language.value))
        case RunFormat.SARIF:
            from machtrace.audit.output.observed.sarif import sarif_document

            json.dump(sarif_document(report, code, comparison), sys.stdout, indent=2)
            sys.stdout.write("\n")
        case RunFormat.CSV:
            from machtrace.audit.output.observed.document import write_csv

            write_csv(report, sys.stdout, language.value)


def _write_text(
    report: ObservedReport,
    code: RecordedCode,
    comparison: Comparison | None,
    language: Language,
    *,
    every: bool,
) -> None:
    from machtrace.audit.observed.builds import builds_of
    from machtrace.audit.observed.summary import verdict
    from machtrace.audit.output.observed import text

    builds = builds_of(report)
    sys.stdout.write(f"{verdict(report)}\n")
    rows = text.matrix(report, language.value)
    if rows:
        sys.stdout.write("\n")
        write_table(text.HEADING, rows, right=frozenset({4, 5, 6}))
    rows = text.coverage_rows(report)
    if rows:
        sys.stdout.write(f"\n{text.coverage_line(report)}\n\n")
        write_table(text.COVERAGE_HEADING, rows, right=frozenset({2, 3}))
        if every:
            sys.stdout.write("".join(f"{line}\n" for line in ("", *text.missed_lines(report))))
    for finding in report.findings:
        sys.stdout.write("\n")
        for line in text.finding_lines(report, finding, code, comparison, builds, every=every):
            sys.stdout.write(f"{line}\n")
    for gone in comparison.gone if comparison is not None else ():
        sys.stdout.write(f"\ngone: {gone.message}\n")
    lines = [*text.dead_lines(report, every=every), *text.recall_lines(report)]
    sys.stdout.write("".join(f"{line}\n" for line in ("", *lines) if lines))
