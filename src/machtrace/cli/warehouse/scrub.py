"""``machtrace warehouse scrub``: the rules by which personal data leaves reports."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from machtrace.cli.options import DocumentFormat, complete_files, format_option, parse_path
from machtrace.cli.tables import write_json, write_table
from machtrace.cli.warehouse.commands import folder_argument
from machtrace.model.text import counted, printable

_MAX_LENGTH = 60
"""Characters of a value in the table."""


@click.command()
@folder_argument
@click.option(
    "--try",
    "files",
    metavar="FILE",
    multiple=True,
    type=parse_path,
    shell_complete=complete_files,
    help="Show what the rules would overwrite in a report; nothing is stored.",
)
@click.option("--defaults", is_flag=True, help="Write the usual rules, if FOLDER has none.")
@format_option()
def scrub(*, folder: Path, files: tuple[Path, ...], defaults: bool, form: DocumentFormat) -> None:
    """Show the rules by which personal data is overwritten before reports are stored.

    They are the file scrub.toml in FOLDER. Without it reports are stored as they come.
    """
    from machtrace.cli.console import output
    from machtrace.warehouse.reader import WarehouseReader
    from machtrace.warehouse.scrubbing.rules import RULES, write_default_rules
    from machtrace.warehouse.scrubbing.scrubber import open_scrubber

    WarehouseReader(folder).close()
    if defaults:
        write_default_rules(folder)
    scrubber = open_scrubber(folder)
    rows = [
        (str(path), each.rule, each.start, _text(each.before), _text(each.text))
        for path in files
        for each in ([] if scrubber is None else scrubber.edits_of(_bytes(path)))
    ]
    path = folder / RULES
    with output():
        if form is DocumentFormat.JSON:
            names = ("file", "rule", "offset", "before", "after")
            edits = [dict(zip(names, row, strict=True)) for row in rows]
            write_json({"rules": None if scrubber is None else str(path), "edits": edits})
            return
        if scrubber is None:
            sys.stdout.write(f"{path} does not exist: reports are stored as they come\n")
        elif files:
            cells = [(rule, str(at), before, after) for _, rule, at, before, after in rows]
            write_table(("RULE", "OFFSET", "BEFORE", "AFTER"), cells, right=frozenset({1}))
            sys.stdout.write(f"{counted(len(rows), 'value')} would be overwritten\n")
        else:
            sys.stdout.write(path.read_text())


def _text(value: bytes) -> str:
    text = printable(value.decode("utf-8", "replace"))
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


def _bytes(path: Path) -> bytes:
    from machtrace.errors import FileAccessError

    try:
        return path.read_bytes()
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None
