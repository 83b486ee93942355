"""``machtrace audit merge``: the spools of many devices and builds as one report."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from machtrace.cli.audit.commands import (
    Language,
    baseline_option,
    evidence_option,
    judged,
    language_option,
    rules_option,
)
from machtrace.cli.audit.report import RunFormat, report_calls
from machtrace.cli.audit.run import spools_in
from machtrace.cli.options import (
    check_search_paths,
    complete_folders,
    count_type,
    format_option,
    parse_path,
    quiet_option,
    search_option,
)
from machtrace.errors import FileAccessError, MachtraceError

if TYPE_CHECKING:
    from machtrace.audit.observed.process_calls import ProcessCalls
    from machtrace.audit.observed.recording import Recording
    from machtrace.audit.rules import RuleSet

_BATCH = 16
"""Spools that a process reads at once."""
_FEW = 64
"""Spools that are read sooner than a process starts."""

_File: TypeAlias = tuple[Path, str]
"""A spool, and its device."""
_Outcome: TypeAlias = "ProcessCalls | str"
"""The calls in a spool, or why it could not be read."""


@click.command()
@click.argument(
    "folders",
    metavar="FOLDER...",
    nargs=-1,
    required=True,
    type=parse_path,
    shell_complete=complete_folders,
)
@rules_option
@click.option(
    "--consent",
    metavar="MOMENT",
    help="When the user consented: call:FUNCTION, mark:TEXT, at:12.5s after the start, or never.",
)
@click.option("--all", "every", is_flag=True, help="Show every stack of a finding.")
@click.option(
    "--jobs",
    "-j",
    metavar="N",
    type=count_type(),
    help="Worker processes (default: chosen from the amount of work).",
)
@baseline_option
@evidence_option
@search_option
@language_option
@quiet_option
@format_option(RunFormat)
def merge(  # noqa: PLR0913 - one parameter for each option
    *,
    folders: tuple[Path, ...],
    rules: str,
    consent: str | None,
    every: bool,
    jobs: int | None,
    baseline: Path | None,
    evidence: Path | None,
    search: tuple[str, ...],
    lang: Language,
    form: RunFormat,
) -> int:
    """Report the calls of a fleet: the *.spool files of many devices and builds.

    They are in FOLDER and in folders below it. A device is a folder in FOLDER, with all spools
    below it; spools in FOLDER itself are of one device, which has its name. A build is an image of
    the program. Each finding states the builds and devices that it was seen in, and whether it is
    new or gone since the oldest build.

    Spools that cannot be read are reported and left out. The exit status is that of audit run.
    """
    from machtrace.audit.observed.consent import parse_consent
    from machtrace.audit.rules import load_rules

    def judge() -> int:
        check_search_paths(search)
        loaded = load_rules(rules)
        marker = None if consent is None else parse_consent(consent)
        recording = _recording(_files(folders), loaded, jobs)
        options = search, form, lang, baseline, evidence
        return report_calls(recording, loaded, marker, *options, every=every)

    return judged(judge)


def _files(folders: Sequence[Path]) -> list[_File]:
    files: dict[Path, str] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileAccessError(str(folder), "not a folder")
        for file in spools_in(folder):
            parts = file.relative_to(folder).parts
            files.setdefault(file, parts[0] if len(parts) > 1 else folder.absolute().name)
    return list(files.items())


def _recording(files: Sequence[_File], rules: RuleSet, jobs: int | None) -> Recording:
    from machtrace.audit.observed.recording import RecordingBuilder
    from machtrace.cli.progress import progress_bar

    builder = RecordingBuilder(rules)
    with (
        progress_bar(len(files), unit="files") as progress,
        closing(_outcomes(files, rules, jobs)) as outcomes,
    ):
        for outcome in outcomes:
            if isinstance(outcome, str):
                builder.add_problem(outcome)
            else:
                builder.add(outcome)
            progress.advance(1)
    return builder.recording()


def _outcomes(files: Sequence[_File], rules: RuleSet, jobs: int | None) -> Generator[_Outcome]:
    begin = partial(_reader, rules)
    processes = jobs or (1 if len(files) < _FEW else min(os.cpu_count() or 1, 8))
    batches = (files[at : at + _BATCH] for at in range(0, len(files), _BATCH))
    if processes == 1:
        read = begin()
        for batch in batches:
            yield from read(batch)
        return
    from machtrace.engines.processes import run_in_processes

    with closing(run_in_processes(batches, begin, processes)) as outcomes:
        for outcome in outcomes:
            yield from outcome


def _reader(rules: RuleSet) -> Callable[[Sequence[_File]], list[_Outcome]]:
    """Return the work of a process."""
    return partial(_read, rules)


def _read(rules: RuleSet, files: Sequence[_File]) -> list[_Outcome]:
    from machtrace.audit.observed.process_calls import process_calls
    from machtrace.reports.spool.spool import Spool

    outcomes: list[_Outcome] = []
    for file, device in files:
        try:
            outcomes.append(process_calls(Spool.read(file), rules, device=device))
        except MachtraceError as error:
            outcomes.append(f"{error}; it is left out")
    return outcomes
