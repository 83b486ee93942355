"""Folded stacks: a line for each, as Brendan Gregg's ``flamegraph.pl`` reads them.

Source of the format: the README of github.com/brendangregg/FlameGraph: the functions of a stack,
outermost first, separated by semicolons; a space; the count.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TextIO

from machtrace.model.profile import OUTERMOST, Profile
from machtrace.model.text import printable
from machtrace.render.call_tree import CallTree, bounded, call_tree, thread_weights
from machtrace.render.functions import FunctionKind, FunctionTable, functions_of

ROOM = 1 << 28
"""Characters of a file up to which repeated names are written in full."""
_SHORT = 64


def write(profile: Profile, sink: TextIO) -> None:
    """Write a line for each distinct stack of functions, thread by thread.

    The outermost name is the thread's, unless all threads are merged.
    """
    profile = bounded(profile)
    table = functions_of(profile.frames)
    keys = table.keys
    names = [_name(table, number) for number in range(len(table.functions))]
    room = ROOM
    for thread, weights in zip(profile.threads, thread_weights(profile), strict=True):
        tree = call_tree(profile.stacks, weights, keys)
        label = "" if thread.is_all else _escaped(thread.label)
        room -= _size(tree, names, label)
        if room < 0:  # only names made to fill a disk are this long
            names, label = [_short(name) for name in names], _short(label)
        sink.writelines(_lines(tree, names, (label,) if label else ()))


def _size(tree: CallTree, names: list[str], label: str) -> int:
    """Return the number of characters of the lines."""
    sizes = array("q")
    whole = 0
    for caller, key, own in zip(tree.callers, tree.keys, tree.own, strict=True):
        # A line is its caller's line, a semicolon and a name: callers come first.
        size = len(names[key]) + 1 + (len(label) if caller == OUTERMOST else sizes[caller])
        sizes.append(size)
        whole += size if own else 0
    return whole


def _short(name: str) -> str:
    return name if len(name) <= _SHORT else f"{name[:_SHORT]}…"


def _lines(tree: CallTree, names: list[str], first: tuple[str, ...]) -> Iterator[str]:
    path: list[int] = []
    for node, _ in tree.walk():
        while path and path[-1] != tree.callers[node]:
            path.pop()
        path.append(node)
        if tree.own[node]:
            called = (names[tree.keys[one]] for one in path)
            yield f"{';'.join((*first, *called))} {tree.own[node]}\n"


def _name(table: FunctionTable, number: int) -> str:
    function = table.functions[number]
    if function.kind is FunctionKind.PYTHON:
        return _escaped(f"{function.name} ({function.path.rpartition('/')[2]})")
    return _escaped(function.name)


def _escaped(name: str) -> str:
    """Return ``name`` without semicolons, which separate functions."""
    return printable(name).replace(";", ":") or "?"
