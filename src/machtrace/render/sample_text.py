"""A profile in the style of Apple's ``sample``: a call graph of each thread, with counts.

Sources: sample(1) of macOS, and reports of it that people published. A line is
``COUNT NAME  (in IMAGE) + OFFSET  [ADDRESS]  FILE:LINE``, after two columns for each caller, in
which lines of ``+ ! : |`` lead on to what was called from the same place. A function where stacks
end has all offsets and addresses in one line; one that called on has a line for each place that it
called from.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TextIO

from machtrace.render.profile_weights import all_weights, thread_weights
from machtrace.model.image import BinaryImage
from machtrace.model.profile import Profile
from machtrace.model.thread import ThreadInfo
from machtrace.render.printable import printable
from machtrace.render.sample_graph import SampleGraph

_MAIN_QUEUE = "com.apple.main-thread"


def write(profile: Profile, sink: TextIO, *, merge_threads: bool = False) -> None:
    """The whole report; with ``merge_threads`` one call graph of all threads together."""
    graph = SampleGraph.of(profile)
    sink.writelines(line + "\n" for line in _header(profile))
    sink.write("\nCall graph:\n")
    if merge_threads:
        heads = [f"{sum(profile.samples.weights)} All threads"]
        weights = [all_weights(profile)]
    else:
        heads = [f"{one.samples} {_thread(one.info)}" for one in profile.threads]
        weights = thread_weights(profile)
    trees = [graph.tree(one) for one in weights]
    for number, head in enumerate(heads):
        lines = graph.lines(trees[number], weights[number], is_last=number == len(heads) - 1)
        sink.writelines(f"{line}\n" for line in (f"    {head}", *lines))
    sink.write("\nTotal number in stack (recursive counted multiple, when >=5):\n")
    sink.writelines(f"{line}\n" for line in graph.in_many_lines(trees))
    sink.write("\nSort by top of stack, same collapsed (when >= 5):\n")
    sink.writelines(f"{line}\n" for line in graph.at_the_top(trees))
    sink.write("\nBinary Images:\n")
    sink.writelines(f"{_image(one, profile.process.path)}\n" for one in profile.images)


def _header(profile: Profile) -> Iterator[str]:
    process, run = profile.process, profile.run
    name = printable(process.name) or "process"
    pid = "?" if process.pid is None else str(process.pid)
    every = f"{run.interval_ns / 1e6:.3f}".rstrip("0").rstrip(".")
    yield f"Analysis of sampling {name} (pid {pid}) every {every} milliseconds"
    yield f"Process:         {name} [{pid}]"
    yield f"Path:            {printable(process.path) or '?'}"
    program = next((one for one in profile.images if one.path == process.path), None)
    if program is not None:
        yield f"Load Address:    {program.load_address:#x}"
    yield f"Code Type:       {process.arch.value}"
    yield ""
    started = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=run.started_at_ns // 1000)
    yield f"Date/Time:       {started:%Y-%m-%d %H:%M:%S}.{started.microsecond // 1000:03d} +0000"
    yield "Report Version:  7"
    yield "Analysis Tool:   machtrace"
    yield f"Sampled:         {run.ticks} times in {run.duration_ns / 1e9:.3f} s, {run.lost} lost"
    if profile.stopped_share is not None:
        yield f"Stopped:         {profile.stopped_share:.2%} of the time"
    yield "----"


def _thread(info: ThreadInfo) -> str:
    text = f"Thread_{info.id}"
    if info.name:
        text += f": {printable(info.name)}"
    if info.queue == _MAIN_QUEUE:
        return f"{text}   DispatchQueue_1: {_MAIN_QUEUE}  (serial)"
    return f"{text}   DispatchQueue: {printable(info.queue)}" if info.queue else text


def _image(image: BinaryImage, program: str) -> str:
    mark = "+" if image.path == program else " "
    identifier = "" if image.identifier is None else f" <{image.identifier}>"
    name, path = printable(image.name) or "?", printable(image.path)
    last = image.end - 1 if image.size else image.load_address
    return f"{image.load_address:#18x} - {last:#18x} {mark}{name}{identifier} {path}"
