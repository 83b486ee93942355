"""``machtrace warehouse rules`` and ``explain``: which frames make an issue, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from machtrace.cli.options import DocumentFormat, complete_files, format_option, parse_path
from machtrace.cli.tables import write_json, write_table
from machtrace.cli.warehouse.commands import folder_argument, open_warehouse
from machtrace.errors import ArgumentError, FileAccessError
from machtrace.model.text import counted

if TYPE_CHECKING:
    from machtrace.warehouse.grouping.store import Trial
    from machtrace.warehouse.warehouse import Warehouse

_SHOWN = 20
"""Issues that are listed as text."""
_BUILT_IN = "builtin"


@click.command()
@folder_argument
@click.argument(
    "file", metavar="[FILE]", required=False, type=parse_path, shell_complete=complete_files
)
@click.option("--set", "is_set", is_flag=True, help="Group by the rules in FILE from now on.")
@click.option("--remove", "is_removed", is_flag=True, help="Group without rules from now on.")
@format_option()
def rules(
    *, folder: Path, file: Path | None, is_set: bool, is_removed: bool, form: DocumentFormat
) -> None:
    """Print the grouping rules, or which issues those in FILE would merge and split.

    FILE is tried on all that is stored, and nothing is changed without --set; "builtin" is the
    package's own, - is standard input. The syntax is that of Sentry's rules. Decisions stay when
    rules change: the earlier identifiers name the present issues.
    """
    from machtrace.cli.console import output

    if (is_set or is_removed) and (file is None) != is_removed:
        raise ArgumentError("--set takes a FILE, and --remove none", remedy="pass one of them")
    text = None if file is None else _text(file)
    with open_warehouse(folder) as warehouse:
        if is_set or is_removed:
            _set(warehouse, text, form)
            return
        if text is None:
            own = warehouse.groups.rules
            with output():
                if form is DocumentFormat.JSON:
                    write_json({"rules": None if own is None else own.text})
                else:
                    sys.stdout.write("no rules\n" if own is None else own.text)
            return
        trial = warehouse.try_rules(text)
    with output():
        _write_trial(trial, form)


@click.command()
@folder_argument
@click.argument("issue", metavar="ISSUE")
@format_option()
def explain(*, folder: Path, issue: str, form: DocumentFormat) -> None:
    """Print for each frame of an issue's most frequent stack whether it counts, and why."""
    from machtrace.cli.console import output

    with open_warehouse(folder) as warehouse:
        chosen, frames = warehouse.explain(issue)
    basis = chosen.fingerprint.basis.value
    with output():
        if form is DocumentFormat.JSON:
            rows = [
                {"name": frame.name, "image": frame.image, "counts": frame.contributes}
                | {"reason": str(frame)}
                for frame in frames
            ]
            write_json({"issue": chosen.id, "basis": basis, "frames": rows})
            return
        sys.stdout.write(f"{chosen.id}: {basis}\n")
        table = [
            (
                "*" if frame.contributes else "",
                str(frame.place),
                frame.name,
                frame.image,
                str(frame),
            )
            for frame in frames
        ]
        write_table(("", "FRAME", "FUNCTION", "IMAGE", "REASON"), table, right=frozenset({1}))


def _set(warehouse: Warehouse, text: str | None, form: DocumentFormat) -> None:
    from machtrace.cli.console import output

    aliases = warehouse.set_rules(text)
    count = len(warehouse.groups.table().ids)
    with output():
        if form is DocumentFormat.JSON:
            write_json({"issues": count, "earlier": aliases})
        else:
            earlier = counted(len(aliases), "earlier identifier")
            sys.stdout.write(f"{counted(count, 'issue')}, {earlier}\n")


def _write_trial(trial: Trial, form: DocumentFormat) -> None:
    if form is DocumentFormat.JSON:
        write_json({name: value for name, value in trial._asdict().items() if name != "titles"})
        return
    merged = sum(map(len, trial.merged.values()))
    was, now = counted(trial.before, "issue"), counted(trial.after, "issue")
    sys.stdout.write(f"{was} would become {now}: {merged} merged, {len(trial.split)} split\n")
    for word, changes in (("merged", trial.merged), ("split", trial.split)):
        for issue, others in list(changes.items())[:_SHOWN]:
            sys.stdout.write(f"{word}  {issue}  {trial.titles.get(issue, '')}\n")
            for other in others[:_SHOWN]:
                sys.stdout.write(f"    {other}  {trial.titles.get(other, '')}\n")


def _text(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    if str(file) == _BUILT_IN:
        from machtrace.reports.analysis.grouping_rules import builtin_rules

        return builtin_rules().text
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise FileAccessError(str(file), error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise FileAccessError(str(file), "not a text in UTF-8") from None
