"""The stack and the function that stand for the samples of an incident."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from machtrace.model.incident.facts import Culprit, TimedStack
from machtrace.model.symbol import CallStack
from machtrace.watching.hangs.wait_roles import is_machinery

_SHARE = 0.6
"""The share of its parent's time that a function needs to be followed."""

_ALONE = 0.8
"""The share that the first sample needs if it is alone among several: it stands for all of the time
before it."""

FunctionKey: TypeAlias = tuple[str, str | None, bool]
"""A function's name, its file or image, and whether it is a Python function."""


class _Entry(NamedTuple):
    """A function of a stack, from the outer end."""

    function: str
    image: str | None
    file: str | None
    line: int | None
    is_python: bool
    in_call: bool = False
    """Whether the sample found it in a system call."""

    @property
    def key(self) -> FunctionKey:
        return self.function, self.file if self.is_python else self.image, self.is_python


class Representative(NamedTuple):
    """The result for some stacks."""

    stack: int
    """The index of the stack that stands for most of the time."""
    culprit: Culprit


def representative(
    stacks: Sequence[TimedStack], *, ran: bool = False, limit: int | None = None
) -> Representative | None:
    """Return the function where the time went; None without named stacks.

    The stacks are merged to a tree by function. From the outer end it is followed down while one
    child has 60 % of the time of its parent; the function where it splits is the culprit. In a
    program with Python functions it is the innermost Python function on that path, and the native
    function at its end is named beside it.

    Args:
        stacks: the samples.
        ran: whether the thread ran. Stops hit system calls more often than their share of the time,
            so that a function in one is not followed from a caller that has samples of its own.
        limit: the number of functions that are followed.
    """
    paths = [_entries(timed.stack) for timed in stacks]
    total = sum(max(1, timed.weight_ns) for timed in stacks)
    if not any(paths):
        return None
    members = list(range(len(stacks)))
    if any(entry.is_python for path in paths for entry in path):
        # A sample without Python functions was taken before they could be read.
        members = [at for at in members if any(entry.is_python for entry in paths[at])]
        total = sum(_weight(stacks, members))
    path: list[int] = []
    shares: list[float] = []
    depth = 0
    while limit is None or depth < limit:
        groups: dict[object, list[int]] = defaultdict(list)
        for index in members:
            if depth < len(paths[index]):
                groups[paths[index][depth].key].append(index)
        if not groups:
            break
        weight = sum(_weight(stacks, members))
        best = max(groups.values(), key=lambda group: sum(_weight(stacks, group)))
        share = sum(_weight(stacks, best))
        needed = _ALONE if best == [0] and len(members) > 1 else _SHARE
        if share < needed * weight:
            break
        has_own = any(len(paths[index]) == depth for index in members)
        ends = [paths[index] for index in best if len(paths[index]) == depth + 1]
        if ran and has_own and len(ends) == len(best) and all(end[-1].in_call for end in ends):
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


def path_of(stack: CallStack) -> tuple[FunctionKey, ...]:
    """Return the functions of a stack, outermost first, without the C library's at both ends.

    Functions without a name have that of their page of memory.
    """
    return tuple(entry.key for entry in _entries(stack, addresses=True))


def is_unnamed(key: FunctionKey) -> bool:
    """Whether a function of :func:`path_of` may be any: it has no name, or V8 interprets it."""
    return key[0].startswith("?") or key[0] == _V8_INTERPRETER


def _weight(stacks: Sequence[TimedStack], indexes: Sequence[int]) -> list[int]:
    return [max(1, stacks[index].weight_ns) for index in indexes]


def _culprit(entries: Sequence[_Entry], shares: Sequence[float]) -> Culprit:
    level = len(entries) - 1
    pythons = [number for number, entry in enumerate(entries) if entry.is_python]
    native = None
    if pythons:
        level = pythons[-1]
        inner = [entry for entry in entries[level + 1 :] if not _is_glue(entry.function)]
        native = next((each.function for each in inner if not _is_foreign_call(each)), None)
        native = native or (inner[-1].function if inner else None)
    else:
        level = _last_known(entries)
        if entries[level].function.startswith(_V8_ENTRY):
            return Culprit(_JAVASCRIPT, entries[level].image, None, None, shares[level])
    entry = entries[level]
    return Culprit(entry.function, entry.image, entry.file, entry.line, shares[level], native)


def _last_known(entries: Sequence[_Entry]) -> int:
    """Return the innermost function that is no part of a wait, the same in every program."""
    level = len(entries) - 1
    is_waiting = entries[-1].in_call
    while level > 0 and (
        _is_glue(entries[level].function)
        or is_unnamed(entries[level].key)
        or (is_waiting and is_machinery(entries[level].function))
    ):
        level -= 1
    return level


def _unknown(entries: Sequence[_Entry], share: float) -> Culprit:
    entry = entries[-1] if entries else _Entry("?", None, None, None, is_python=False)
    return Culprit(entry.function, entry.image, entry.file, entry.line, share)


_V8_INTERPRETER, _V8_ENTRY = "Builtins_InterpreterEntryTrampoline", "Builtins_JSEntry"
_JAVASCRIPT = "JavaScript (functions without names)"
_PAGE = ~0xFFF

_GLUE_PREFIXES: tuple[str, ...] = (
    "_PyEval_",
    "_PyFunction_",
    "PyObject_",
    "_PyObject_",
    "cfunction_",
    "method_",
)
_GLUE_PREFIXES += ("PyVectorcall_", "_TAIL_CALL_", "pymain_", "Py_Run", "PyRun_", "PyEval_")
_STARTS = ("_start", "start", "thread_start")
_COMPUTING: tuple[str, ...] = (
    *("mem", "str", "wcs", "wmem", "int_", "malloc", "calloc", "realloc", "free", "cfree", "libc_"),
    *("qsort", "msort", "bsearch", "rand", "vfprintf", "printf", "vsnprintf", "tcache", "unlink_"),
)
"""Functions of the C library that are no system calls, without underscores in front."""
_LIBC = ("libc.so", "libc-", "libpthread", "ld-linux", "ld-musl", "libsystem_", "[vdso]")


def _is_glue(name: str) -> bool:
    return name.startswith(_GLUE_PREFIXES)


def _is_foreign_call(entry: _Entry) -> bool:
    """Whether it is between a Python function and a C function that it calls by ``ctypes``."""
    return (entry.image or "").startswith(("libffi", "_ctypes"))


def _entries(stack: CallStack, *, addresses: bool = False) -> list[_Entry]:
    """Return a stack's functions, outermost first; the C library's at both ends are left out.

    Of a Python program's native functions only those inside of the innermost Python function are
    part of it: the others depend on how CPython has adapted its instructions.
    """
    entries: list[_Entry] = []
    for frame in reversed(stack.frames):
        image = None if frame.image is None else frame.image.name
        for function in reversed(frame.python):
            place = function.location
            entries.append(_Entry(function.name, image, place.path, place.line, is_python=True))
        if frame.symbol is None or frame.is_python:
            if not frame.is_python:
                name = f"?{frame.address.address & _PAGE:#x}" if addresses else "?"
                entries.append(_Entry(name, image, None, None, is_python=False))
            continue
        at = frame.location
        path, line = (None, None) if at is None else (at.path, at.line)
        entries.append(_Entry(frame.symbol.name, image, path, line, is_python=False))
    inner = entries[-1].function if entries else ""
    is_complete = True
    while len(entries) > 1 and (entries[-1].image or "").startswith(_LIBC):
        if entries[-1].is_python:
            break
        entries.pop()
        is_complete = False
    if not is_complete and not inner.lstrip("_").startswith(_COMPUTING):
        entries[-1] = entries[-1]._replace(in_call=True)
    start = next((at for at, entry in enumerate(entries) if not _is_start(entry)), 0)
    inner_python = max((at for at, each in enumerate(entries) if each.is_python), default=-1)
    outer = [each for each in entries[start : inner_python + 1] if each.is_python]
    return outer + entries[max(start, inner_python + 1) :]


def _is_start(entry: _Entry) -> bool:
    return entry.function in _STARTS or (
        not entry.is_python and (entry.image or "").startswith(_LIBC)
    )
