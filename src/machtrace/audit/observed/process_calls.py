"""Calls of one process, read from the agent's spool; numbers of images and rules are its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.audit.rules import RuleKind, RuleSet
from machtrace.audit.scan.elf_names import LARGE_FILE_NAMES, OTHER_NAMES, rule_of_function
from machtrace.audit.trail.calls import NO_TIME, NONE, CallFlag, Image, ImageRole, Process
from machtrace.audit.trail.stacks import NO_IMAGE, OUTER_MISSING, ROOT, StackTree
from machtrace.frozen import dataclass
from machtrace.model.text import counted
from machtrace.reports.spool.spool import AppState, EventFlag, Spool, SpoolImage
from machtrace.reports.spool.tree import SITE

_SYSTEM_PATH = re.compile(
    r"(?:/usr)?/lib(?:32|64|x32)?/|\[vdso\]|linux-vdso|/System/|/Library/Apple/|/Developer/"
    r"|/private/preboot/|.*/RuntimeRoot/(?:System|usr)/"
)
_AGENT = re.compile(r"(?:.*/)?(?:libmachtrace(?:-[0-9a-f]+)?\.so|Machtrace)\Z")
_FLAGS = (
    (EventFlag.MAIN_THREAD, CallFlag.MAIN_THREAD),
    (EventFlag.CUT | EventFlag.NO_FRAME_POINTER, CallFlag.OUTER_MISSING),
    (EventFlag.INCOMPLETE, CallFlag.INNER_MISSING),
    (EventFlag.NESTED, CallFlag.NESTED),
)
NOT_DEFINED = "nothing defines it"
"""The reason of a watched function that no image of the process has."""
ABSENT = 2
"""The state of such a function's rule."""
_DEAD = {
    0: "nothing imports it",
    ABSENT: NOT_DEFINED,
    3: "too many functions were watched",
    6: "it could not be hooked",
}
_BLIND = frozenset({3, 6})
"""States in which calls may have happened unobserved."""
_LATE = "the agent was initialised after other images"
"""A mark that a preloaded agent stores itself."""
_WALL_ERROR = 1_000_000


class DeadWatch(NamedTuple):
    """A function that the process could not observe, and the reason."""

    watch: str
    reason: str
    is_blind: bool
    """Whether calls may have happened unobserved."""


class Moments(NamedTuple):
    """Times of one process, on the scale of its calls."""

    started: int
    marks: tuple[tuple[int, str], ...]
    """Texts that the program stored."""
    first_calls: Mapping[str, int]
    """By watched function."""
    is_continued: bool = False
    """Whether the process's next spool follows."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ProcessCalls:
    """The calls of one process."""

    source: str
    process: Process
    moments: Moments
    images: tuple[Image, ...]
    stacks: StackTree
    rules: tuple[str, ...]
    """By number: what was watched."""
    columns: Mapping[str, npt.NDArray[Any]]
    """Those of :class:`machtrace.audit.trail.calls.Calls`, without ``process``."""
    dead: tuple[DeadWatch, ...]
    unruled: tuple[str, ...]
    """Watched functions that no rule names."""
    problems: tuple[str, ...]
    """Losses and damage, one line each."""
    costs: tuple[str, ...] = ()
    """The cost of the observation to the process, one line each."""


def process_calls(
    spool: Spool, rules: RuleSet, *, from_start: bool = False, device: str = ""
) -> ProcessCalls:
    """Return the calls in a spool of what the rules watch.

    Args:
        spool: of the process.
        rules: what is of interest.
        from_start: whether calls are recorded from the first initialiser on.
        device: the device that the process ran on, if it is known.
    """
    watches = _Watches(spool, rules)
    images = tuple(map(_image, spool.images))
    return ProcessCalls(
        source=spool.source,
        process=_process(spool, from_start=from_start, device=device),
        moments=_moments(spool),
        images=images,
        stacks=_tree(spool),
        rules=tuple(watches.rules),
        columns=_columns(spool, watches.indices),
        dead=tuple(watches.dead),
        unruled=tuple(watches.unruled),
        problems=tuple(_problems(spool, is_over=from_start)),
    )


def watched_functions(rules: RuleSet) -> tuple[str, ...]:
    """Return the names by which the C functions of rules are imported on Linux."""
    names = [rule.watch for rule in rules.rules if rule.kind is RuleKind.C]
    large = [f"{name}64" for name in names if name in LARGE_FILE_NAMES]
    others = [other for other, name in OTHER_NAMES.items() if name in names]
    return tuple(dict.fromkeys((*names, *large, *others)))


def role_of_path(path: str, *, is_program: bool = False) -> ImageRole:
    """Return whose code an image has, by its path."""
    if is_program:
        return ImageRole.APP
    if _SYSTEM_PATH.match(path) or _AGENT.match(path):
        return ImageRole.SYSTEM
    return ImageRole.LIBRARY


class _Watches:
    """The watched functions of a spool, with the rules that they are of."""

    def __init__(self, spool: Spool, rules: RuleSet) -> None:
        self._set = rules
        self._by_watch = {rule.watch for rule in rules.rules}
        self.rules: dict[str, int] = {}
        self.indices: dict[int, int] = {}
        """By number in the spool: the index in ``rules``."""
        self.unruled: list[str] = []
        live: set[str] = set()
        dead: list[DeadWatch] = []
        for row in spool.rules:
            watch = self._watch_of(row.symbol)
            if watch is None:
                self.unruled.append(row.symbol)
                continue
            self.indices[row.number] = self.rules.setdefault(watch, len(self.rules))
            if row.state not in _DEAD:
                live.add(watch)
            else:
                dead.append(DeadWatch(watch, row.other or _DEAD[row.state], row.state in _BLIND))
        self.dead = [
            call for call in dict.fromkeys(dead) if call.is_blind or call.watch not in live
        ]

    def _watch_of(self, symbol: str) -> str | None:
        """Return the rule that a watched function is one of the names of."""
        if symbol in self._by_watch:
            return symbol
        rule = rule_of_function(self._set, symbol)
        return None if rule is None else rule.watch


def _tree(spool: Spool) -> StackTree:
    images = np.array(spool.tree.images, np.int32)
    offsets = np.array(spool.tree.offsets, np.uint64)
    # The callers of a call site alone are missing, too.
    offsets[(images == NO_IMAGE) & (offsets == SITE)] = OUTER_MISSING
    return StackTree(parent=np.array(spool.tree.callers, np.int32), image=images, offset=offsets)


def _image(image: SpoolImage) -> Image:
    return Image(
        path=image.path,
        uuid=image.identifier.hex(),
        role=role_of_path(image.path, is_program=image.is_program),
    )


def _process(spool: Spool, *, from_start: bool, device: str) -> Process:
    program = next((image for image in spool.images if image.is_program), None)
    return Process(
        run=spool.run.hex(),
        pid=spool.pid,
        app="" if program is None else program.path.rpartition("/")[2],
        device=device,
        build="" if program is None else program.identifier.hex(),
        wall_offset=spool.started_at_ns - spool.started_ticks,
        wall_error=_WALL_ERROR,
        started=spool.started_ticks,
        from_start=from_start and not _is_late(spool),
    )


def _is_late(spool: Spool) -> bool:
    return any(mark.text == _LATE for mark in spool.marks)


def _moments(spool: Spool) -> Moments:
    events = spool.events
    numbers, rows = np.unique(events["rule"], return_inverse=True)
    first = np.full(len(numbers), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(first, rows.reshape(-1), events["time"])
    known = dict(zip(numbers.tolist(), first.tolist(), strict=True))
    return Moments(
        started=spool.started_ticks,
        marks=tuple((mark.time, mark.text) for mark in spool.marks if mark.text),
        first_calls={row.symbol: known[row.number] for row in spool.rules if row.number in known},
        is_continued=spool.is_continued,
    )


def _columns(spool: Spool, indices: Mapping[int, int]) -> dict[str, npt.NDArray[Any]]:
    """Return the calls of some rules; stacks are rows of the spool's tree."""
    numbers = list(indices)
    events = spool.events[np.isin(spool.events["rule"], numbers)]
    cells = spool.cells[np.isin(spool.cells["rule"], numbers)]
    flags = np.zeros(len(events), np.uint16)
    for stored, flag in _FLAGS:
        flags[(events["flags"] & int(stored)) != 0] |= np.uint16(flag)
    state = np.concatenate((events["state"], cells["state"]))
    flags = np.concatenate((flags, np.zeros(len(cells), np.uint16)))
    flags[(state & int(AppState.BACKGROUND)) != 0] |= np.uint16(CallFlag.BACKGROUND)
    table = np.zeros(1 + max(numbers, default=0), np.int32)
    table[numbers] = list(indices.values())
    nodes, inverse = np.unique(
        np.concatenate((events["stack"], cells["stack"])), return_inverse=True
    )
    tree = spool.tree
    rows = tree.rows_of(nodes)
    is_empty = np.array([tree.is_empty(row) for row in rows.tolist()], np.bool_)
    rows[is_empty] = ROOT
    inverse = inverse.reshape(-1)
    stacks = rows.astype(np.int32)[inverse]
    flags[tree.are_sites(rows)[inverse]] |= np.uint16(CallFlag.OUTER_MISSING)
    return {
        "time": np.concatenate(
            (
                np.minimum(events["time"], np.uint64(1 << 62)).astype(np.int64),
                np.full(len(cells), NO_TIME),
            )
        ),
        "thread": np.concatenate((events["thread"].astype(np.int64), np.full(len(cells), NONE))),
        "rule": table[np.concatenate((events["rule"], cells["rule"]))],
        "stack": stacks,
        "flags": flags,
        "consent": (state & int(AppState.CONSENT_WITHDRAWN)).astype(np.uint8),
        "calls": np.concatenate(
            (events["calls"].astype(np.int64), cells["calls"].astype(np.int64))
        ),
    }


def _problems(spool: Spool, *, is_over: bool) -> Iterator[str]:
    losses = spool.losses
    sums = np.zeros(max(len(spool.calls), 1 << 16), np.uint64)
    for part in (spool.events, spool.cells):
        np.add.at(sums, part["rule"], part["calls"].astype(np.uint64))
    known = np.minimum(sums[: len(spool.calls)], spool.calls)
    absent = sum((spool.calls - known).tolist())
    texts = (
        (losses.log_full, "record", "had no room in the log"),
        (losses.stacks_full, "stack", "had no room for the inner frames"),
        (losses.without_stack, "call", "had no room for a stack"),
        (absent, "call", "have neither stack nor state"),
    )
    yield from (f"{spool.source}: {text}" for text in (*spool.problems, *spool.unbound))
    if is_over and _is_late(spool):
        yield f"{spool.source}: {_LATE}, whose first calls may be missing"
    if is_over and not spool.is_stopped:
        yield f"{spool.source}: the process was killed: its last calls may be missing"
    for number, noun, reason in texts:
        if number:
            yield f"{spool.source}: {counted(number, noun)} {reason}"
