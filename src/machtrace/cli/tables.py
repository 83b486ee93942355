"""Tables and JSON documents on standard output, and numbers as people read them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any


def readable_size(size: int) -> str:
    """Return ``size`` bytes as people read it: ``1.4 GB``, in powers of 1024."""
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
    """Write a table to standard output: drawn on a terminal, else in plain columns.

    ``right``: columns aligned to the right. ``fixed``: columns that are never shortened.
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
    for column, heading in enumerate(headings):
        drawn.add_column(
            heading, justify="right" if column in right else "left", no_wrap=column in fixed
        )
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout).print(drawn)


def write_json(document: dict[str, Any]) -> None:
    """Write a document to standard output, with the schema's number first."""
    import json

    sys.stdout.write(json.dumps({"schema": 1, **document}, indent=2) + "\n")


_GAP = "  "


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()
) -> Iterator[str]:
    """Return the lines of a table in columns as wide as their longest cells.

    ``right``: columns aligned to the right.
    """
    widths = [max(map(_width, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        cells = [
            _padded(cell, width, is_right=column in right)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield _GAP.join(cells).rstrip()


def _width(text: str) -> int:
    """Return the columns that a terminal uses for ``text``: Chinese characters take two."""
    if text.isascii():
        return len(text)
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(each) in "WF" else 1 for each in text)


def _padded(cell: str, width: int, *, is_right: bool) -> str:
    gap = " " * (width - _width(cell))
    return gap + cell if is_right else cell + gap
