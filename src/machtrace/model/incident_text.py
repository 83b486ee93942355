"""The facts of an incident as text: the essential on one screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from machtrace.model.stack import NO_ADDRESS
from machtrace.model.symbol import CallStack, Frame, FrameStatus

if TYPE_CHECKING:  # the values import this module
    from machtrace.model.incident import (
        Culprit,
        HostLoad,
        LockOwner,
        TimeRange,
        WaitsFor,
        WatcherCost,
        WatchFacts,
    )

from machtrace.model.text import Style, counted, duration, printable, short_location

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
    head = f"{_KINDS[facts.kind.value]}{verdict}:"
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
    name = printable(culprit.function)
    return f"{name} ({printable(where)})" if where else name


def fact_lines(facts: WatchFacts, style: Style) -> Iterator[str]:
    """Yield the headline, and a line for each fact that is known."""
    yield f"{style.bold}{headline(facts)}{style.reset}"
    for name, text in facts_of(facts):
        yield f"  {style.dim}{name:<{_WIDTH}}{style.reset}{text}"


def facts_of(facts: WatchFacts) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each fact below the headline."""
    yield facts.certainty.value, evidence_text(facts)
    yield "when", _when(facts)
    if facts.culprit is not None:
        yield "culprit", culprit_text(facts.culprit)
    if facts.waits_for is not None:
        yield "waits for", waits_text(facts.waits_for)
    if facts.cycle:
        names = [str(thread) for thread in facts.cycle]
        shown = [*names[:_LISTED], "…"] if len(names) > _LISTED else [*names, names[0]]
        yield "cycle", " → ".join(shown)
    for thread, wait in list(zip(facts.cycle, facts.cycle_waits, strict=False))[:_LISTED]:
        yield "", f"{thread} waits for {waits_text(wait)}"
    for rule in facts.rules:
        yield "rule", f"{printable(rule.name)}: {printable(rule.text)}"
    for sentence in facts.missing:
        yield "missing", printable(sentence)
    if facts.host is not None:
        yield "host", host_text(facts.host)
    if facts.cost is not None:
        yield "watcher", cost_text(facts.cost)


def culprit_text(culprit: Culprit) -> str:
    """Return the culprit with its share of the time."""
    native = f", in native code {printable(culprit.native)}" if culprit.native else ""
    return f"{culprit_name(culprit)}, {100 * culprit.share:.0f} % of the time{native}"


def waits_text(wait: WaitsFor) -> str:
    """Return what is waited for, and who owns it."""
    text = printable(wait.what)
    if wait.address is not None:
        text += f" {wait.address:#x}"
    if wait.owner is None:
        return text
    owner = owner_text(wait.owner)
    if wait.what.startswith("end of"):
        owner = owner.removeprefix("held by ")
    return f"{text}, {owner}"


def owner_text(owner: LockOwner) -> str:
    """Return who holds a lock; that it keeps no owner if it does not."""
    names = []
    if owner.thread is not None:
        names.append(f"thread {owner.thread}")
    if owner.pid is not None:
        names.append(f"process {owner.pid}")
    if not names:
        return "owner unknown" if owner.recorded else "owner not recorded"
    stated = "" if owner.recorded else " (a guess: owner not recorded)"
    return f"held by {' of '.join(names)}{stated}"


def _when(facts: WatchFacts) -> str:
    began = facts.began
    before = facts.seen_ns - began.best_ns
    exact = "" if began.earliest_ns == began.latest_ns else f" ± {_half(began)}"
    parts = []
    if facts.seen_wall_ns is not None:
        parts.append(f"began {wall_time(facts.seen_wall_ns - before)}{exact}")
        parts.append(f"seen {shown_duration(before)} later")
    else:
        parts.append(f"began {shown_duration(before)}{exact} before it was seen")
    if facts.threshold:
        parts.append(f"threshold {printable(facts.threshold)}")
    if facts.ended is None:
        parts.append("not ended")
    else:
        lasted = f" ± {_half(facts.ended)}" if facts.ended[0] != facts.ended[1] else ""
        parts.append(
            f"ended {shown_duration(facts.ended.best_ns - facts.seen_ns)} after that{lasted}"
        )
    return ", ".join(parts)


def _half(time: TimeRange) -> str:
    return shown_duration((time.latest_ns - time.earliest_ns) // 2)


def evidence_text(facts: WatchFacts) -> str:
    """Return the evidence of a verdict in words."""
    evidence = dict(facts.evidence)
    if evidence.get("voluntary_switches") == evidence.get("involuntary_switches") == 0:
        del evidence["voluntary_switches"], evidence["involuntary_switches"]
        evidence = {"switches": 0, **evidence}
    if evidence.get("delay_ns") == 0:
        del evidence["delay_ns"]
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


def _other(name: str, value: object) -> str:
    if name == "idle_seen":
        return "seen idle before" if value else "never seen idle"
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


def condensed(stack: CallStack) -> tuple[CallStack, int]:
    """Return a stack of Python functions without most of the interpreter, and the omitted frames.

    Frames inside of the innermost Python function are complete; between Python functions those of
    extension modules stay. A stack without Python functions, or with a gap, is unchanged.
    """
    frames = stack.frames
    running = [at for at, frame in enumerate(frames) if frame.python and not frame.is_python]
    if not running or stack.gap is not None:
        return stack, 0
    shown = [*frames[: running[0]]]
    for frame in frames[running[0] : running[-1] + 1]:
        if frame.python:
            shown.append(python_alone(frame))
        elif frame.image is None or not frame.image.name.startswith(_INTERPRETERS):
            shown.append(frame)
    return replace(stack, frames=tuple(shown)), len(frames) - len(shown)


_INTERPRETERS = ("libpython", "python", "Python")


def python_alone(frame: Frame) -> Frame:
    """Return an interpreter's frame as the Python functions that it runs."""
    return Frame(address=NO_ADDRESS, status=FrameStatus.PYTHON, python=frame.python)


def stack_lines(stack: CallStack, style: Style) -> Iterator[str]:
    """Yield a stack as an incident shows it."""
    shown, omitted = condensed(stack)
    yield from shown.text_lines(style=style)
    if omitted:
        frames = counted(omitted, "frame") + " of the interpreter omitted"
        yield f"   …  {style.dim}{frames}{style.reset}"


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
