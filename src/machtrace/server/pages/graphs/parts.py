"""Parts of pages with graphs: the graph's place, bars, exports, and the choice of stacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from machtrace.reports.html.markup import element, script_data, text
from machtrace.server.graphs.selection import Selection
from machtrace.server.pages.filters import Filters, choice
from machtrace.server.pages.parts import address, link, shown

STACKS = {
    "": "All threads and samples",
    "subject": "What reports are about",
    "main": "Main threads",
}
"""By value: which stacks of a report."""
_CONDITIONS = {
    "": "role != 'subject'",
    "subject": "role = 'subject'",
    "main": "role IN ('main', 'crashed') AND thread <= 0",
}
LABELS = {
    "pprof": "pprof",
    "speedscope": "speedscope",
    "firefox": "Firefox Profiler",
    "folded": "folded",
    "arrow": "Arrow",
    "json": "JSON",
    "csv": "CSV",
    "svg": "SVG",
    "html": "HTML",
}
"""By format: its name for people."""
TREES = ("pprof", "speedscope", "firefox", "folded", "arrow", "json", "svg", "html")
ROWS = ("csv", "json", "arrow")
SCRIPT = ("graph.js",)


def stacks_condition(filters: Filters, stacks: str) -> str:
    """Return the condition over ``stacks_of_reports`` of a reader's choices.

    Args:
        filters: the reports.
        stacks: a key of :data:`STACKS`; a condition that states roles has these instead.
    """
    condition = filters.condition
    if not stacks and "role" in filters.where:
        return condition
    role = _CONDITIONS.get(stacks, _CONDITIONS[""])
    return role if condition == "true" else f"{role} AND {condition}"


def stacks_choice(stacks: str) -> str:
    """Return the list of :data:`STACKS`."""
    return choice("stacks", "Stacks", stacks, STACKS.items())


def hidden(fields: Mapping[str, str]) -> str:
    """Return fields of a form that are not shown."""
    return "".join(element("input", type="hidden", name=k, value=v) for k, v in fields.items())


def exports(path: str, formats: Iterable[str], query: Mapping[str, object]) -> str:
    """Return links to a view in other formats.

    Args:
        path: the address of the view for programs.
        formats: keys of :data:`LABELS`.
        query: the parameters of the address.
    """
    links = " ".join(
        link(
            address(path, **query, format=form),
            LABELS[form],
            download="" if form != "html" else None,
        )
        for form in formats
    )
    return element("p", f'<span class="note">Export:</span> {links}', class_="exports")


def share(part: float, label: str = "", *, kind: str = "") -> str:
    """Return a share, from 0 to 1, as a number with a bar."""
    width = f"{max(0.0, min(1.0, part)) * 100:.2f}"
    bar = (
        '<svg class="share" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="{kind}" width="{width}" height="6"/></svg>'
    )
    return f"{text(label or percent(part))}{bar}"


def percent(part: float) -> str:
    """Return a share from 0 to 1 in per cent."""
    return f"{100 * part:.2f} %" if part < 0.1 else f"{100 * part:.1f} %"  # noqa: PLR2004 - three digits


def signed(part: float) -> str:
    """Return a change of a share in points."""
    return f"{'−' if part < 0 else '+'}{abs(100 * part):.2f}"


def graph(
    data: dict[str, Any],
    label: str,
    base: Mapping[str, str],
    *,
    fallback: str = "",
    is_up: bool = False,
) -> str:
    """Return the place where a script draws a flame graph; without it, there is a picture.

    Args:
        data: columns; see ``warehouse.graphs.columns``.
        label: its name for those who do not see it.
        base: the parameters of links to functions.
        fallback: the address of a picture.
        is_up: whether callees are above callers.
    """
    if not data["keys"]:
        return ""
    controls = (
        '<div class="controls"><label>Search <input type="search" class="search" '
        'placeholder="function or image (press /)" spellcheck="false" autocomplete="off"></label>'
        '<button type="button" class="out">Zoom out</button>'
        '<button type="button" class="reset">Show all</button></div>'
    )
    canvas = (
        '<div class="scroller"><div class="spacer"><canvas tabindex="0" role="application" '
        f'aria-label="{text(label)}: arrow keys move, Enter zooms in, Escape zooms out"></canvas>'
        "</div></div>"
    )
    status = (
        '<p class="status" role="status" aria-live="polite"></p><p class="actions" hidden>'
        '<a class="function" href="/functions">Callers and callees</a> '
        '<a class="through" href="/flame">Stacks through it</a></p>'
    )
    script = f'<script type="application/json">{script_data(data)}</script>'
    host = element(
        "div",
        controls + canvas + status + script,
        class_="flame up" if is_up else "flame",
        hidden="",
        data_function=address("/functions", **base),
        data_through=address("/flame", **base),
    )
    picture = element("img", src=fallback, alt=label, class_="picture") if fallback else ""
    return host + (f"<noscript>{picture}</noscript>" if picture else "")


def function_link(name: str, image: str, base: Mapping[str, str]) -> str:
    """Return the link to a function."""
    where = address("/functions", **{**base, "name": name}) + f"&image={_quoted(image)}"
    return link(where, shown(name, 160), class_="mono")


def selected(selection: Selection, remove: str) -> str:
    """Return what a graph is limited to, with a link to the whole of it."""
    parts = []
    if selection.function:
        inside = f" of {shown(selection.image, 80)}" if selection.image else ""
        parts.append(f"Stacks through <code>{shown(selection.function, 160)}</code>{inside}.")
    if selection.family:
        by = ""
        if selection.caller is not None:
            name = shown(selection.caller, 80) if selection.caller else "the system alone"
            by = f" called by {name}"
        parts.append(f"Stacks with <b>{shown(selection.family, 80)}</b>{by}.")
    if not parts:
        return ""
    again = link(remove, "Show all stacks")
    return element("p", f"{' '.join(parts)} {again}", class_="chosen")


def _quoted(value: str) -> str:
    return address("", x=value).partition("=")[2] if value else ""
