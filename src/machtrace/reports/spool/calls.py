"""Calls of a spool as trees of a report: callers outside, the watched function innermost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.profile import OUTERMOST, MissingFrames, SamplingEnd, SamplingRun
from machtrace.model.report import (
    Adjustment,
    Incident,
    JsonValue,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.render.sample_text import start_time
from machtrace.reports.images import ImageRanges, identifier
from machtrace.reports.spool.facts import (
    CONSENT,
    FACTS,
    STATES,
    RuleFacts,
    RuleState,
    SpoolFacts,
    StateCalls,
)
from machtrace.reports.spool.spool import AppState, EventFlag, Spool, SpoolRule
from machtrace.reports.spool.tree import NO_IMAGE, ROOT
from machtrace.reports.stacks.captures import RUN, SAMPLES, written
from machtrace.reports.stacks.profiles import INTERVAL_NS

_UUID_BYTES = 16
_MAX_TREES = 4
"""Rows of all functions' trees, in rows of the spool's own."""
_MIN_ROWS = 100_000
_MAX_ROWS = 1_000_000
"""Frames of a report: the agent has room for fewer by default."""
_MAX_INCIDENT_FRAMES = 1000
_MAX_COUNTED = 1 << 48
"""Calls of a counted function: more are damage."""
_MAX_NS = 1 << 62
_UNKNOWN_CALLERS = ReportedFrame(
    None,
    None,
    None,
    Adjustment.UNKNOWN,
    ReportedSymbol(f"[{MissingFrames.UNKNOWN_CALLERS.value}]", None),
)
_NO_RULE = SpoolRule(0, len(STATES), 0, False, False, 0, "", "")  # noqa: FBT003 - a row


class _Calls(NamedTuple):
    """Calls of a rule with one stack."""

    rule: int
    stack: int
    row: int
    """The row in the spool's tree; ROOT if the stack is unknown, or has no room in a report."""
    calls: int


def report_of_spool(spool: Spool) -> Report:
    """Return the report of a spool."""
    sums = spool.sums()
    calls = _bounded(spool, sums)
    unstored = sum(
        entry.calls
        for entry in calls
        if entry.row == ROOT and not spool.tree.is_empty(spool.tree.rows[entry.stack])
    )
    facts = _facts(spool, calls)
    frames = _Frames(spool)
    groups = _groups(spool, calls, [rule.number for rule in facts.rules])
    trees, ends = [], {}
    for number, group in enumerate(groups):
        tree, leaves = _tree(group, frames)
        trees.append(tree)
        for entry, leaf in zip(group, leaves, strict=True):
            ends[entry.rule, entry.stack] = number, leaf
    program = next((image for image in spool.images if image.is_program), None)
    path = None if program is None else program.path or None
    state = "stopped" if facts.is_stopped else "killed or running"
    run = _sampling_run(spool, trees)
    lines = tuple(f"{rule.symbol}: {rule.calls:,} calls, {rule.text}" for rule in facts.rules)
    return Report(
        kind=ReportKind.SPOOL,
        process=ReportedProcess(
            name=None if path is None else path.rpartition("/")[2],
            pid=spool.pid,
            path=path,
            code_type=spool.arch,
        ),
        incident=Incident(id=facts.run, time=start_time(run), kind=state),
        application_information=tuple(
            (name, texts) for name, texts in (("", lines), ("incidents", facts.incidents)) if texts
        ),
        threads=tuple(_incident_threads(spool, frames)),
        trees=tuple(trees),
        images=frames.images,
        details={
            FACTS: written(facts, SpoolFacts),
            RUN: written(run, SamplingRun),
            SAMPLES: _samples(spool, ends),
        },
        warnings=(
            *spool.problems,
            *spool.unbound,
            *facts.lines(),
            *([f"calls whose frames have no room in a report: {unstored:,}"] if unstored else ()),
        ),
    )


def _incident_threads(spool: Spool, frames: _Frames) -> Iterator[ReportedThread]:
    """Yield a thread for each incident, with the stack that most of its stacks are."""
    threads = {thread.id: thread.name for thread in spool.threads.values()}
    for index, incident in enumerate(spool.incidents):
        stacks = Counter(stack.stack for stack in incident.stacks)
        ((node, _),) = stacks.most_common(1) or ((0, 0),)
        rows = spool.tree.path(spool.tree.rows.get(node, ROOT))
        yield ReportedThread(
            index=index,
            id=incident.thread or None,
            name=threads.get(incident.thread) or None,
            frames=tuple(frames.frame(row) for row in islice(rows, _MAX_INCIDENT_FRAMES)),
        )


def _bounded(spool: Spool, sums: npt.NDArray[np.void]) -> list[_Calls]:
    """Return the calls; stacks beyond the limit of frames, the least frequent, become unknown."""
    tree, seen, is_full = spool.tree, {ROOT}, False
    calls = []
    for rule, _, stack, count in sums.tolist():
        row = tree.rows[stack]
        row = ROOT if tree.is_empty(row) else row
        if row not in seen and not is_full:
            path = [row, *islice(_new_path(row, tree.callers, seen), _MAX_ROWS)]
            is_full = len(seen) + len(path) > _MAX_ROWS
            seen.update(() if is_full else path)
        calls.append(_Calls(rule, stack, row if row in seen else ROOT, count))
    return calls


def _states(spool: Spool) -> dict[int, tuple[StateCalls, ...]]:
    """Return calls by the program's state, of each function; none if it stated no state."""
    sums = spool.sums(by_state=True)
    if not sums["state"].any():
        return {}
    totals: Counter[tuple[int, int]] = Counter()
    for rule, state, _, count in sums.tolist():
        totals[rule, state] += count
    by_rule: dict[int, tuple[StateCalls, ...]] = {}
    for (rule, state), count in sorted(totals.items()):
        consent = CONSENT[state & AppState.CONSENT_WITHDRAWN]
        calls = StateCalls(consent, bool(state & AppState.BACKGROUND), count)
        by_rule[rule] = (*by_rule.get(rule, ()), calls)
    return by_rule


def _counted(spool: Spool, rule: SpoolRule) -> int:
    """Return the calls of a function whose stacks are not taken; 0 of others."""
    is_known = rule.counts_only and rule.number < len(spool.calls)
    return min(int(spool.calls[rule.number]), _MAX_COUNTED) if is_known else 0


def _facts(spool: Spool, calls: Iterable[_Calls]) -> SpoolFacts:
    totals: Counter[int] = Counter()
    stacks: Counter[int] = Counter()
    untaken: Counter[int] = Counter()
    known = {rule.number: rule for rule in spool.rules}
    for rule, stack, _, count in calls:
        is_site = spool.tree.is_site(spool.tree.rows[stack])
        is_unknown = stack == ROOT and known.get(rule, _NO_RULE).has_budget
        totals[rule] += count
        stacks[rule] += stack != ROOT and not is_site
        untaken[rule] += count if is_site or is_unknown else 0
    timed = np.bincount(spool.events["rule"], spool.events["calls"])
    states = _states(spool)
    rules = [
        RuleFacts(
            number=number,
            symbol=rule.symbol or f"rule {number}",
            state=STATES[rule.state] if rule.state < len(STATES) else RuleState.UNKNOWN,
            slots=rule.slots,
            counts_only=rule.counts_only,
            is_at_entry=rule.is_at_entry,
            other=rule.other,
            calls=max(totals[number], _counted(spool, rule)),
            stacks=stacks[number],
            timed=int(timed[number]) if number < len(timed) else 0,
            has_budget=rule.has_budget,
            untaken=untaken[number],
            states=states.get(number, ()),
        )
        for number in {*known, *totals}
        for rule in (known.get(number, _NO_RULE),)
    ]
    is_cut = (spool.events["flags"] & EventFlag.NO_FRAME_POINTER) != 0
    return SpoolFacts(
        run=spool.run.hex(),
        is_stopped=spool.is_stopped,
        rules=tuple(sorted(rules, key=lambda rule: (-rule.calls, rule.number))),
        **spool.losses._asdict(),
        overwritten=spool.overwritten,
        without_frame_pointer=int(spool.events["calls"][is_cut].sum(dtype=np.uint64)),
        incidents=tuple(incident.text for incident in spool.incidents),
        unknown_records=sum(spool.unknown_records.values()),
    )


class _Frames:
    """The frames of a spool's tree and of its functions."""

    def __init__(self, spool: Spool) -> None:
        self.tree = spool.tree
        # Identifiers of Mach-O are all UUIDs; ELF's have 20 bytes nearly always.
        sizes = {len(image.identifier) for image in spool.images if image.identifier}
        is_macho = sizes <= {_UUID_BYTES}
        self.images = tuple(
            ReportedImage(
                uuid=identifier(image.identifier.hex(), is_macho=is_macho),
                name=image.path.rpartition("/")[2],
                path=image.path,
                arch=spool.arch,
                load_address=Avma(image.start),
                size=image.size,
            )
            for image in spool.images
        )
        self._starts = [image.start for image in spool.images]
        self._rules = {rule.number: rule for rule in spool.rules}
        self._ranges = ImageRanges(self.images)
        self._frames: dict[int, ReportedFrame] = {}

    def frame(self, row: int) -> ReportedFrame:
        """Return the frame of a row."""
        frame = self._frames.get(row)
        if frame is None:
            frame = self._frames[row] = self._new_frame(row)
        return frame

    def _new_frame(self, row: int) -> ReportedFrame:
        if row == ROOT or self.tree.is_cut(row):
            return _UNKNOWN_CALLERS
        index, offset = self.tree.images[row], self.tree.offsets[row]
        if index == NO_IMAGE:
            return ReportedFrame(Avma(offset), None, None, Adjustment.RETURN)
        address = Avma(self._starts[index] + offset & 0xFFFF_FFFF_FFFF_FFFF)
        return ReportedFrame(address, index, ImageOffset(offset), Adjustment.RETURN)

    def function(self, number: int) -> ReportedFrame:
        """Return the frame of a watched function: its name is that of the rule, not of an alias."""
        rule = self._rules.get(number, _NO_RULE)
        symbol = ReportedSymbol(rule.symbol or f"rule {number}", None)
        image = self._ranges.find(rule.target)
        address = Avma(rule.target) if rule.target else None
        return ReportedFrame(address, image, None, Adjustment.EXACT, symbol)

    def name(self, number: int) -> str:
        """Return the name of a rule."""
        symbol = self.function(number).symbol
        return "" if symbol is None else symbol.name


def _groups(spool: Spool, calls: Sequence[_Calls], order: Iterable[int]) -> list[list[_Calls]]:
    """Return the calls of each function, or all together.

    Functions of one stack have trees of their own, with the same rows; a file that was made for it
    has the square of its size in them. One tree of all has each row once.
    """
    by_rule: dict[int, list[_Calls]] = {}
    for entry in calls:
        by_rule.setdefault(entry.rule, []).append(entry)
    room = _MIN_ROWS + _MAX_TREES * len(spool.tree)
    callers = spool.tree.callers
    for group in by_rule.values():
        seen: set[int] = set()
        for entry in group:
            row = entry.row
            while row != ROOT and row not in seen:
                seen.add(row)
                row = callers[row]
        room -= len(seen)
        if room < 0:
            return [list(calls)]
    return [by_rule[number] for number in order if number in by_rule]


def _tree(group: Sequence[_Calls], frames: _Frames) -> tuple[SampledTree, list[int]]:
    """Return the tree of some calls, and the node of each entry."""
    tree = frames.tree
    needed: set[int] = set()
    for entry in group:
        needed.add(entry.row)
        for row in _new_path(entry.row, tree.callers, needed):
            needed.add(row)
    order = sorted(needed)
    if ROOT in needed:
        order.remove(ROOT)
    # Calls of unknown stack have a frame of that name for their caller.
    has_unknown = any(entry.row == ROOT for entry in group)
    places = {row: place for place, row in enumerate(order, int(has_unknown))}
    parents: list[int | None] = [None] * has_unknown
    parents += [places.get(tree.callers[row]) for row in order]
    weights = [0] * len(parents)
    shown = [_UNKNOWN_CALLERS] * has_unknown + [frames.frame(row) for row in order]
    leaves = []
    functions = {entry.rule: frames.function(entry.rule) for entry in group}
    for entry in group:
        leaves.append(len(parents))
        parents.append(places.get(entry.row, 0 if has_unknown else None))
        weights.append(entry.calls)
        shown.append(functions[entry.rule])
    for node in range(len(parents) - 1, -1, -1):
        parent = parents[node]
        if parent is not None:
            weights[parent] += weights[node]
    name = frames.name(group[0].rule) if len(functions) == 1 else "watched functions"
    total = sum(entry.calls for entry in group)
    nodes = tuple(map(SampledNode, parents, weights, shown))
    return SampledTree(nodes=nodes, name=name, count=total), leaves


def _new_path(row: int, callers: Sequence[int], seen: set[int]) -> Iterable[int]:
    """Yield the rows of the callers of ``row`` up to the first that was seen."""
    row = callers[row]
    while row != ROOT and row not in seen:
        yield row
        row = callers[row]


def _sampling_run(spool: Spool, trees: Sequence[SampledTree]) -> SamplingRun:
    times = spool.events["time"]
    last = int(times.max()) if len(times) else spool.started_ticks
    return SamplingRun(
        started_at_ns=min(spool.started_at_ns, _MAX_NS),
        duration_ns=min(max(1, last - spool.started_ticks), _MAX_NS),
        interval_ns=INTERVAL_NS,
        ticks=max((tree.count or 0 for tree in trees), default=0),
        lost=0,
        end=SamplingEnd.DURATION if spool.is_stopped else SamplingEnd.TARGET_LOST,
    )


def _samples(spool: Spool, ends: dict[tuple[int, int], tuple[int, int]]) -> JsonValue:
    """Return the columns of calls by time; those whose time is unknown come first, at 0."""
    events, cells = spool.events, spool.cells
    events = events[np.argsort(events["time"], kind="stable")]
    times = events["time"] - np.minimum(events["time"], np.uint64(spool.started_ticks))
    # Each pair of rule and stack is looked up once.
    keys = [
        part["rule"].astype(np.uint64) << np.uint64(32) | part["stack"] for part in (cells, events)
    ]
    pairs, numbers = np.unique(np.concatenate(keys), return_inverse=True)
    places = np.array(
        [ends.get((key >> 32, key & 0xFFFF_FFFF), (0, OUTERMOST)) for key in pairs.tolist()],
        np.int64,
    ).reshape(-1, 2)[numbers]
    columns: dict[str, list[int]] = {
        "times_ns": [0] * len(cells) + np.minimum(times, np.uint64(_MAX_NS - 1)).tolist(),
        "threads": places[:, 0].tolist(),
        "frames": places[:, 1].tolist(),
        "weights": [*cells["calls"].tolist(), *events["calls"].tolist()],
    }
    return columns  # type: ignore[return-value]  # lists of integers are values of JSON
