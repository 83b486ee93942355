"""Which reports a page is about: a range of time, kind, app, build, and a condition in SQL."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from starlette.datastructures import QueryParams

from machtrace.frozen import dataclass
from machtrace.reports.html.markup import element, text
from machtrace.server.limits import BAD_REQUEST, RefusedError
from machtrace.warehouse.warehouse import Warehouse

_DAY = 86_400_000_000_000
RANGES: Mapping[str, tuple[str, int]] = {
    "": ("All time", 0),
    "1d": ("24 hours", _DAY),
    "7d": ("7 days", 7 * _DAY),
    "30d": ("30 days", 30 * _DAY),
    "90d": ("90 days", 90 * _DAY),
}
"""By value: the label, and the length in ns; 0: no limit."""
_FIELDS = ("since", "kind", "app", "build", "where")
_BUILDS = """
SELECT kind, app, build, count(*) AS reports, min(coalesce(time, received)) AS first,
    max(coalesce(time, received)) AS last
FROM reports GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class Filters:
    """The choices of a reader; empty ones exclude nothing."""

    since: str = ""
    """A key of :data:`RANGES`."""
    kind: str = ""
    app: str = ""
    build: str = ""
    where: str = ""
    """A condition over the columns of ``reports``."""

    @property
    def has_condition(self) -> bool:
        """Whether a condition in SQL is among them, which can take any time."""
        return bool(self.where.strip())

    @property
    def start(self) -> int:
        """The earliest time, in ns since 1970; 0: any."""
        length = RANGES[self.since][1]
        return time.time_ns() - length if length else 0

    @property
    def condition(self) -> str:
        """The choices as one condition over the columns of ``reports``."""
        parts = [
            f"{name} = {quoted(value)}"
            for name, value in (("kind", self.kind), ("app", self.app), ("build", self.build))
            if value
        ]
        if self.start:
            parts.append(f"coalesce(time, received) >= {self.start}")
        if self.where.strip():
            parts.append(f"({self.where}\n)")
        return " AND ".join(parts) or "true"

    @property
    def query(self) -> dict[str, str]:
        """The choices as parameters of an address."""
        return {name: value for name in _FIELDS if (value := getattr(self, name))}


def read_filters(query: QueryParams) -> Filters:
    """Return the choices in an address.

    Raises:
        RefusedError: the range is unknown.
    """
    filters = Filters(*(query.get(name, "") for name in _FIELDS))
    if filters.since not in RANGES:
        known = ", ".join(name for name in RANGES if name)
        raise RefusedError(BAD_REQUEST, f"unknown range {filters.since!r}; use {known}")
    return filters


class Build(NamedTuple):
    """The reports of a kind in a build of an app."""

    kind: str
    app: str
    build: str
    reports: int
    first: int
    """The earliest report's time, in ns since 1970."""
    last: int


def builds(warehouse: Warehouse) -> list[Build]:
    """Return all kinds, apps and builds, in the order in which the builds appeared."""
    rows = [Build(**row) for row in warehouse.query(_BUILDS).to_pylist()]
    return sorted(rows, key=lambda row: (row.first, row.build))


def filter_form(
    action: str, filters: Filters, known: Iterable[Build], further: str = "", where_hint: str = ""
) -> str:
    """Return the form of the choices.

    Args:
        action: the address of the page.
        filters: the present choices.
        known: what can be chosen.
        further: other fields, as HTML.
        where_hint: an example of a condition.
    """
    rows = list(known)
    fields = [
        choice("since", "Time", filters.since, ((key, own[0]) for key, own in RANGES.items())),
        choice("kind", "Kind", filters.kind, _options(row.kind for row in rows)),
        choice("app", "App", filters.app, _options(row.app for row in rows)),
        choice("build", "Build", filters.build, _options(row.build for row in reversed(rows))),
    ]
    where = (
        '<label class="wide-field">Condition in SQL'
        f'<input name="where" value="{text(filters.where)}" spellcheck="false" autocomplete="off" '
        f'placeholder="{text(where_hint)}"></label>'
    )
    inner = "".join(fields) + where + further + '<button class="main">Apply</button>'
    return element("form", inner, class_="filters", method="get", action=action, role="search")


def choice(name: str, label: str, chosen: str, options: Iterable[tuple[str, str]]) -> str:
    """Return a labelled list of values, each with its text."""
    known = dict(options)
    if chosen not in known:
        known[chosen] = chosen
    listed = "".join(
        element("option", text(shown[:80]), value=value, selected="" if value == chosen else None)
        for value, shown in known.items()
    )
    return element("label", label + element("select", listed, name=name))


def quoted(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''").replace("\0", "") + "'"


def _options(values: Iterable[str | None], most: int = 200) -> list[tuple[str, str]]:
    distinct = list(dict.fromkeys(value for value in values if value))[:most]
    return [("", "All"), *((value, value) for value in distinct)]
