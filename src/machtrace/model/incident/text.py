"""The facts of an incident as text: in short for a terminal, and complete for reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from machtrace.model.incident.stack_text import (
    functions_of,
    is_library,
    own_function,
    short_name,
    short_stack_lines,
)

if TYPE_CHECKING:  # the values import this module
    from machtrace.model.incident.facts import (
        Culprit,
        HostLoad,
        TimeRange,
        WatchedThread,
        WatcherCost,
        WatchFacts,
        WatchIncident,
    )

from machtrace.model.text import PLAIN, Style, counted, duration, printable, short_location

_SECOND = 1_000_000_000
_MINUTE = 60
_KINDS = {
    "hang": "Hang",
    "cpu": "Processor",
    "memory": "Memory",
    "deadlock": "Deadlock",
    "crash": "Crash",
}
_WIDTH = 11
"""Columns of the names of facts."""
_LISTED = 8
"""Threads of a cycle that are named."""
_PRESSURE = 20.0
"""Percent of ten seconds in which tasks waited, from which the host's load may be a cause."""
_LONG_STOP_NS = 10_000_000
_ROUTINE = {"same-stack", "capture-time"}
"""Rules that do not change what an incident is."""


def shown_duration(nanoseconds: int) -> str:
    """Format a time of any length: ``18.4 ms``, ``3.21 s``, ``2 min 5 s``."""
    if abs(nanoseconds) < _SECOND:
        return duration(nanoseconds)
    seconds = nanoseconds / _SECOND
    if seconds < _MINUTE:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, _MINUTE)
    hours, minutes = divmod(minutes, _MINUTE)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def shown_bytes(count: int) -> str:
    """Format a number of bytes: ``312 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1 << 10:
            return f"{size:.0f} {unit}"
        size /= 1 << 10
    return f"{size:.2f} GiB"


def wall_time(nanoseconds: int) -> str:
    """Format nanoseconds since 1970 as Apple's reports write times, in UTC."""
    when = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=nanoseconds // 1000)
    return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03d} +0000"


def headline(facts: WatchFacts) -> str:
    """Return an incident in one line: kind, verdict, thread, culprit and duration."""
    verdict = "" if facts.verdict is None else f" ({facts.verdict.value})"
    kind = _KINDS[facts.kind.value]
    if facts.verdict is not None and not facts.verdict.is_hang:
        kind = f"No {kind.lower()}"
    head = f"{kind}{verdict}:"
    if facts.thread is not None:
        head += f" {facts.thread}"
    elif facts.pid is not None:
        head += f" process {facts.pid}"
    if facts.culprit is not None:
        head += f" in {culprit_name(facts.culprit)}"
    if facts.duration_ns:
        so_far = " so far" if facts.ended is None else ""
        head += f", {shown_duration(facts.duration_ns)}{so_far}"
    return head


def culprit_name(culprit: Culprit) -> str:
    """Return the culprit's function with its file, or its image."""
    where = culprit.image or ""
    if culprit.file:
        where = short_location(culprit.file, culprit.line)
    name = short_name(printable(culprit.function))
    return f"{name} ({printable(where)})" if where else name


def fact_lines(facts: WatchFacts, style: Style) -> Iterator[str]:
    """Yield the headline, and a line for each fact that is known."""
    yield f"{style.bold}{headline(facts)}{style.reset}"
    yield from _named_lines(facts_of(facts), style)


def _named_lines(facts: Iterable[tuple[str, str]], style: Style) -> Iterator[str]:
    for name, text in facts:
        yield f"  {style.dim}{name:<{_WIDTH}}{style.reset}{text}"


def incident_lines(
    incident: WatchIncident, style: Style = PLAIN, path: object = None
) -> Iterator[str]:
    """Yield an incident in short: its main facts, and about ten functions of its stack.

    Args:
        incident: an incident.
        style: of the terminal.
        path: the file of its report, which has everything else.
    """
    yield f"{style.bold}{headline(incident)}{style.reset}"
    yield from _named_lines(_short_facts(incident), style)
    if path is not None:
        yield from _named_lines([("report", printable(str(path)))], style)
    if incident.stack is not None:
        yield ""
        yield from short_stack_lines(
            incident.stack, incident.culprit, style, has_report=path is not None
        )


def ended_lines(
    incident: WatchIncident, style: Style = PLAIN, path: object = None
) -> Iterator[str]:
    """Yield the end of an incident that was shown before; nothing of a crash, which is the end."""
    if incident.kind.value == "crash":
        return
    text = headline(incident)
    at = text.find(":")
    state = "is not over" if incident.ended is None else "ended"
    yield f"{style.bold}{text[:at]} {state}{text[at:]}{style.reset}"
    if path is not None:
        yield from _named_lines([("report", printable(str(path)))], style)


def _short_facts(incident: WatchIncident) -> Iterator[tuple[str, str]]:
    yield incident.certainty.value, evidence_text(incident, is_short=True)
    yield "when", _when(incident, is_short=True)
    if incident.culprit is not None:
        yield "culprit", culprit_text(incident.culprit) + _caller_text(incident)
    yield from _task(incident)
    if incident.cycle:
        yield from _cycle(incident)
    elif incident.waits_for is not None:
        yield "waits for", incident.waits_for.text(incident.pid)
    for rule in incident.rules:
        if rule.name not in _ROUTINE:
            yield "rule", f"{printable(rule.name)}: {printable(rule.text)}"
    for sentence in incident.missing:
        yield "missing", printable(sentence)
    if incident.host is not None and (_is_starved(incident) or _is_loaded(incident.host)):
        yield "host", host_text(incident.host)
    if incident.cost is not None and incident.cost.stopped_ns >= _LONG_STOP_NS:
        yield "watcher", cost_text(incident.cost)


def _is_starved(facts: WatchFacts) -> bool:
    return facts.verdict is not None and facts.verdict.value == "starved"


def _is_loaded(host: HostLoad) -> bool:
    pressures = (host.cpu_pressure, host.memory_pressure, host.io_pressure)
    return any((pressure or 0) >= _PRESSURE for pressure in pressures)


def _cycle(incident: WatchIncident) -> Iterator[tuple[str, str]]:
    for at, thread in enumerate(incident.cycle[:_LISTED]):
        function = _function_of(incident, thread)
        text = f"{thread} in {function}" if function else str(thread)
        if at < len(incident.cycle_waits):
            text += f" waits for {incident.cycle_waits[at].text(incident.pid)}"
        yield "" if at else "cycle", text
    if len(incident.cycle) > _LISTED:
        yield "", f"… {len(incident.cycle) - _LISTED} more threads"


def facts_of(facts: WatchFacts) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each fact below the headline."""
    yield facts.certainty.value, evidence_text(facts)
    yield "when", _when(facts)
    if facts.culprit is not None:
        yield "culprit", culprit_text(facts.culprit)
    yield from _task(facts)
    if facts.waits_for is not None:
        yield "waits for", facts.waits_for.text(facts.pid)
    if facts.cycle:
        names = [str(thread) for thread in facts.cycle]
        shown = [*names[:_LISTED], "…"] if len(names) > _LISTED else [*names, names[0]]
        yield "cycle", " → ".join(shown)
    for thread, wait in list(zip(facts.cycle, facts.cycle_waits, strict=False))[:_LISTED]:
        yield "", f"{thread} waits for {wait.text(facts.pid)}"
    for rule in facts.rules:
        yield "rule", f"{printable(rule.name)}: {printable(rule.text)}"
    for sentence in facts.missing:
        yield "missing", printable(sentence)
    if facts.host is not None:
        yield "host", host_text(facts.host)
    if facts.cost is not None:
        yield "watcher", cost_text(facts.cost)


def _task(facts: WatchFacts) -> Iterator[tuple[str, str]]:
    """Yield the task of an event loop, its functions and those that await it."""
    name, chain, outer = (facts.evidence.get(each) for each in _TASK)
    parts = [printable(str(each)) for each in (name, chain) if each is not None]
    if parts:
        yield "task", ": ".join(parts)
    if outer is not None:
        yield "", f"awaited by {printable(str(outer))}"


_TASK = ("task", "await_chain", "awaited_by")
"""Evidence with a line of its own."""


def culprit_text(culprit: Culprit) -> str:
    """Return the culprit with its share of the time."""
    native = f", in native code {short_name(printable(culprit.native))}" if culprit.native else ""
    return f"{culprit_name(culprit)}, {100 * culprit.share:.0f} % of the time{native}"


def _when(facts: WatchFacts, *, is_short: bool = False) -> str:
    began = facts.began
    before = facts.seen_ns - began.best_ns
    exact = "" if began.earliest_ns == began.latest_ns else f" ± {_half(began)}"
    parts = []
    if facts.seen_wall_ns is not None:
        parts.append(f"began {wall_time(facts.seen_wall_ns - before)}{exact}")
        if not is_short or before > 2 * facts.duration_ns:
            parts.append(f"seen {shown_duration(before)} later")
    else:
        parts.append(f"began {shown_duration(before)}{exact} before it was seen")
    if facts.threshold:
        parts.append(f"threshold {printable(facts.threshold)}")
    if facts.ended is None:
        parts += [] if is_short else ["not ended"]
    else:
        lasted = f" ± {_half(facts.ended)}" if facts.ended[0] != facts.ended[1] else ""
        parts.append(
            f"ended {shown_duration(facts.ended.best_ns - facts.seen_ns)} after that{lasted}"
        )
    return ", ".join(parts)


def _half(time: TimeRange) -> str:
    return shown_duration((time.latest_ns - time.earliest_ns) // 2)


def evidence_text(facts: WatchFacts, *, is_short: bool = False) -> str:
    """Return the evidence of a verdict in words; in short, without what repeats the verdict."""
    evidence = {name: value for name, value in facts.evidence.items() if name not in _TASK}
    if evidence.get("voluntary_switches") == evidence.get("involuntary_switches") == 0:
        del evidence["voluntary_switches"], evidence["involuntary_switches"]
        evidence = {"switches": 0, **evidence}
    if evidence.get("delay_ns") == 0:
        del evidence["delay_ns"]
    if is_short:
        evidence = _shortened(evidence, facts.duration_ns)
    words = [
        _EVIDENCE[name](value) if name in _EVIDENCE and _is_number(value) else _other(name, value)
        for name, value in evidence.items()
        if value is not None
    ]
    if words:
        return ", ".join(words)
    if facts.certainty.value == "certain":
        return "no other verdict is possible"
    return "another verdict is possible"


_DETAILS = {"system_call", "polls_running", "polls_waiting", "bytes_per_fault", "anonymous_bytes"}
"""Evidence that is left out in short."""


def _shortened(evidence: dict[str, Any], duration_ns: int) -> dict[str, Any]:
    polls, running = evidence.get("polls"), evidence.get("polls_running")
    waiting = evidence.get("polls_waiting")
    short = {
        name: value
        for name, value in evidence.items()
        if name not in _DETAILS
        and not (name == "idle_seen" and value is True)
        and not (name in {"run_ns", "delay_ns"} and 0 < value < duration_ns // 20)
        and not (name.endswith(("_bytes", "within_ns")) and value == 0)
    }
    voluntary, involuntary = short.get("voluntary_switches"), short.get("involuntary_switches")
    if _is_number(voluntary) and _is_number(involuntary):
        del short["involuntary_switches"]
        if voluntary:
            del short["voluntary_switches"]
            short = {"switches": voluntary + involuntary, **short}
    if polls and polls in (running, waiting):
        del short["polls"]
        short[f"{'running' if polls == running else 'waiting'} at all {polls:,} polls"] = True
    elif polls and running is not None and waiting is not None:
        del short["polls"]
        short[f"running at {running:,} and waiting at {waiting:,} of {polls:,} polls"] = True
    return short


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _switches(kind: str) -> Callable[[float], str]:
    return lambda count: (
        counted(int(count), f"{kind}context switch", f"{kind}context switches")
        if count
        else f"no {kind}context switch"
    )


def _time(template: str) -> Callable[[float], str]:
    return lambda value: template.format(shown_duration(int(value)))


_EVIDENCE: dict[str, Callable[..., str]] = {
    "voluntary_switches": _switches("voluntary "),
    "involuntary_switches": _switches("involuntary "),
    "switches": _switches(""),
    "run_ns": lambda value: _time("ran for {}")(value) if value else "did not run",
    "delay_ns": _time("was ready without a processor for {}"),
    "throttled_ns": _time("its quota took {}"),
    "slept_ns": _time("the system slept for {}"),
    "late_ns": _time("the watcher was late by {}"),
    "wall_ns": _time("over {}"),
    "stopped_ns": _time("was stopped for {}"),
    "polls_running": lambda count: f"running at {int(count):,}",
    "polls_waiting": lambda count: f"waiting at {int(count):,}",
    "processor_percent": lambda percent: f"{percent:.1f} % of a processor",
    "window_ns": _time("in the last {}"),
    "hot_thread_share_percent": lambda percent: f"{percent:.0f} % of it by the hot thread",
    "hot_thread_processor_percent": lambda percent: f"which used {percent:.0f} % of a processor",
    "growth_bytes": lambda size: f"grew by {shown_bytes(int(size))}",
    "within_ns": _time("within {}"),
    "thread_share_percent": lambda percent: f"{percent:.0f} % of the page faults by the thread",
    "limit_reached_in_ns": _time("the limit is reached in {}"),
    "polls": lambda count: f"over {counted(int(count), 'poll')}",
    "surveys": lambda count: f"in {counted(int(count), 'survey')} of the locks",
}


_FLAGS = {
    ("idle_seen", True): "seen idle before",
    ("idle_seen", False): "never seen idle",
    ("older_than_watch", True): "it began before watching did",
}


def _other(name: str, value: object) -> str:
    if isinstance(value, bool) and (name, value) in _FLAGS:
        return _FLAGS[name, value]
    words = printable(name.removesuffix("_ns").removesuffix("_bytes").replace("_", " "))
    if value is True:
        return words
    if value is False:
        return f"not {words}"
    if isinstance(value, int) and name.endswith("_ns"):
        return f"{words} {shown_duration(value)}"
    if isinstance(value, int) and name.endswith("_bytes"):
        return f"{words} {shown_bytes(value)}"
    return f"{words} {value:,}" if isinstance(value, int) else f"{words} {printable(str(value))}"


def _caller_text(incident: WatchIncident) -> str:
    """Return the program's own function that called a culprit in Python's library."""
    culprit = incident.culprit
    if culprit is None or incident.stack is None or not is_library(culprit.file or ""):
        return ""
    own = own_function(functions_of(incident.stack))
    if own is None or not own.is_python or is_library(own.path):
        return ""
    return f", called by {own.name} ({own.where})"


def _function_of(incident: WatchIncident, thread: WatchedThread) -> str:
    """Return where a thread of the capture is."""
    stacks = () if incident.capture is None or thread.pid is not None else incident.capture.stacks
    stack = next((one for one in stacks if one.thread.id == thread.id), None)
    function = None if stack is None else own_function(functions_of(stack))
    return "" if function is None else f"{function.name} ({function.where})"


def host_text(host: HostLoad) -> str:
    """Return the load of the machine."""
    parts = [counted(host.processors, "processor")]
    if host.load is not None:
        parts.append(f"load {host.load:.2f}")
    pressures = {"processor": host.cpu_pressure, "memory": host.memory_pressure}
    pressures["input/output"] = host.io_pressure
    known = [f"{name} {value:.0f} %" for name, value in pressures.items() if value is not None]
    if known:
        parts.append(f"tasks waited for: {', '.join(known)} of 10 s")
    return ", ".join(parts)


def cost_text(cost: WatcherCost) -> str:
    """Return the cost of watching."""
    late = f", {cost.late_polls:,} late (at most {shown_duration(cost.latest_ns)})"
    stops = "no stops"
    if cost.stops:
        stops = f"{counted(cost.stops, 'stop')} (at most {shown_duration(cost.stopped_ns)})"
    return (
        f"{counted(cost.polls, 'poll')}{late if cost.late_polls else ''}, "
        f"{shown_duration(cost.cpu_ns)} of processor time, {stops}"
    )
