"""Flame graphs: the data, the elements that the page's script fills, and SVG files.

An SVG file is complete without its script, which adds zooming and searching. Its layout is that of
Brendan Gregg's flamegraph.pl --inverted: callers above what they call, so that a few deep stacks do
not move all others out of sight; a frame is as wide as its samples.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple, TextIO

from machtrace.model.profile import OUTERMOST, Profile, StackTable
from machtrace.model.report import Report
from machtrace.model.text import counted, printable
from machtrace.render.call_tree import thread_weights
from machtrace.render.functions import Function, functions_of
from machtrace.reports.analysis.frame_owner import FrameOwner, Owners
from machtrace.reports.html.markup import element, script_data, text
from machtrace.reports.stacks.profiles import profile_of

_MAX_NODES = 300_000
"""Maximum nodes of a graph that browsers still draw promptly."""
_APP, _SYSTEM, _OTHER, _THREAD = range(4)
_KINDS = {
    FrameOwner.APP: _APP,
    FrameOwner.SYSTEM: _SYSTEM,
    FrameOwner.UNKNOWN: _OTHER,
}


def flame_graph(report: Report) -> str:
    """Return the graph of all threads and trees of ``report``, other processes included."""
    profile = profile_of(report)
    data, left_out = flame_data(profile)
    if not data["parents"]:
        return ""
    note = ""
    if left_out:
        message = f"{counted(left_out, 'thread')} are not in the graph, which is full."
        note = element("p", message, class_="none")
    controls = (
        '<div class="controls">'
        '<label>Stacks <select class="mode"><option value="threads">by thread</option>'
        '<option value="merged">of all threads together</option></select></label>'
        '<button type="button" class="out">Zoom out</button>'
        '<button type="button" class="reset">Show all</button></div>'
    )
    canvas = (
        '<div class="scroller"><div class="spacer"><canvas tabindex="0" role="application" '
        'aria-label="Flame graph: arrow keys move, Enter zooms in, Escape zooms out"></canvas>'
        "</div></div>"
    )
    status = '<p class="status" role="status" aria-live="polite"></p>'
    script = f'<script type="application/json">{script_data(data)}</script>'
    no_script = (
        "<noscript><p>The flame graph needs its script; the stacks above do not.</p></noscript>"
    )
    return element("div", controls + canvas + status + script, class_="flame") + note + no_script


def flame_data(profile: Profile) -> tuple[dict[str, Any], int]:
    """Return the graph's columns, and how many threads were dropped for lack of room.

    ``names`` has a row ``[name, image, kind]`` for each function and thread. Nodes are columns:
    ``parents`` has each node's parent, which precedes it, and -1 for a thread's own node; ``keys``
    an index of ``names``; ``own`` the samples that end there.
    """
    table = functions_of(profile.frames)
    owners = Owners(profile.process.path, profile.process.name)
    names = [_name(function, owners) for function in table.functions]
    nodes = _Nodes(profile.stacks, table.keys)
    left_out = 0
    for thread, weights in zip(profile.threads, thread_weights(profile), strict=True):
        if not weights:
            continue
        if len(nodes.parents) > _MAX_NODES:
            left_out += 1
            continue
        nodes.add(len(names), weights)
        names.append([thread.label, "", _THREAD])
    columns = {"parents": nodes.parents, "keys": nodes.keys, "own": nodes.own}
    return {"names": names, **columns}, left_out


class _Nodes:
    """The columns under construction; each thread costs only what it adds."""

    def __init__(self, stacks: StackTable, frame_keys: Sequence[Sequence[int]]) -> None:
        self.parents: list[int] = []
        self.keys: list[int] = []
        self.own: list[int] = []
        self._stacks, self._frame_keys = stacks, frame_keys

    def add(self, key: int, weights: Mapping[int, int]) -> None:
        """Add a thread's stacks, by their rows, under a node of its own."""
        root = self._new(-1, key)
        callers, frames = self._stacks.callers, self._stacks.frames
        node_of_row: dict[int, int] = {}
        children: dict[tuple[int, int], int] = {}
        for stack, weight in weights.items():
            # Up to the first row that has a node, and down again: a thread visits each row once.
            row, path = stack, []
            while row != OUTERMOST and row not in node_of_row:
                path.append(row)
                row = callers[row]
            node = root if row == OUTERMOST else node_of_row[row]
            for row in reversed(path):
                for called in self._frame_keys[frames[row]]:
                    parent, node = node, children.get((node, called), -1)
                    if node < 0:
                        node = children[parent, called] = self._new(parent, called)
                node_of_row[row] = node
            self.own[node] += weight

    def _new(self, parent: int, key: int) -> int:
        self.parents.append(parent)
        self.keys.append(key)
        self.own.append(0)
        return len(self.own) - 1


def _name(function: Function, owners: Owners) -> list[str | int]:
    image = function.image
    kind = _OTHER if image is None else _KINDS[owners.owner(image.path, image.name).owner]
    return [printable(function.name), "" if image is None else printable(image.name), kind]


# --- SVG ---

_WIDTH, _PAD, _ROW = 1200.0, 10.0, 16
"""Pixels of the graph's width, of its margins, and of the height of a frame."""
_HEAD, _FOOT = 58, 30
_NARROWEST = 0.1
"""Pixels of the narrowest frame that is drawn, as flamegraph.pl has it."""
_MAX_FRAMES = 30_000
"""Maximum frames of a file: the widest; about six megabytes."""
_MAX_LEVELS = 2_000
_CHARACTER = 7.25
"""Pixels of a character's width."""
_MIN_CHARACTERS = 3
_MAX_NAME_LENGTH = 500
_HUES = {_APP: (18, 78, 66), _SYSTEM: (48, 70, 66), _OTHER: (200, 35, 72), _THREAD: (220, 16, 80)}
"""Hue, saturation and lightness by kind."""

_STYLE = """\
text { fill: #16181c; font: 12px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
#title { font-size: 16px; font-weight: 600; }
#frames > g { cursor: pointer; }
#frames > g:hover > rect, #frames > g:focus > rect { stroke: #16181c; stroke-width: 1; }
#frames > g:focus { outline: none; }
#frames text { pointer-events: none; }
.above > rect { opacity: .55; }
.hit > rect { fill: #e54bd0; }
.link { cursor: pointer; fill: #0b57c2; text-decoration: underline; }
.hidden { display: none; }
"""


class _Frame(NamedTuple):
    """A frame that is drawn: a node and its position."""

    node: int
    level: int
    start: int
    """The samples to the left of it."""


def write(profile: Profile, sink: TextIO) -> None:
    """Write the flame graph of a profile, by thread, as an SVG file."""
    data, _ = flame_data(profile)
    parents, names, keys = data["parents"], data["names"], data["keys"]
    totals = array("q", data["own"])
    for node in range(len(parents) - 1, -1, -1):
        if parents[node] != OUTERMOST:
            totals[parents[node]] += totals[node]
    whole = sum(total for node, total in enumerate(totals) if parents[node] == OUTERMOST)
    drawn = _drawn(parents, totals, whole)
    levels = 1 + max((frame.level for frame in drawn), default=0)
    height = _HEAD + levels * _ROW + _FOOT
    heading = f"{profile.process}, {counted(whole, 'sample')}"
    sink.write(
        f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" width="{_WIDTH + 2 * _PAD:g}" '
        f'height="{height}" viewBox="0 0 {_WIDTH + 2 * _PAD:g} {height}" '
        f'data-width="{_WIDTH:g}" data-pad="{_PAD:g}">\n<title>{_xml(heading)}</title>\n'
        f"<style>\n{_STYLE}</style>\n"
        '<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text id="title" x="{_PAD:g}" y="24">{_xml(heading)}</text>\n'
        f'<text id="status" x="{_PAD:g}" y="46"/>\n'
        f'<text id="matched" x="{_PAD + _WIDTH:g}" y="24" text-anchor="end"/>\n'
        f'<text id="out" class="link hidden" x="{_PAD + _WIDTH - 200:g}" y="46">Show all</text>\n'
        f'<text id="find" class="link" x="{_PAD + _WIDTH:g}" y="46" text-anchor="end">Search</text>'
        '\n<g id="frames">\n'
    )
    sink.write(_group(["all", "", _THREAD], whole, whole, 0, 0))
    for frame in drawn:
        total = totals[frame.node]
        name = names[keys[frame.node]]
        sink.write(_group(name, total, whole, frame.start, frame.level))
    sink.write("</g>\n")
    left_out = len(parents) - len(drawn)
    if left_out:
        note = f"{counted(left_out, 'frame')} too narrow or too deep to be drawn"
        sink.write(f'<text x="{_PAD:g}" y="{height - 10}">{note}</text>\n')
    script = (files(__package__) / "flame_graph.js").read_text(encoding="utf-8")
    sink.write(f"<script><![CDATA[\n{script}]]></script>\n</svg>\n")


def _drawn(parents: Sequence[int], totals: Sequence[int], whole: int) -> list[_Frame]:
    """Return the widest frames, callers first, siblings from left to right in order of creation."""
    least = max(1, -(-whole * _NARROWEST // _WIDTH))
    wide = [node for node, total in enumerate(totals) if total >= least]
    if len(wide) > _MAX_FRAMES:
        # A caller is as wide as what it calls, and comes first: the graph remains connected.
        wide = sorted(heapq.nsmallest(_MAX_FRAMES, wide, key=lambda node: (-totals[node], node)))
    frames: dict[int, _Frame] = {}
    free: dict[int, int] = {OUTERMOST: 0}
    for node in wide:
        parent = parents[node]
        caller = frames.get(parent)
        level = 1 if caller is None else caller.level + 1
        if (parent != OUTERMOST and caller is None) or level > _MAX_LEVELS:
            continue
        start = free.get(parent, 0 if caller is None else caller.start)
        free[parent] = start + totals[node]
        frames[node] = _Frame(node, level, start)
    return list(frames.values())


def _group(name: Sequence[Any], total: int, whole: int, start: int, level: int) -> str:
    function, image, kind = name
    scale = _WIDTH / max(1, whole)
    left, width = _PAD + start * scale, total * scale
    top = _HEAD + level * _ROW
    label = function if len(function) <= _MAX_NAME_LENGTH else f"{function[:_MAX_NAME_LENGTH]}…"
    where = f" ({image})" if image else ""
    share = f"{counted(total, 'sample')}, {total / max(1, whole):.2%}"
    room = int((width - 4) / _CHARACTER)
    inside = ""
    if room >= _MIN_CHARACTERS:
        shown = label if len(label) <= room else f"{label[: room - 1]}…"
        inside = f'<text x="{left + 3:.1f}" y="{top + 11.5:g}">{_xml(shown)}</text>'
    # A function's name decides its colour in all graphs.
    digest = sum(ord(character) * (number + 1) for number, character in enumerate(function[:64]))
    hue, saturation, light = _HUES[kind]
    colour = f"hsl({hue + digest % 21 - 10},{saturation}%,{light + digest // 21 % 9 - 4}%)"
    return (
        f'<g data-x="{start}" data-w="{total}" data-level="{level}" data-name="{_xml(label)}">'
        f"<title>{_xml(label + where)}\n{share}</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{max(width - 0.4, 0.1):.1f}" height="{_ROW - 1}" '
        f'rx="1" fill="{colour}"/>{inside}</g>\n'
    )


def _xml(value: str) -> str:
    return text(value).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")
