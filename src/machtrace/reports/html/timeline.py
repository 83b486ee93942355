"""The timeline of a watcher's incident: the last minute, and the samples of the incident.

Charts are SVG without text, stretched to any width; labels are HTML, which keeps its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice, pairwise
from typing import NamedTuple

from machtrace.model.incident.facts import SeriesPoint, WatchFacts
from machtrace.model.incident.text import shown_bytes, shown_duration
from machtrace.model.profile import Profile
from machtrace.model.report import Report
from machtrace.model.text import counted
from machtrace.render.functions import functions_of
from machtrace.reports.html.markup import element, text
from machtrace.reports.stacks.incidents import SampleTime, sample_times
from machtrace.reports.stacks.profiles import profile_of

_SECOND = 1_000_000_000
_WIDTH, _HEIGHT = 1000, 40
"""Units of a chart, which is stretched."""
_LISTED = 40
"""Consecutive equal stacks that are listed."""
_MAX_POINTS, _MAX_RUNS = 1_200, 2_000
"""Limits of what is drawn."""
_KNOWN = frozenset({"idle", "blocked", "busy", "starved", "stopped", "uninterruptible", "slept"})
_UNKNOWN = "unknown"


class _Span(NamedTuple):
    """The time that a chart shows."""

    first_ns: int
    last_ns: int

    def x(self, at_ns: int) -> float:
        """Return a time's coordinate, inside the chart."""
        part = (at_ns - self.first_ns) / max(1, self.last_ns - self.first_ns)
        return round(_WIDTH * min(1.0, max(0.0, part)), 2)


class _Run(NamedTuple):
    """Consecutive samples of one stack."""

    first_ns: int
    last_ns: int
    samples: int
    functions: tuple[str, ...]
    """Some of its functions, innermost first."""


def timeline(report: Report) -> str:
    """Return the charts of a watcher's report; empty without times."""
    watch = report.watch
    if watch is None:
        return ""
    parts = [*_last_minute(watch)] if watch.series else []
    times = sample_times(report)
    if times:
        parts += _samples(watch, times, profile_of(report))
    return element("div", "".join(parts), class_="timeline") if parts else ""


def _last_minute(watch: WatchFacts) -> Iterator[str]:
    points = sorted(watch.series, key=lambda point: point.at_ns)[-_MAX_POINTS:]
    step = _step(points)
    span = _Span(points[0].at_ns, points[-1].at_ns + step)
    began = (watch.began.earliest_ns + watch.began.latest_ns) // 2
    end = span.last_ns if watch.ended is None else watch.ended.latest_ns
    mark = _box(span, began, max(end, began), "incident", "the incident")
    yield element("h4", f"The last {shown_duration(span.last_ns - span.first_ns)}")
    states = [point.state or _UNKNOWN for point in points]
    yield _lane("State", _states(points, step, span) + mark, _legend(states))
    shares = [point.cpu_share for point in points]
    known = [share for share in shares if share is not None]
    if known:
        top = max(1.0, *known)
        chart = _area(points, shares, 0.0, top, span, step)
        most, last = 100 * max(known), 100 * known[-1]
        note = f"at most {most:.0f} % of one processor, {last:.0f} % at the end"
        yield _lane("Processor", chart + mark, text(note))
    sizes = [point.resident for point in points]
    present = [size for size in sizes if size is not None]
    if present:
        low, high = min(present), max(present)
        chart = _area(points, sizes, min(low, high * 0.9), high, span, step)
        note = f"{shown_bytes(round(present[0]))} to {shown_bytes(round(present[-1]))}"
        if high > present[-1]:
            note += f", at most {shown_bytes(round(high))}"
        yield _lane("Memory", chart + mark, text(note))
    yield _axis(span, watch.seen_ns)


def _step(points: Sequence[SeriesPoint]) -> int:
    """Return the usual time between two points."""
    gaps = sorted(later.at_ns - point.at_ns for point, later in pairwise(points))
    return gaps[len(gaps) // 2] if gaps else _SECOND


def _until(points: Sequence[SeriesPoint], index: int, step: int) -> int:
    """Return the end of a point's time; a later gap is left empty."""
    if index + 1 < len(points):
        return min(points[index + 1].at_ns, points[index].at_ns + 2 * step)
    return points[index].at_ns + step


def _states(points: Sequence[SeriesPoint], step: int, span: _Span) -> str:
    boxes: list[str] = []
    numbered = groupby(range(len(points)), key=lambda index: points[index].state)
    for state, group in numbered:
        indices = [*group]
        first, last = points[indices[0]].at_ns, _until(points, indices[-1], step)
        title = f"{state or _UNKNOWN} for {shown_duration(last - first)}"
        boxes.append(_box(span, first, last, _state_class(state), title))
    return "".join(boxes)


def _state_class(state: str | None) -> str:
    return f"state {state}" if state in _KNOWN else f"state {_UNKNOWN}"


def _legend(states: Sequence[str]) -> str:
    names = dict.fromkeys(states)
    return "".join(
        element("span", element("i", class_=_state_class(name)) + text(name), class_="key")
        for name in names
    )


def _area(
    points: Sequence[SeriesPoint],
    values: Sequence[float | None],
    low: float,
    high: float,
    span: _Span,
    step: int,
) -> str:
    """Return steps, one for each point; unknown values leave a gap."""
    boxes: list[str] = []
    for index, value in enumerate(values):
        if value is None:
            continue
        height = _HEIGHT * (value - low) / (high - low) if high > low else _HEIGHT / 2
        left, right = span.x(points[index].at_ns), span.x(_until(points, index, step))
        top = round(_HEIGHT - max(height, 0.5), 2)
        boxes.append(
            element(
                "rect",
                x=f"{left:g}",
                y=f"{top:g}",
                width=f"{right - left:.2f}",
                height=f"{_HEIGHT - top:g}",
                class_="level",
            )
        )
    return "".join(boxes)


def _box(span: _Span, first: int, last: int, kind: str, title: str) -> str:
    left, right = span.x(first), span.x(last)
    return element(
        "rect",
        element("title", text(title)),
        x=f"{left:g}",
        y="0",
        width=f"{max(right - left, 1):.2f}",
        height=str(_HEIGHT),
        class_=kind,
    )


def _lane(name: str, shapes: str, note: str) -> str:
    chart = element(
        "svg",
        shapes,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{name} over time",
    )
    head = element("p", element("b", text(name)) + " " + element("span", note, class_="note"))
    return element("div", head + chart, class_="lane")


def _axis(span: _Span, zero: int) -> str:
    """Return the times at the ends and in the middle, relative to the time it was seen."""
    middle = (span.first_ns + span.last_ns) // 2
    unit = 10 ** (len(str(max(1, span.last_ns - span.first_ns))) - 2)
    times = (round((at - zero) / unit) * unit for at in (span.first_ns, middle, span.last_ns))
    labels = [_relative(at) for at in times]
    return element("p", "".join(element("span", text(label)) for label in labels), class_="axis")


def _relative(nanoseconds: int) -> str:
    if not nanoseconds:
        return "seen"
    sign = "−" if nanoseconds < 0 else "+"
    return sign + shown_duration(abs(nanoseconds))


def _samples(watch: WatchFacts, times: Sequence[SampleTime], profile: Profile) -> Iterator[str]:
    culprit = None if watch.culprit is None else watch.culprit.function
    runs = [*islice(_runs(times, profile, culprit), _MAX_RUNS)]
    began = (watch.began.earliest_ns + watch.began.latest_ns) // 2
    end = runs[-1].last_ns if watch.ended is None else watch.ended.latest_ns
    span = _Span(min(began, runs[0].first_ns), max(end, runs[-1].last_ns))
    counts = counted(len(times), "stack")
    yield element("h4", f"{counts} of the incident, by time")
    colours: dict[tuple[str, ...], int] = {}
    boxes = [
        _box(
            span,
            run.first_ns,
            run.last_ns,
            f"sample s{colours.setdefault(run.functions, len(colours)) % 6}",
            " ← ".join(run.functions),
        )
        for run in runs
    ]
    note = f"{counted(len(colours), 'distinct stack')}; a sample of the flame graph is 1 ms"
    yield _lane("Stacks", "".join(boxes), text(note))
    yield _axis(span, watch.seen_ns)
    rows = [_row(run, watch.seen_ns, colours[run.functions] % 6) for run in runs[:_LISTED]]
    if len(runs) > _LISTED:
        rows.append(element("li", f"and {counted(len(runs) - _LISTED, 'more')}"))
    yield element("ol", "".join(rows), class_="runs")


def _row(run: _Run, zero: int, colour: int) -> str:
    functions = " ← ".join(element("bdi", text(name)) for name in run.functions)
    lasted = shown_duration(run.last_ns - run.first_ns)
    times = f"{_relative(run.first_ns - zero)}, for {lasted}"
    key = element("i", class_=f"sample s{colour}")
    return element("li", f"{key}<small>{text(times)}</small> <code>{functions}</code>")


_SHOWN_FUNCTIONS = 3


def _functions(calls: Sequence[str], culprit: str | None) -> tuple[str, ...]:
    """Return the innermost functions; of a deep wait, also those at the culprit."""
    at = calls.index(culprit) if culprit in calls else 0
    if at < _SHOWN_FUNCTIONS:
        return tuple(calls[:_SHOWN_FUNCTIONS]) or ("no frames",)
    return (calls[0], "…", *calls[at : at + _SHOWN_FUNCTIONS - 1])


def _runs(times: Sequence[SampleTime], profile: Profile, culprit: str | None) -> Iterator[_Run]:
    """Yield consecutive samples of equal stacks as one."""
    table = functions_of(profile.frames)
    keys = table.keys
    names = [function.name for function in table.functions]
    rows = [*profile.samples.stacks]
    if len(rows) != len(times):  # another program changed the file
        rows = [0] * len(times)

    before = times[0].at_ns - times[0].weight_ns if len(times) > 1 else 0
    for row, group in groupby(range(len(times)), key=rows.__getitem__):
        indices = [*group]
        first, last = times[indices[0]], times[indices[-1]]
        frames = profile.stacks.frames_of(row)
        calls = [names[call] for frame in frames for call in reversed(keys[frame])]
        # A weight is the time since the sample before it; the last one's, to the end as well.
        began = max(before, first.at_ns - first.weight_ns)
        before = last.at_ns
        yield _Run(
            began,
            max(last.at_ns, began + sum(times[index].weight_ns for index in indices)),
            len(indices),
            _functions(calls, culprit),
        )
