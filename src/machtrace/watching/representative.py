"""The stack and the function that stand for the samples of an incident."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from machtrace.model.incident import Culprit, TimedStack
from machtrace.model.symbol import CallStack

_SHARE = 0.6
"""The share of its parent's time that a function needs to be followed."""


class _Entry(NamedTuple):
    """A function of a stack, from the outer end."""

    function: str
    image: str | None
    file: str | None
    line: int | None
    is_python: bool

    @property
    def key(self) -> tuple[str, str | None, bool]:
        return self.function, self.file if self.is_python else self.image, self.is_python


class Representative(NamedTuple):
    """The result for some stacks."""

    stack: int
    """The index of the stack that stands for most of the time."""
    culprit: Culprit


def representative(stacks: Sequence[TimedStack]) -> Representative | None:
    """Return the function where the time went; None without named stacks.

    The stacks are merged to a tree by function. From the outer end it is followed down while one
    child has 60 % of the time of its parent; the function where it splits is the culprit. In a
    program with Python functions it is the innermost Python function on that path, and the native
    function at its end is named beside it.
    """
    paths = [_entries(timed.stack) for timed in stacks]
    total = sum(max(1, timed.weight_ns) for timed in stacks)
    if not any(paths):
        return None
    members = list(range(len(stacks)))
    path: list[int] = []
    shares: list[float] = []
    depth = 0
    while True:
        groups: dict[object, list[int]] = defaultdict(list)
        for index in members:
            if depth < len(paths[index]):
                groups[paths[index][depth].key].append(index)
        if not groups:
            break
        weight = sum(_weight(stacks, members))
        best = max(groups.values(), key=lambda group: sum(_weight(stacks, group)))
        share = sum(_weight(stacks, best))
        if share < _SHARE * weight:
            break
        members = best
        path.append(best[-1])
        shares.append(share / total)
        depth += 1
    index = max(members, key=lambda number: max(1, stacks[number].weight_ns))
    if not path:
        return Representative(index, _unknown(paths[index], 1.0))
    # The last of the members at the end of the path has the newest line.
    entries = [paths[number][level] for level, number in enumerate(path)]
    return Representative(index, _culprit(entries, shares))


def _weight(stacks: Sequence[TimedStack], indexes: Sequence[int]) -> list[int]:
    return [max(1, stacks[index].weight_ns) for index in indexes]


def _culprit(entries: Sequence[_Entry], shares: Sequence[float]) -> Culprit:
    level = len(entries) - 1
    pythons = [number for number, entry in enumerate(entries) if entry.is_python]
    native = None
    if pythons:
        level = pythons[-1]
        inner = [entry for entry in entries[level + 1 :] if not _is_glue(entry.function)]
        native = inner[0].function if inner else None
    else:
        # The functions of the wait itself are the same in every program.
        while level > 0 and _is_glue(entries[level].function):
            level -= 1
    entry = entries[level]
    return Culprit(entry.function, entry.image, entry.file, entry.line, shares[level], native)


def _unknown(entries: Sequence[_Entry], share: float) -> Culprit:
    entry = entries[-1] if entries else _Entry("?", None, None, None, is_python=False)
    return Culprit(entry.function, entry.image, entry.file, entry.line, share)


_GLUE_PREFIXES: tuple[str, ...] = (
    "_PyEval_",
    "_PyFunction_",
    "PyObject_",
    "_PyObject_",
    "cfunction_",
    "method_",
)
_GLUE_PREFIXES += ("PyVectorcall_", "_TAIL_CALL_", "pymain_", "Py_Run", "PyRun_", "PyEval_")
_LIBC = ("libc.so", "libc-", "libpthread", "ld-linux", "ld-musl", "libsystem_", "[vdso]")


def _is_glue(name: str) -> bool:
    return name.startswith(_GLUE_PREFIXES)


def _entries(stack: CallStack) -> list[_Entry]:
    """Return a stack's functions, outermost first; the C library's own at the end are left out."""
    entries: list[_Entry] = []
    for frame in reversed(stack.frames):
        image = None if frame.image is None else frame.image.name
        for function in reversed(frame.python):
            place = function.location
            entries.append(_Entry(function.name, image, place.path, place.line, is_python=True))
        if frame.symbol is None or frame.is_python:
            if not frame.is_python:
                entries.append(_Entry("?", image, None, None, is_python=False))
            continue
        at = frame.location
        path, line = (None, None) if at is None else (at.path, at.line)
        entries.append(_Entry(frame.symbol.name, image, path, line, is_python=False))
    while len(entries) > 1 and (entries[-1].image or "").startswith(_LIBC):
        if entries[-1].is_python:
            break
        entries.pop()
    return entries
