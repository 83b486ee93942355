"""Parts of pages: tables, bounded texts, links, times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

from machtrace.frozen import dataclass
from machtrace.reports.html.markup import element, text

LONGEST = 400
"""Characters of a name that are shown; all of it is in the JSON and in downloads."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    is_number: bool = False


def shown(value: object, most: int = LONGEST) -> str:
    """Escape a text from a report, of at most ``most`` characters, whatever its direction."""
    words = str(value)
    if len(words) <= most:
        return element("bdi", text(words))
    return element("bdi", text(words[:most])) + f"… <small>{len(words):,} characters</small>"


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], caption: str, *, class_: str = ""
) -> str:
    """Return a table that scrolls by itself.

    Args:
        columns: its head.
        rows: cells as HTML; the first one of a row is its heading.
        caption: its name for those who do not see it, as text.
        class_: classes of the element, besides its own.
    """
    head = "".join(
        element("th", text(each.name), scope="col", class_="number" if each.is_number else None)
        for each in columns
    )
    body: list[str] = []
    for row in rows:
        cells = [element("th", row[0], scope="row")]
        cells += [
            element("td", content, class_="number" if column.is_number else None)
            for column, content in zip(columns[1:], row[1:], strict=True)
        ]
        body.append(element("tr", "".join(cells)))
    inner = element("thead", element("tr", head)) + element("tbody", "".join(body))
    scroller = element("table", inner, class_=class_ or None)
    return element(
        "div", scroller, class_="scroll", tabindex="0", role="region", aria_label=caption
    )


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
