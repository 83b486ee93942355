"""A profile in the style of Apple's ``sample``: a call graph of each thread, with counts.

Sources: sample(1) of macOS, and published reports of it. A line is ``COUNT NAME  (in IMAGE) +
OFFSET  [ADDRESS]  FILE:LINE``, after two columns for each caller, in which lines of ``+ ! : |``
connect callees of the same call site. A function where stacks end has all offsets and addresses in
one line; one that called others has a line for each call site.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from typing import TextIO

from machtrace.frozen import dataclass
from machtrace.model.image import BinaryImage
from machtrace.model.profile import OUTERMOST, Profile, SampledThread, SamplingRun
from machtrace.model.symbol import Frame, SourceLocation
from machtrace.model.text import printable
from machtrace.render.call_tree import CallTree, call_tree, thread_weights
from machtrace.render.functions import Function, FunctionKind, FunctionTable, functions_of

_MARKS = "+!:|"
_SHOWN = 3
"""Offsets, addresses and lines shown of a function where stacks end."""
_FEW = 5
"""The minimum count in the lists at the end."""
_MAX_DEPTH = 1024
"""Columns grow with depth: of deeper nodes only the number of lines is printed."""

_Place = tuple[int, int]
"""A frame, and the number of one of its calls, outermost first."""


@dataclass(frozen=True, slots=True)
class SampleGraph:
    """Trees of a profile's stacks, and their lines.

    Keys below the number of all calls are functions that called others, one for each call site;
    keys above are functions where stacks end.
    """

    profile: Profile
    functions: FunctionTable
    places: list[_Place]
    """The call site of each key of a calling function."""
    keys: list[range]
    """Each frame's call sites."""
    leaf_keys: list[list[int]]
    """Each frame's functions, if a stack ends there."""

    @classmethod
    def of(cls, profile: Profile) -> SampleGraph:
        """Build the graph of all stacks."""
        functions = functions_of(profile.frames)
        ends = [0, *accumulate(len(calls) for calls in functions.calls)]
        keys = [range(begin, end) for begin, end in pairwise(ends)]
        places = [
            (frame, at) for frame, calls in enumerate(functions.calls) for at in range(len(calls))
        ]
        leaf_keys = [[len(places) + call.function for call in calls] for calls in functions.calls]
        return cls(profile, functions, places, keys, leaf_keys)

    def tree(self, weights: Mapping[int, int]) -> CallTree:
        """Merge calls by call site, the ends of stacks by function."""
        return call_tree(self.profile.stacks, weights, self.keys, leaf_keys=self.leaf_keys)

    def lines(self, tree: CallTree, weights: Mapping[int, int], *, is_last: bool) -> Iterator[str]:
        """Yield a line for each node; ``is_last``: no thread follows, so no line leads on."""
        ends = self._ends(tree, weights)

        def text(node: int) -> str:
            key = tree.keys[node]
            places = [self.places[key]] if key < len(self.places) else ends[node]
            return f"{tree.total[node]} {self._node(places)}"

        nodes = ((node, tree.callers[node], last) for node, last in tree.walk())
        return graph_lines(nodes, text, is_last=is_last)

    def in_many_lines(self, trees: Iterable[CallTree]) -> Iterator[str]:
        """Yield functions by the number of their lines."""
        counts: Counter[str] = Counter()
        for tree in trees:
            counts.update(self._name(self._function(key)) for key in tree.keys)
        yield from many_lines(counts)

    def at_the_top(self, trees: Iterable[CallTree]) -> Iterator[str]:
        """Yield functions by how often stacks ended in them."""
        counts: Counter[str] = Counter()
        for tree in trees:
            for key, own in zip(tree.keys, tree.own, strict=True):
                if own:
                    counts[self._name(self._function(key))] += own
        yield from top_lines(counts)

    def _function(self, key: int) -> Function:
        if key < len(self.places):
            frame, at = self.places[key]
            number = self.functions.calls[frame][at].function
        else:
            number = key - len(self.places)
        return self.functions.functions[number]

    def _ends(self, tree: CallTree, weights: Mapping[int, int]) -> dict[int, list[_Place]]:
        """Return the call sites of each node where stacks end, heaviest first."""
        ends: dict[int, Counter[_Place]] = {}
        for row, node in tree.node_of_stack.items():
            frame, weight = self.profile.stacks.frames[row], weights[row]
            for at in reversed(range(len(self.keys[frame]))):
                ends.setdefault(node, Counter())[frame, at] += weight
                node = tree.callers[node]  # noqa: PLW2901 - what is inlined is called by what holds it
        return {
            node: [place for place, _ in counted.most_common()] for node, counted in ends.items()
        }

    # --- one line ---

    def _node(self, places: Sequence[_Place]) -> str:
        frame, at = places[0]
        call = self.functions.calls[frame][at]
        function = self.functions.functions[call.function]
        name = self._name(function)
        if function.kind is FunctionKind.MISSING:
            return name
        where = _lines([self.functions.calls[frame][n].location for frame, n in places])
        if function.kind is FunctionKind.PYTHON:
            return name + where
        frames = (self.profile.frames[number] for number, _ in places)
        physical = [frame for frame in frames if isinstance(frame, Frame)]
        addresses = _listed(f"{frame.address.address:#x}" for frame in physical)
        if call.inline_depth:
            return f"{name}  [{addresses}]{where}  [inlined]"
        return f"{name}{_offsets(physical)}  [{addresses}]{where}"

    def _name(self, function: Function) -> str:
        if function.kind is FunctionKind.PYTHON:
            return f"{printable(function.name)}  (in Python)"
        if function.image is None:
            is_unknown = function.kind is FunctionKind.NATIVE and not function.is_named
            return "???" if is_unknown else printable(function.name)
        name = printable(function.name) if function.is_named else "???"
        return f"{name}  (in {printable(function.image.name) or '?'})"


def graph_lines(
    nodes: Iterable[tuple[int, int, bool]], text: Callable[[int], str], *, is_last: bool
) -> Iterator[str]:
    """Yield the lines of a thread's nodes, after columns that connect callees of one caller.

    Args:
        nodes: each node after its caller, with its caller, or
            :data:`~machtrace.model.profile.OUTERMOST`, and whether it is its caller's last.
        text: returns a node's count and function.
        is_last: whether no thread follows.
    """
    top = ("      ", 0) if is_last else ("    + ", 1)
    beside: dict[int, tuple[str, int]] = {OUTERMOST: top}
    depths: dict[int, int] = {OUTERMOST: 0}
    deeper = 0
    for node, caller, is_last_called in nodes:
        depth = depths[node] = depths[caller] + 1
        if depth > _MAX_DEPTH:
            deeper += 1
            continue
        before, marks = beside[caller]
        yield f"{before}{text(node)}"
        mark = " " if is_last_called else _MARKS[marks % len(_MARKS)]
        beside[node] = f"{before}{mark} ", marks + (not is_last_called)
    if deeper:
        yield f"{top[0]}... {deeper} more lines, deeper than {_MAX_DEPTH} calls"


def _offsets(frames: Sequence[Frame]) -> str:
    """Return offsets from the function's start, or from the image's if that is unknown."""
    first = frames[0]
    if first.symbol is not None and first.symbol.is_named:
        is_known = first.symbol_offset is not None
        return f" + {_listed(str(frame.symbol_offset) for frame in frames)}" if is_known else ""
    image = first.image
    if image is None or not first.is_placed:
        return ""
    offsets = _listed(f"{image.offset_of(one.address.address):#x}" for one in frames)
    return f"  load address {image.load_address:#x} + {offsets}"


def _lines(locations: Iterable[SourceLocation | None]) -> str:
    """Return the first file, and all lines in it."""
    known = [location for location in locations if location is not None and location.path]
    if not known:
        return ""
    path = known[0].path
    lines = dict.fromkeys(
        str(location.line) for location in known if location.path == path and location.line
    )
    name = printable(path.rpartition("/")[2])
    return f"  {name}:{_listed(lines)}" if lines else f"  {name}"


def _listed(texts: Iterable[str]) -> str:
    shown = list(texts)
    return ",".join(shown[:_SHOWN]) + (",..." if len(shown) > _SHOWN else "")


def many_lines(counts: Counter[str]) -> Iterator[str]:
    """Yield the functions with many lines, and their number."""
    for name, count in _most(counts):
        yield f"        {count:<7} {name}"


def top_lines(counts: Counter[str]) -> Iterator[str]:
    """Yield the functions in which many stacks ended, and their number."""
    for name, count in _most(counts):
        yield f"        {name}        {count}"


def _most(counts: Counter[str]) -> list[tuple[str, int]]:
    """Return the frequent ones, most frequent first, equal ones by name."""
    ordered = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    return [row for row in ordered if row[1] >= _FEW]


MANY_LINES = "Total number in stack (recursive counted multiple, when >=5):"
TOP_OF_STACK = "Sort by top of stack, same collapsed (when >= 5):"
_MAIN_QUEUE = "com.apple.main-thread"


def write(
    profile: Profile,
    sink: TextIO,
    *,
    header: Iterable[str] | None = None,
) -> None:
    """Write the whole report.

    Args:
        profile: what to write.
        sink: where to.
        header: the lines before the graph; None derives them from the profile.
    """
    graph = SampleGraph.of(profile)
    lines_before = _header(profile) if header is None else header
    sink.writelines(line + "\n" for line in lines_before)
    sink.write("\nCall graph:\n")
    heads = [f"{thread.samples} {_thread(thread)}" for thread in profile.threads]
    weights = thread_weights(profile)
    trees = [graph.tree(counts) for counts in weights]
    for number, head in enumerate(heads):
        lines = graph.lines(trees[number], weights[number], is_last=number == len(heads) - 1)
        sink.writelines(f"{line}\n" for line in (f"    {head}", *lines))
    sink.write(f"\n{MANY_LINES}\n")
    sink.writelines(f"{line}\n" for line in graph.in_many_lines(trees))
    sink.write(f"\n{TOP_OF_STACK}\n")
    sink.writelines(f"{line}\n" for line in graph.at_the_top(trees))
    sink.write("\nBinary Images:\n")
    sink.writelines(f"{_image(image, profile.process.path)}\n" for image in profile.images)


def _header(profile: Profile) -> Iterator[str]:
    process, run = profile.process, profile.run
    name = printable(process.name) or "process"
    pid = "?" if process.pid is None else str(process.pid)
    yield analysis_line(name, process.pid, run)
    yield f"Process:         {name} [{pid}]"
    yield f"Path:            {printable(process.path) or '?'}"
    program = next((image for image in profile.images if image.path == process.path), None)
    if program is not None:
        yield f"Load Address:    {program.load_address:#x}"
    yield f"Code Type:       {process.arch.value}"
    yield ""
    yield f"Date/Time:       {start_time(run)}"
    yield "Report Version:  7"
    yield "Analysis Tool:   machtrace"
    yield f"Sampled:         {sampled_text(run)}"
    if profile.stopped_share is not None:
        yield f"Stopped:         {profile.stopped_share:.2%} of the time"
    yield "----"


def analysis_line(name: str, pid: int | None, run: SamplingRun) -> str:
    """Return the first line: the process and the interval."""
    every = f"{run.interval_ns / 1e6:.3f}".rstrip("0").rstrip(".")
    unit = "millisecond" if every == "1" else "milliseconds"
    return f"Analysis of sampling {name} (pid {'?' if pid is None else pid}) every {every} {unit}"


def start_time(run: SamplingRun) -> str:
    """Return when sampling began, in UTC."""
    started = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=run.started_at_ns // 1000)
    return f"{started:%Y-%m-%d %H:%M:%S}.{started.microsecond // 1000:03d} +0000"


def sampled_text(run: SamplingRun) -> str:
    """Return how often the process was sampled, in how long."""
    times = "time" if run.ticks == 1 else "times"
    return f"{run.ticks} {times} in {run.duration_ns / 1e9:.3f} s, {run.lost} lost"


def _thread(thread: SampledThread) -> str:
    info = thread.info
    text = thread.label if thread.merged is not None else f"Thread_{info.id}"
    if info.name and thread.merged is None:
        text += f": {printable(info.name)}"
    if info.queue:
        is_main = info.queue == _MAIN_QUEUE
        text += "   DispatchQueue_1: " if is_main else "   DispatchQueue: "
        text += printable(info.queue) + ("  (serial)" if is_main else "")
    return with_activity(text, thread.activity)


def with_activity(heading: str, activity: str) -> str:
    """Return a thread's heading with what is known of its processor time."""
    return f"{heading}   ({activity})" if activity else heading


_ACTIVITY = re.compile(r"(?P<heading>.*\S)   \((?P<parts>[0-9][0-9a-zA-Z., ]{1,120})\)")
_PARTS = {
    "merged": re.compile(r"([0-9,]{1,20}) threads?"),
    "running": re.compile(r"([0-9,]{1,20}) running"),
    "left_out": re.compile(r"([0-9,]{1,20}) idle left out"),
    "cpu_ns": re.compile(r"([0-9]{1,12}\.[0-9]{3}) s CPU"),
}


def without_activity(heading: str) -> tuple[str, dict[str, int]]:
    """Split what :func:`with_activity` returned; the numbers are by their names in the model."""
    match = _ACTIVITY.fullmatch(heading)
    numbers: dict[str, int] = {}
    for part in () if match is None else match["parts"].split(", "):
        known = ((name, form.fullmatch(part)) for name, form in _PARTS.items())
        name, number = next(((name, one[1]) for name, one in known if one), ("", ""))
        digits = number.replace(",", "").replace(".", "")
        if not digits:
            return heading, {}
        numbers[name] = int(digits) * (1_000_000 if name == "cpu_ns" else 1)
    return (heading, {}) if match is None else (match["heading"], numbers)


def _image(image: BinaryImage, program: str) -> str:
    mark = "+" if image.path == program else " "
    identifier = "" if image.identifier is None else f" <{image.identifier}>"
    name, path = printable(image.name) or "?", printable(image.path)
    last = image.end - 1 if image.size else image.load_address
    return f"{image.load_address:#18x} - {last:#18x} {mark}{name}{identifier} {path}"
