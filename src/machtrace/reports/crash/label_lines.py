"""The lines of a text's labels, in the order of its layout or in one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from machtrace.reports.crash.labels import Values, is_backtrace
from machtrace.reports.crash.layout_rows import AFTER, BACKTRACE, GAP, PLACES, ROWS, Row
from machtrace.reports.crash.layouts import Layout

Parts = Mapping[str, Callable[[], Iterable[str]]]
"""The parts of a text that are no labels, and what makes their lines."""


def text_lines(
    layout: Layout, order: list[str] | None, values: Values, parts: Parts
) -> Iterator[str]:
    """All lines.

    Args:
        layout: where labels are, and how wide they are.
        order: the labels of a text that has another order, empty lines as empty texts.
        values: of the labels.
        parts: what is written where the layout's other rows are.
    """
    rows = ROWS[layout] if order is None else _ordered(layout, order, parts)
    was_blank = True
    for row in rows:
        if not row.label:
            if row.is_always or not was_blank:
                yield ""
            was_blank = True
            continue
        lines = [*_row(row, values, parts), *[""] * row.after]
        if len(lines) > row.after:
            yield from lines
            was_blank = not lines[-1]


def _row(row: Row, values: Values, parts: Parts) -> Iterator[str]:
    if row.label in parts:
        yield from parts[row.label]()
    elif row.label == BACKTRACE:
        for label in sorted(filter(is_backtrace, values), key=_number):
            yield from _labelled(row._replace(label=label), values[label])
            yield ""
    else:
        yield from _labelled(row, values.get(row.label, ()))


def _number(label: str) -> int:
    return int(label[len(BACKTRACE) :])


def _labelled(row: Row, values: Iterable[str]) -> Iterator[str]:
    for value in values:
        first, *rest = value.split("\n")
        if row.label.startswith(AFTER):
            yield first
        else:
            label = f"{row.label}:"
            yield f"{label:<{max(0, row.width - 1)}s} {first}" if first else label
        yield from rest


def _ordered(layout: Layout, order: list[str], parts: Parts) -> Iterator[Row]:
    rows = {row.label: row for row in ROWS[layout] if row.label}
    usual = max(row.width for row in ROWS[layout][:4])
    seen: set[str] = set()
    for label in order:
        if not label:
            yield GAP
        elif label not in seen:
            seen.add(label)
            row = rows.get(label)
            yield Row(label, usual) if row is None else row._replace(after=0)
    for row in ROWS[layout]:  # labels of fields that the text had not are not added to it
        if row.label in parts and row.label not in seen:
            yield GAP
            yield row


def is_usual(layout: Layout, labels: Iterable[str]) -> bool:
    """Whether these labels come in the order of the layout, which knows all of them."""
    places = PLACES[layout]
    last = -1
    for label in labels:
        place = places.get(BACKTRACE if is_backtrace(label) else label, -1)
        if place < last or place < 0:
            return False
        last = place
    return True
