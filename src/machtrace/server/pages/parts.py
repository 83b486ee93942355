"""Parts of pages: tables, bounded texts, links, times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

from machtrace.frozen import dataclass
from machtrace.reports.html.markup import element, text

MAX_LENGTH = 400
"""Characters of a name that are shown; all of it is in the JSON and in downloads."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    is_number: bool = False


def shown(value: object, most: int = MAX_LENGTH) -> str:
    """Escape a text from a report, of at most ``most`` characters, whatever its direction."""
    words = str(value)
    if len(words) <= most:
        return element("bdi", text(words))
    return element("bdi", text(words[:most])) + f"… <small>{len(words):,} characters</small>"


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    caption: str,
    *,
    class_: str = "",
    is_cards: bool = False,
) -> str:
    """Return a table that scrolls by itself.

    Args:
        columns: its head.
        rows: cells as HTML; the first one of a row is its heading.
        caption: its name for those who do not see it, as text.
        class_: classes of the element.
        is_cards: whether rows are cards on a narrow screen.
    """
    head = "".join(
        element("th", text(each.name), scope="col", class_="number" if each.is_number else None)
        for each in columns
    )
    body: list[str] = []
    of_first = "number" if columns[0].is_number else None
    for row in rows:
        cells = [element("th", row[0], scope="row", class_=of_first)]
        cells += [
            element(
                "td",
                content,
                class_="number" if column.is_number else None,
                data_label=column.name if is_cards else None,
            )
            for column, content in zip(columns[1:], row[1:], strict=True)
        ]
        body.append(element("tr", "".join(cells)))
    inner = element("thead", element("tr", head)) + element("tbody", "".join(body))
    classes = f"{class_} cards" if is_cards else class_
    scroller = element("table", inner, class_=classes or None)
    return element(
        "div", scroller, class_="scroll", tabindex="0", role="region", aria_label=caption
    )


def bounded(parts: Sequence[str], most: int) -> list[str]:
    """Return the first parts of a page, of at most ``most`` bytes together."""
    chosen: list[str] = []
    size = 0
    for part in parts:
        size += len(part.encode())
        if size > most:
            break
        chosen.append(part)
    return chosen


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names with values, those without a value left out; values are HTML already."""
    rows = "".join(
        f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in pairs if value
    )
    return element("dl", rows, class_="facts")


def address(path: str, **query: object) -> str:
    """Return an address with those parameters that have a value."""
    pairs = {name.rstrip("_"): value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(pairs)}" if pairs else path


def link(where: str, content: str, **attributes: str | None) -> str:
    """Return a link; ``content`` is HTML already."""
    return element("a", content, href=where, **attributes)


def moment(nanoseconds: int) -> str:
    """Return a time, in ns since 1970, in UTC."""
    try:
        time = datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        return text(nanoseconds)
    written = time.strftime("%Y-%m-%d %H:%M")
    return element("time", written, datetime=time.isoformat(timespec="seconds"), class_="nowrap")


def pager(path: str, query: Mapping[str, str], at: int, total: int, size: int) -> str:
    """Return links to the pages before and after one.

    Args:
        path: the address without its parameters.
        query: its other parameters.
        at: the number of this page, from 1.
        total: the number of rows.
        size: rows of a page.
    """
    if total <= size:
        return ""
    last = -(-total // size)
    before = link(address(path, **query, page=at - 1), "← Previous", rel="prev") if at > 1 else ""
    after = link(address(path, **query, page=at + 1), "Next →", rel="next") if at < last else ""
    middle = f"{(at - 1) * size + 1:,}–{min(at * size, total):,} of {total:,}"
    parts = "".join(element("span", each) for each in (before, middle, after))
    return element("nav", parts, class_="pages", aria_label="Pages of the list")
