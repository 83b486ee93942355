"""What the commands of ``machtrace symbols`` have in common: options, sizes, tables.

Tables as aligned text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="The store's folder. Default: $MACHTRACE_SYMBOLS, else one in your data folder.",
        show_default=False,
    ),
]


class Output(StrEnum):
    """How to print a result."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Output, typer.Option("--format", help="How to print the result.")]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdwy]?)", re.IGNORECASE)
_LARGEST = 1 << 62


def parse_size(text: str, option: str) -> int:
    """Bytes, as ``2G``, ``500 MB`` or ``1048576``; units are of 1024."""
    match = _SIZE.fullmatch(text.strip())
    size = -1.0 if match is None else float(match[1]) * _UNITS[match[2].lower()]
    if not 0 <= size <= _LARGEST:
        raise typer.BadParameter(f"{text!r} is no size; write 500M or 2G", param_hint=option)
    return int(size)


def parse_age(text: str, option: str) -> float:
    """Seconds, as ``30d``, ``12h`` or ``2w``; a bare number counts days."""
    match = _TIME.fullmatch(text.strip())
    age = -1.0 if match is None else float(match[1]) * _SECONDS[match[2].lower() or "d"]
    if not 0 <= age <= _LARGEST:
        raise typer.BadParameter(f"{text!r} is no age; write 30d or 12h", param_hint=option)
    return age


def readable_size(size: int) -> str:
    """``size`` bytes as people read it: ``1.4 GB``, of units of 1024."""
    value = float(size)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1024:  # noqa: PLR2004 - a unit
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"


def write_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[int] = frozenset(),
    fixed: frozenset[int] = frozenset(),
) -> None:
    """A table on standard output: drawn where that is a terminal, else in plain columns.

    ``right`` has the columns that are aligned there; ``fixed`` those that are never shortened.
    """
    from machtrace.cli.console import wants_colour

    if not wants_colour(sys.stdout):
        for line in table(headings, rows, right=right):
            sys.stdout.write(f"{line}\n")
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(headings):
        drawn.add_column(
            heading, justify="right" if place in right else "left", no_wrap=place in fixed
        )
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout).print(drawn)


def write_json(document: dict[str, Any]) -> None:
    """A document on standard output, with the schema's number first."""
    import json

    sys.stdout.write(json.dumps({"schema": 1, **document}, indent=2) + "\n")


def counted(count: int, thing: str, things: str | None = None) -> str:
    """``1 file``, ``2 files``."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


_GAP = "  "


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()
) -> Iterator[str]:
    """The heading's line and one for each row, in columns as wide as they need to be.

    ``right`` has the columns that end, rather than begin, below each other.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield _GAP.join(cells).rstrip()
