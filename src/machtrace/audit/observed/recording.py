"""Recorded calls of processes, with what is known of each rule, made from the agent's spools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.audit.observed.stack_union import union_of
from machtrace.audit.rules import RuleKind, RuleSet
from machtrace.audit.trail.calls import (
    NO_TIME,
    NONE,
    CallFlag,
    Image,
    ImageRole,
    Process,
    Trail,
    calls_of,
)
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
_DEAD = {
    0: "nothing imports it",
    2: "nothing defines it",
    3: "too many functions were watched",
    6: "its first instructions cannot be replaced",
}
_BLIND = frozenset({3, 6})
"""States in which calls may have happened unobserved."""
_WALL_ERROR = 1_000_000


LARGE_FILE_NAMES = frozenset(
    {
        *("creat", "fopen", "freopen", "open", "openat", "readdir"),
        *("fstat", "fstatat", "fstatfs", "fstatvfs", "lstat", "stat", "statfs", "statvfs"),
    }
)
"""Functions of Linux that programs also import with the suffix 64 (lfcompile64(5))."""


class DeadRule(NamedTuple):
    """A rule that a process could not observe, and the reason."""

    watch: str
    process: int
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Recording:
    """The calls of several processes, and what their rules observed."""

    trail: Trail
    sources: tuple[str, ...]
    """By process: the spool, or the target."""
    moments: tuple[Moments, ...]
    """By process."""
    dead: tuple[DeadRule, ...] = ()
    unwatched: int = 0
    """Rules that no process watched."""
    unruled: tuple[str, ...] = ()
    """Watched functions that no rule names."""
    problems: tuple[str, ...] = ()
    """Losses and damage, one line each."""
    costs: tuple[str, ...] = ()
    """The cost of the observation to the processes, one line each."""


def recording_of(
    spools: Iterable[Spool],
    rules: RuleSet,
    *,
    from_start: bool = False,
    marks: Iterable[tuple[int, str]] = (),
) -> Recording:
    """Return the calls in spools of what the rules watch.

    Args:
        spools: one for each process.
        rules: what is of interest.
        from_start: whether calls are recorded from the first initialiser on.
        marks: times in ns since 1970, and texts, in addition to those in the spools.
    """
    builder = _Builder(rules, from_start=from_start, marks=tuple(marks))
    for spool in spools:
        builder.add(spool)
    return builder.recording()


def watched_functions(rules: RuleSet) -> tuple[str, ...]:
    """Return the names by which the C functions of rules are imported on Linux."""
    names = [rule.watch for rule in rules.rules if rule.kind is RuleKind.C]
    return (*names, *(f"{name}64" for name in names if name in LARGE_FILE_NAMES))


def role_of_path(path: str, *, is_program: bool = False) -> ImageRole:
    """Return whose code an image has, by its path."""
    if is_program:
        return ImageRole.APP
    if _SYSTEM_PATH.match(path) or _AGENT.match(path):
        return ImageRole.SYSTEM
    return ImageRole.LIBRARY


class _Builder:
    def __init__(
        self, rules: RuleSet, *, from_start: bool, marks: tuple[tuple[int, str], ...]
    ) -> None:
        self._set = rules
        self._from_start, self._marks = from_start, marks
        self._watches = {rule.watch: rule for rule in rules.rules}
        self._rules: dict[str, int] = {}
        self._images: dict[str, int] = {}
        self._image_rows: list[Image] = []
        self._trees: list[StackTree] = []
        self._columns: list[dict[str, npt.NDArray[Any]]] = []
        self._processes: list[Process] = []
        self._sources: list[str] = []
        self._moments: list[Moments] = []
        self._dead: list[DeadRule] = []
        self._unruled: set[str] = set()
        self._problems: list[str] = []

    def add(self, spool: Spool) -> None:
        """Add the calls of a process."""
        number = len(self._processes)
        indices = self._rule_indices(spool, number)
        process = _process(spool, from_start=self._from_start)
        self._processes.append(process)
        self._sources.append(spool.source)
        marks = ((time - process.wall_offset, text) for time, text in self._marks)
        self._moments.append(_moments(spool, marks))
        self._trees.append(self._tree(spool))
        columns = _columns(spool, indices)
        columns["process"] = np.full(len(columns["time"]), number, np.int32)
        self._columns.append(columns)
        self._problems += _problems(spool)

    def recording(self) -> Recording:
        """Return all calls."""
        union = union_of(self._trees)
        for nodes, columns in zip(union.nodes, self._columns, strict=True):
            columns["stack"] = nodes[columns["stack"]]
        names = self._columns[0] if self._columns else ()
        calls = calls_of(
            **{name: np.concatenate([each[name] for each in self._columns]) for name in names}
        )
        trail = Trail(
            images=tuple(self._image_rows),
            stacks=union.tree,
            rules=tuple(self._rules),
            processes=tuple(self._processes),
            calls=calls,
        )
        return Recording(
            trail=trail,
            sources=tuple(self._sources),
            moments=tuple(self._moments),
            dead=tuple(self._dead),
            unwatched=len(self._set) - len(self._rules),
            unruled=tuple(sorted(self._unruled)),
            problems=tuple(self._problems),
        )

    def _rule_indices(self, spool: Spool, process: int) -> dict[int, int]:
        indices: dict[int, int] = {}
        live: set[str] = set()
        dead: list[DeadRule] = []
        for row in spool.rules:
            watch = self._watch_of(row.symbol)
            if watch is None:
                self._unruled.add(row.symbol)
                continue
            indices[row.number] = self._rules.setdefault(watch, len(self._rules))
            if row.state not in _DEAD:
                live.add(watch)
            else:
                reason = row.other or _DEAD[row.state]
                dead.append(DeadRule(watch, process, reason, row.state in _BLIND))
        self._dead += [
            each for each in dict.fromkeys(dead) if each.is_blind or each.watch not in live
        ]
        return indices

    def _watch_of(self, symbol: str) -> str | None:
        """Return the rule that a watched function is one of the names of."""
        base = symbol.removesuffix("64")
        for name in (symbol, base) if base in LARGE_FILE_NAMES else (symbol,):
            if name in self._watches:
                return name
            rule = self._set.of_symbol(f"_{name}")
            if rule is not None:
                return rule.watch
        return None

    def _tree(self, spool: Spool) -> StackTree:
        numbers = [NO_IMAGE, *map(self._image, spool.images)]
        images = np.array(spool.tree.images, np.int32) + 1
        offsets = np.array(spool.tree.offsets, np.uint64)
        # The callers of a call site alone are missing, too.
        offsets[(images == 0) & (offsets == SITE)] = OUTER_MISSING
        return StackTree(
            parent=np.array(spool.tree.callers, np.int32),
            image=np.array(numbers, np.int32)[images],
            offset=offsets,
        )

    def _image(self, image: SpoolImage) -> int:
        row = Image(
            path=image.path,
            uuid=image.identifier.hex(),
            role=role_of_path(image.path, is_program=image.is_program),
        )
        number = self._images.setdefault(row.key, len(self._images))
        if number == len(self._image_rows):
            self._image_rows.append(row)
        return number


def _process(spool: Spool, *, from_start: bool) -> Process:
    program = next((image.path for image in spool.images if image.is_program), "")
    return Process(
        run=spool.run.hex(),
        pid=spool.pid,
        app=program.rpartition("/")[2],
        wall_offset=spool.started_at_ns - spool.started_ticks,
        wall_error=_WALL_ERROR,
        started=spool.started_ticks,
        from_start=from_start,
    )


def _moments(spool: Spool, marks: Iterable[tuple[int, str]]) -> Moments:
    events = spool.events
    numbers, rows = np.unique(events["rule"], return_inverse=True)
    first = np.full(len(numbers), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(first, rows.reshape(-1), events["time"])
    known = dict(zip(numbers.tolist(), first.tolist(), strict=True))
    return Moments(
        started=spool.started_ticks,
        marks=(*((mark.time, mark.text) for mark in spool.marks if mark.text), *marks),
        first_calls={row.symbol: known[row.number] for row in spool.rules if row.number in known},
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
    rows = [tree.rows.get(node, ROOT) for node in nodes.tolist()]
    rows = [ROOT if tree.is_empty(row) else row for row in rows]
    inverse = inverse.reshape(-1)
    stacks = np.array(rows, np.int32)[inverse] if rows else np.zeros(0, np.int32)
    is_site = np.array([tree.is_site(row) for row in rows], np.bool_)
    if rows:
        flags[is_site[inverse]] |= np.uint16(CallFlag.OUTER_MISSING)
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


def _problems(spool: Spool) -> list[str]:
    losses = spool.losses
    sums = Counter[int]()
    for row in spool.sums():
        sums[int(row["rule"])] += int(row["calls"])
    absent = sum(max(0, calls - sums[rule]) for rule, calls in enumerate(spool.calls.tolist()))
    texts = (
        (losses.log_full, "record", "had no room in the log"),
        (losses.stacks_full, "stack", "had no room for the inner frames"),
        (losses.without_stack, "call", "had no room for a stack"),
        (absent, "call", "have neither stack nor state"),
    )
    lost = [f"{counted(number, noun)} {reason}" for number, noun, reason in texts if number]
    return [f"{spool.source}: {text}" for text in (*spool.problems, *lost)]
