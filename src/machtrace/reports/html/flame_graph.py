"""A report's stacks as a flame graph: its data, and the elements that the page's script fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from machtrace.model.profile import OUTERMOST, Profile, StackTable
from machtrace.model.report import Report
from machtrace.model.text import counted, printable
from machtrace.render.call_tree import thread_weights
from machtrace.render.functions import Function, functions_of
from machtrace.reports.analysis.frame_owner import FrameOwner, Owners
from machtrace.reports.html.markup import element, script_data
from machtrace.reports.stacks.profiles import profile_of

_MOST_NODES = 300_000
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
        if len(nodes.parents) > _MOST_NODES:
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
