"""``machtrace audit``: which code gets which private data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from machtrace.cli.application import LazyCommand, lazy_group
from machtrace.cli.options import (
    DocumentFormat,
    check_search_paths,
    complete_files,
    enum_option,
    format_option,
    parse_path,
    quiet_option,
    search_option,
)
from machtrace.cli.tables import write_json, write_table
from machtrace.errors import MachtraceError
from machtrace.model.text import counted

if TYPE_CHECKING:
    from machtrace.audit.baseline import Comparison
    from machtrace.audit.findings import AuditReport
    from machtrace.audit.rules import RuleSet

FINDINGS, CANNOT_JUDGE = 1, 2
"""Exit statuses."""


class AuditFormat(StrEnum):
    """Output formats of a scan."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    SARIF = "sarif"
    CSV = "csv"


class Language(StrEnum):
    """Languages of the categories of data."""

    EN = "en"
    ZH = "zh"


rules_option = click.option(
    "--rules",
    metavar="RULES",
    default="privacy",
    show_default=True,
    shell_complete=complete_files,
    help="The rules: privacy, the built-in set, or a TOML file.",
)
baseline_option = click.option(
    "--baseline",
    metavar="LAST",
    type=parse_path,
    shell_complete=complete_files,
    help="An earlier report, JSON or evidence: show what is new, and exit with 1 for that alone.",
)
evidence_option = click.option(
    "--output",
    "-o",
    "evidence",
    metavar="FILE",
    type=parse_path,
    shell_complete=complete_files,
    help="Write the evidence to this file, too: the report, all calls and stacks, and the rules.",
)
link_map_option = click.option(
    "--link-map",
    metavar="MAP",
    type=parse_path,
    shell_complete=complete_files,
    help="The linker's map of the executable, which states the library of each function.",
)
language_option = enum_option("--lang", members=Language, help="Language of the kinds of data.")


def judged(run: Callable[[], int]) -> int:
    """Return the exit status of ``run``; an error is :data:`CANNOT_JUDGE`, and is printed.

    A build must distinguish findings from an audit that did not happen.
    """
    from machtrace.cli.console import print_error

    try:
        return run()
    except MachtraceError as error:
        print_error(error)
        return CANNOT_JUDGE


@click.command()
@click.argument("app", metavar="APP", type=parse_path, shell_complete=complete_files)
@rules_option
@click.option("--all", "every", is_flag=True, help="Show every call of a finding.")
@click.option(
    "--fix-manifest",
    "manifest",
    is_flag=True,
    help="Print the privacy manifest that would be true of APP; its reasons are for you to choose.",
)
@baseline_option
@link_map_option
@search_option
@language_option
@quiet_option
@format_option(AuditFormat)
def scan(  # noqa: PLR0913 - one parameter for each option
    *,
    app: Path,
    rules: str,
    every: bool,
    manifest: bool,
    baseline: Path | None,
    link_map: Path | None,
    search: tuple[str, ...],
    lang: Language,
    form: AuditFormat,
) -> int:
    """Compare what the code of APP calls with what its manifests declare.

    APP is an .app, .ipa, .xcarchive, framework, Mach-O file, static library, or a folder of them.
    Nothing is run.

    The exit status is 0 if nothing was found, 1 if there are faults or warnings, 2 if APP or a
    part of it could not be judged. With --baseline, faults and warnings that LAST has do not count.
    """
    from machtrace.audit.baseline import compare
    from machtrace.audit.findings import judge
    from machtrace.audit.policies import Severity
    from machtrace.audit.rules import load_rules
    from machtrace.audit.scan.app import scan_app
    from machtrace.audit.scan.link_map import read_link_map
    from machtrace.cli.console import output, print_errors
    from machtrace.cli.progress import progress_bar

    def run() -> int:
        check_search_paths(search)
        loaded = load_rules(rules)
        linked = None if link_map is None else read_link_map(link_map)
        with progress_bar(None, unit="files") as progress:

            def on_image(path: str) -> None:
                progress.show(note=path)
                progress.advance(1)

            scanned = scan_app(app, loaded, link_map=linked, search=search, on_image=on_image)
        report = judge(scanned, loaded)
        comparison = None if baseline is None else compare(report.findings, baseline)
        if manifest:
            _print_manifest(report)
        else:
            with output():
                _write(report, comparison, form, lang, every=every)
        print_errors(report.app.problems)
        if report.app.problems:
            return CANNOT_JUDGE
        counted_findings = [
            finding
            for finding in report.findings
            if finding.severity is not Severity.NOTE
            and (comparison is None or comparison.is_news(finding))
        ]
        return FINDINGS if counted_findings else 0

    return judged(run)


def _write(
    report: AuditReport,
    comparison: Comparison | None,
    form: AuditFormat,
    language: Language,
    *,
    every: bool,
) -> None:
    match form:
        case AuditFormat.TEXT:
            _write_text(report, comparison, language, every=every)
        case AuditFormat.JSON:
            from machtrace.audit.output.document import audit_document

            write_json(audit_document(report, comparison))
        case AuditFormat.HTML:
            from machtrace.audit.output.html import html_page

            sys.stdout.write(html_page(report, comparison, language.value))
        case AuditFormat.SARIF:
            from machtrace.audit.output.sarif import sarif_document

            json.dump(sarif_document(report, comparison), sys.stdout, indent=2)
            sys.stdout.write("\n")
        case AuditFormat.CSV:
            from machtrace.audit.output.rows import write_csv

            write_csv(report, sys.stdout, language.value)


def _write_text(
    report: AuditReport, comparison: Comparison | None, language: Language, *, every: bool
) -> None:
    from machtrace.audit.output.text import finding_lines, matrix, verdict

    sys.stdout.write(f"{verdict(report)}\n")
    heading, *rows = matrix(report, language.value)
    if rows:
        sys.stdout.write("\n")
        write_table(heading, rows, right=frozenset({2, 3}))
    for finding in report.findings:
        sys.stdout.write("\n")
        for line in finding_lines(finding, every=every, comparison=comparison):
            sys.stdout.write(f"{line}\n")
    for gone in comparison.gone if comparison is not None else ():
        sys.stdout.write(f"\ngone: {gone.message}\n")


def _print_manifest(report: AuditReport) -> None:
    from machtrace.audit.findings import needed_categories
    from machtrace.audit.scan.manifest import true_manifest
    from machtrace.cli.console import output, warn

    bundle, needed = needed_categories(report)
    existing = bundle.manifests[0] if bundle is not None and bundle.manifests else None
    with output() as sink:
        sink.write(true_manifest(existing, needed).decode())
    stated = {} if existing is None else existing.reasons
    missing = sorted(category for category in needed if not stated.get(category))
    if missing:
        warn(f"choose reasons for {', '.join(missing)}")


@click.command()
@click.argument(
    "target",
    metavar="[TARGET]",
    required=False,
    type=parse_path,
    shell_complete=complete_files,
)
@rules_option
@language_option
@format_option()
def rules(*, target: Path | None, rules: str, lang: Language, form: DocumentFormat) -> int:
    """Print the rules, or answer for each whether it can match in TARGET.

    TARGET is what machtrace audit scan takes. A rule is resolved if TARGET defines what it watches
    or refers to it, inherited if a superclass has the method, shared if something else has the same
    code or selector, and absent otherwise. The exit status is 2 if a part of TARGET is unreadable.
    """
    from machtrace.audit.rules import load_rules

    return judged(lambda: _answer(load_rules(rules), target, lang, form))


def _answer(loaded: RuleSet, target: Path | None, lang: Language, form: DocumentFormat) -> int:
    from machtrace.audit.output.document import answers_document, rule_document
    from machtrace.audit.resolution import Resolution, resolve_rules
    from machtrace.cli.console import output, print_errors

    if target is None:
        with output():
            if form is DocumentFormat.JSON:
                write_json({"name": loaded.name, "rules": [rule_document(r) for r in loaded.rules]})
            else:
                _write_rules(loaded, lang)
        return 0
    answers = resolve_rules(target, loaded)
    with output():
        if form is DocumentFormat.JSON:
            write_json(answers_document(str(target), answers))
        else:
            rows = [
                (
                    answer.resolution.value,
                    answer.rule.watch,
                    answer.reason,
                    ", ".join(answer.others),
                )
                for answer in answers.answers
            ]
            write_table(("ANSWER", "WATCHED", "WHY", "OTHERS"), rows)
            states = [answer.resolution for answer in answers.answers]
            parts = ", ".join(f"{states.count(each)} {each.value}" for each in Resolution)
            images = counted(answers.images, "image")
            sys.stdout.write(f"{counted(len(loaded), 'rule')}: {parts}, in {images}\n")
    print_errors(answers.problems)
    return CANNOT_JUDGE if answers.problems else 0


def _write_rules(loaded: RuleSet, lang: Language) -> None:
    rows = [
        (rule.watch, rule.category_in(lang.value), ", ".join(rule.required), rule.usage)
        for rule in loaded.rules
    ]
    write_table(("WATCHED", "DATA", "REQUIRED REASON", "INFO.PLIST"), rows)
    sys.stdout.write(f"{counted(len(loaded), 'rule')} in {loaded.name}\n")
    for policy in loaded.policies:
        sys.stdout.write(f"policy {policy}\n")


audit = lazy_group(
    "audit",
    "Find which code gets which private data.",
    {
        "scan": LazyCommand(
            f"{__name__}:scan",
            "Compare what the code of APP calls with what its manifests declare.",
        ),
        "run": LazyCommand(
            "machtrace.cli.audit.run:run",
            "State which libraries called what the rules watch, before and after consent.",
        ),
        "merge": LazyCommand(
            "machtrace.cli.audit.merge:merge",
            "Report the calls of a fleet: the *.spool files of many devices and builds.",
        ),
        "rules": LazyCommand(
            f"{__name__}:rules",
            "Print the rules, or answer for each whether it can match in TARGET.",
        ),
    },
)
