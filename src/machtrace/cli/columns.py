"""Tables as aligned text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
