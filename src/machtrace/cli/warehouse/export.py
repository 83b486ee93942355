"""``machtrace warehouse export``: rows, stacks and received bytes as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from machtrace.cli.options import complete_files, parse_path, quiet_option
from machtrace.cli.warehouse.commands import folder_argument, open_warehouse
from machtrace.model.text import counted

if TYPE_CHECKING:
    from machtrace.warehouse.warehouse import Warehouse

_ROWS = ("parquet", "arrow", "csv", "jsonl")
_STACKS = ("pprof", "speedscope", "firefox", "folded")


@click.command()
@folder_argument
@click.argument("path", metavar="FILE", type=parse_path, shell_complete=complete_files)
@click.option("--query", metavar="SQL", help="The rows of a query, such as 'FROM reports'.")
@click.option("--stacks", metavar="SQL", help="The stacks that this condition selects.")
@click.option("--report", metavar="KEY", help="The bytes of the report with this key.")
@click.option(
    "--format",
    "-f",
    "form",
    metavar="FORMAT",
    type=click.Choice([*_ROWS, *_STACKS], case_sensitive=False),
    help=f"Of rows: {', '.join(_ROWS)} (default: FILE's suffix); of stacks: {', '.join(_STACKS)}.",
)
@quiet_option
def export(
    *,
    folder: Path,
    path: Path,
    query: str | None,
    stacks: str | None,
    report: str | None,
    form: str | None,
) -> None:
    """Write rows, stacks or the bytes of a report to FILE, which appears whole.

    --stacks is a condition over the columns of the view stacks_of_reports. --report writes the file
    that was received, in which other reports may be, too.
    """
    from machtrace.atomic_write import replace_file
    from machtrace.cli.progress import progress_bar

    if [query, stacks, report].count(None) != 2:  # noqa: PLR2004 - all but one
        raise click.UsageError("pass one of --query, --stacks and --report")
    with open_warehouse(folder) as warehouse:
        if query is not None:
            with progress_bar(None, unit="bytes") as progress:
                rows = warehouse.export(path, query, form=form or "", on_bytes=progress.advance)
            sys.stderr.write(f"{counted(rows, 'row')} written\n")
        elif stacks is not None:
            replace_file(str(path), [_stacks(warehouse, folder, stacks, form)])
        else:
            replace_file(str(path), [_received(warehouse, report or "")])


def _received(warehouse: Warehouse, report: str) -> bytes:
    from machtrace.errors import ArgumentError
    from machtrace.warehouse.upkeep.deletion import report_key

    text = "SELECT raw, raw_offset FROM reports WHERE key = ?"
    for row in warehouse.query(text, [report_key(report)]).to_pylist():
        name = Path(row["raw"]).stem
        body = warehouse.received(f"{name}-{row['raw_offset']}")
        if body is not None:
            return body.data
    remedy = "the column raw of the view reports has the log of its bytes, until they are deleted"
    raise ArgumentError("the bytes of this report are not there", remedy=remedy)


def _stacks(warehouse: Warehouse, folder: Path, where: str, form: str | None) -> bytes:
    from machtrace.warehouse.documents import flame_document
    from machtrace.warehouse.function_tree import MAX_NODES

    if form is None or form not in _STACKS:
        raise click.UsageError(f"pass --format for stacks: {', '.join(_STACKS)}")
    return flame_document(warehouse.flame(where, MAX_NODES), str(folder), form)
