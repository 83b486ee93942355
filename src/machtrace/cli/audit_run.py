"""``machtrace audit run``: which code got which private data, as the agent recorded it."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from machtrace.cli.audit import (
    CANNOT_JUDGE,
    FINDINGS,
    Language,
    judged,
    language_option,
    rules_option,
)
from machtrace.cli.options import (
    check_search_paths,
    complete_files,
    format_option,
    parse_path,
    quiet_option,
    search_option,
)
from machtrace.cli.tables import write_json, write_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from machtrace.audit.observed.code import RecordedCode
    from machtrace.audit.observed.report import ObservedReport
    from machtrace.reports.spool.spool import Spool

_SUFFIX = "*.spool"


class RunFormat(StrEnum):
    """Output formats of observed calls."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


@click.command()
@click.argument(
    "spools",
    metavar="SPOOL...",
    nargs=-1,
    required=True,
    type=parse_path,
    shell_complete=complete_files,
)
@rules_option
@click.option(
    "--consent",
    metavar="MOMENT",
    help="When the user consented: call:FUNCTION, mark:TEXT, at:12.5s after the start, or never.",
)
@click.option("--all", "every", is_flag=True, help="Show every stack of a finding.")
@search_option
@language_option
@quiet_option
@format_option(RunFormat)
def run(
    *,
    spools: tuple[Path, ...],
    rules: str,
    consent: str | None,
    every: bool,
    search: tuple[str, ...],
    lang: Language,
    form: RunFormat,
) -> int:
    """State which libraries called what the rules watch, before and after consent.

    SPOOL is a file that the agent wrote, or a folder of *.spool files.

    The exit status is 0 if nothing was found, 1 if there are faults or warnings, 2 if some of the
    calls could not be judged.
    """
    from machtrace.audit.observed.code import RecordedCode
    from machtrace.audit.observed.consent import parse_consent
    from machtrace.audit.observed.recording import recording_of
    from machtrace.audit.observed.report import judge_calls
    from machtrace.audit.policies import Severity
    from machtrace.audit.rules import load_rules
    from machtrace.cli.console import output, warn
    from machtrace.symbolizer.report_names import ReportNames

    def judge() -> int:
        check_search_paths(search)
        loaded = load_rules(rules)
        marker = None if consent is None else parse_consent(consent)
        recording = recording_of(_read(spools), loaded)
        code = RecordedCode(recording.trail, ReportNames(search))
        report = judge_calls(recording, loaded, code.map(), marker=marker)
        with output():
            _write(report, code, form, lang, every=every)
        for line in report.unjudged:
            warn(f"not judged: {line}")
        if report.unjudged:
            return CANNOT_JUDGE
        is_clean = all(each.severity is Severity.NOTE for each in report.findings)
        return 0 if is_clean else FINDINGS

    return judged(judge)


def _read(paths: Sequence[Path]) -> Iterator[Spool]:
    from machtrace.cli.progress import progress_bar
    from machtrace.errors import FileAccessError
    from machtrace.reports.spool.spool import Spool

    files: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob(_SUFFIX)) if path.is_dir() else [path]
        if not inside:
            raise FileAccessError(str(path), f"no {_SUFFIX} in this folder")
        files += inside
    with progress_bar(len(files), unit="files") as progress:
        for file in files:
            yield Spool.read(file)
            progress.advance(1)


def _write(
    report: ObservedReport, code: RecordedCode, form: RunFormat, language: Language, *, every: bool
) -> None:
    from machtrace.audit.observed import text
    from machtrace.audit.observed.document import observed_document, write_csv
    from machtrace.audit.observed.summary import verdict

    if form is RunFormat.JSON:
        write_json(observed_document(report, code))
        return
    if form is RunFormat.CSV:
        write_csv(report, sys.stdout, language.value)
        return
    sys.stdout.write(f"{verdict(report)}\n")
    rows = text.matrix(report, language.value)
    if rows:
        sys.stdout.write("\n")
        write_table(text.HEADING, rows, right=frozenset({4, 5, 6}))
    for finding in report.findings:
        sys.stdout.write("\n")
        for line in text.finding_lines(report, finding, code, every=every):
            sys.stdout.write(f"{line}\n")
    lines = list(text.dead_lines(report))
    sys.stdout.write("".join(f"{line}\n" for line in ("", *lines) if lines))
