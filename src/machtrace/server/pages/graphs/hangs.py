"""The page of hangs: when each happened, how long it lasted, and where the app stood."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import log10
from statistics import median
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from machtrace.frozen import dataclass
from machtrace.model.incident.text import shown_duration
from machtrace.model.text import counted
from machtrace.reports.html.markup import element, text
from machtrace.server.pages.filters import Build, Filters, builds, filter_form, read_filters
from machtrace.server.pages.frame import page
from machtrace.server.pages.graphs.parts import ROWS, exports, function_link
from machtrace.server.pages.parts import Column, address, facts, link, moment, shown, table
from machtrace.server.service import Service
from machtrace.warehouse.graphs.hangs import MAX_HANGS, StoredHang, stored_hangs
from machtrace.warehouse.warehouse import Warehouse

HANGS = "/hangs"
_LANES, _LISTED, _PLACES = 40, 100, 30
_WIDTH, _HEIGHT = 1000, 32
"""Units of a lane, which is stretched."""
_MIN_SECONDS, _MAX_SECONDS = 0.1, 60.0
"""Seconds at the bottom and at the top of a lane; between them its scale is logarithmic."""
_HINT = "os LIKE '%26%' AND duration > 2_000_000_000"
_TONES = 6
_PLACE_COLUMNS = (
    Column("Function of the app"),
    Column("Hangs", is_number=True),
    Column("Devices", is_number=True),
    Column("Median", is_number=True),
    Column("Longest", is_number=True),
    Column("Waits for"),
)
_HANG_COLUMNS = (
    Column("Time"),
    Column("Duration", is_number=True),
    Column("Function of the app"),
    Column("Waits for"),
    Column("Build"),
    Column("Device"),
)


class _Place(NamedTuple):
    function: str
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hangs:
    known: Sequence[Build]
    rows: Sequence[StoredHang]


async def hangs_page(service: Service, request: Request) -> Response:
    """Return the latest hangs of the chosen reports."""
    filters = read_filters(request.query_params)
    body = await service.reading(request, _made, filters, has_sql=filters.has_condition)
    return page(service, request, "Hangs", body, section=HANGS)


def _made(warehouse: Warehouse, filters: Filters) -> str:
    """Return the content of the page."""
    content = _hangs(warehouse, filters)
    form = filter_form(HANGS, filters, content.known, "", _HINT)
    return form + _body(content, filters)


def _hangs(warehouse: Warehouse, filters: Filters) -> _Hangs:
    return _Hangs(known=builds(warehouse), rows=stored_hangs(warehouse, filters.condition))


def _body(content: _Hangs, filters: Filters) -> str:
    rows = content.rows
    if not rows:
        words = "No hang has these properties." if content.known else "No reports yet."
        return element("p", words, class_="empty")
    durations = [row.duration for row in rows if row.duration]
    numbers = [
        ("Hangs", f"The latest {len(rows):,}" if len(rows) == MAX_HANGS else f"{len(rows):,}"),
        ("Devices", f"{len({row.device for row in rows if row.device}):,}"),
    ]
    if durations:
        numbers.append(("Median", shown_duration(int(median(durations)))))
        numbers.append(("Longest", shown_duration(max(durations))))
    by_place: dict[_Place, list[StoredHang]] = defaultdict(list)
    for each in rows:
        by_place[_Place(each.function, each.image)].append(each)
    places = sorted(by_place, key=lambda place: (-len(by_place[place]), place))
    tones = {place: min(number, _TONES - 1) for number, place in enumerate(places)}
    base = {name: value for name, value in filters.query.items() if name != "kind"}
    return (
        facts(numbers)
        + _timeline(rows, tones)
        + _key(places, tones)
        + exports("/v1/hangs", ROWS, {"where": filters.condition})
        + element("h2", "Where the app stood")
        + _places(places, by_place, tones, base)
        + element("h2", "The latest hangs")
        + _table(rows)
    )


def _timeline(rows: Sequence[StoredHang], tones: dict[_Place, int]) -> str:
    lanes: dict[str, list[StoredHang]] = defaultdict(list)
    for each in rows:
        lanes[each.device].append(each)
    names = sorted(lanes, key=lambda device: (-len(lanes[device]), device))
    first, last = rows[0].time, max(rows[-1].time, rows[0].time + 1)
    parts = []
    for device in names[:_LANES]:
        own = lanes[device]
        boxes = "".join(_bar(each, first, last, tones) for each in own)
        label = counted(len(own), "hang")
        chart = (
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="group" '
            f'aria-label="{label}">{boxes}</svg>'
        )
        head = f"{shown(device or 'unknown device', 40)} <small>{label}</small>"
        parts.append(element("div", element("p", head) + chart, class_="lane"))
    left = len(names) - _LANES
    if left > 0:
        parts.append(
            element("p", f"{counted(left, 'further device')} are in the exports.", class_="note")
        )
    axis = element("div", f"<span>{moment(first)}</span><span>{moment(last)}</span>", class_="axis")
    note = "Height: the duration, from 0.1 s to 60 s on a logarithmic scale."
    return element(
        "section",
        "".join(parts) + axis + element("p", note, class_="note"),
        class_="hangs",
        aria_label="Hangs by device and time",
    )


def _bar(hang: StoredHang, first: int, last: int, tones: dict[_Place, int]) -> str:
    length = (hang.duration or 0) / 1e9
    part = log10(max(length, _MIN_SECONDS) / _MIN_SECONDS) / log10(_MAX_SECONDS / _MIN_SECONDS)
    height = 4 + (_HEIGHT - 4) * min(part, 1.0)
    at = (hang.time - first) / (last - first) * (_WIDTH - 6)
    width = max(5.0, min(length * 1e9 / (last - first) * _WIDTH, _WIDTH - at))
    label = text(f"{_length(hang)} in {hang.function}, build {hang.build or '?'}")
    place = _Place(hang.function, hang.image)
    return (
        f'<a href="/reports/{hang.report.hex()}" aria-label="{label}">'
        f'<rect class="tone{tones[place]}" '
        f'x="{at:.1f}" y="{_HEIGHT - height:.1f}" width="{width:.1f}" height="{height:.1f}">'
        f"<title>{label}</title></rect></a>"
    )


def _length(hang: StoredHang) -> str:
    return "unknown" if hang.duration is None else shown_duration(hang.duration)


def _key(places: Sequence[_Place], tones: dict[_Place, int]) -> str:
    items = []
    for place in places[:_TONES]:
        is_rest = tones[place] == _TONES - 1 and len(places) > _TONES
        name = "others" if is_rest else shown(place.function, 60)
        items.append(f'<span class="tone{tones[place]}">{name}</span>')
    return element("p", " ".join(items), class_="key")


def _places(
    places: Sequence[_Place],
    by_place: dict[_Place, list[StoredHang]],
    tones: dict[_Place, int],
    base: dict[str, str],
) -> str:
    rows = []
    for place in places[:_PLACES]:
        own = by_place[place]
        durations = [each.duration for each in own if each.duration]
        waits = list(dict.fromkeys(each.waits_for for each in own if each.waits_for))
        rows.append(
            [
                f'<span class="tone{tones[place]}"></span>'
                + function_link(place.function, place.image, {**base, "kind": own[0].kind})
                + f'<div class="below">{shown(place.image, 60)}</div>',
                f"{len(own):,}",
                f"{len({each.device for each in own if each.device}):,}",
                text(shown_duration(int(median(durations)))) if durations else "",
                text(shown_duration(max(durations))) if durations else "",
                "<br>".join(shown(wait, 100) for wait in waits[:3]),
            ]
        )
    return table(_PLACE_COLUMNS, rows, "Hangs by function", is_cards=True)


def _table(rows: Sequence[StoredHang]) -> str:
    latest = list(reversed(rows))[:_LISTED]
    cells = [
        [
            link(f"/reports/{each.report.hex()}", moment(each.time)),
            text(_length(each)),
            _stack(each),
            shown(each.waits_for, 100),
            shown(each.build, 40),
            shown(each.device, 40),
        ]
        for each in latest
    ]
    note = ""
    if len(rows) > len(latest):
        note = element("p", f"{len(latest):,} of {len(rows):,}; exports have all.", class_="note")
    return note + table(_HANG_COLUMNS, cells, "The latest hangs", is_cards=True)


def _stack(hang: StoredHang) -> str:
    name = shown(hang.function, 120)
    if not hang.stack:
        return name
    return link(address(f"/stacks/{hang.stack.hex()}"), name, class_="mono")
