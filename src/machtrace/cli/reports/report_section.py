"""Tables under headings: aligned text, or on a terminal tables as it can draw them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from machtrace.cli.columns import table
from machtrace.cli.console import output, wants_colour
from machtrace.render.printable import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, what is said under it, and a table."""

    title: str
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    right: frozenset[int] = frozenset()
    """The columns of numbers."""
    lines: tuple[str, ...] = ()
    """Before the table."""


def show(sections: Iterable[Section]) -> None:
    """Write them on standard output."""
    if wants_colour(sys.stdout):
        _draw(sections)
        return
    with output() as sink:
        for number, section in enumerate(sections):
            if number:
                sink.write("\n")
            sink.write(f"{printable(section.title)}\n")
            for line in section.lines:
                sink.write(f"  {printable(line)}\n")
            if section.rows:
                cells = [tuple(map(printable, row)) for row in section.rows]
                for line in table(section.headings, cells, right=section.right):
                    sink.write(f"  {line}\n")


def _draw(sections: Iterable[Section]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for section in sections:
        console.print(Text(printable(section.title), style="bold"))
        for line in section.lines:
            console.print(Text(f"  {printable(line)}"))
        if section.rows:
            drawn = Table(box=None, pad_edge=False, header_style="dim")
            for place, heading in enumerate(section.headings):
                is_right = place in section.right
                drawn.add_column(heading, justify="right" if is_right else "left", overflow="fold")
            for row in section.rows:
                drawn.add_row(*(Text(printable(cell)) for cell in row))
            console.print(drawn)
        console.print()
