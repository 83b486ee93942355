"""Judges the samples of an absence: its culprit, and the tasks that the thread's loop called.

The functions below which the loop waits call tasks, and so does one that calls one function in one
absence and another in the next. Absences in which no task took the threshold have many short ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import NamedTuple, TypeAlias

from machtrace.model.incident.facts import (
    GIL,
    AppliedRule,
    TimedStack,
    Verdict,
    VerdictCertainty,
    WatchIncident,
)
from machtrace.model.polls import CallPlace
from machtrace.model.symbol import CallStack, Frame
from machtrace.watching.hangs.absences import Absence
from machtrace.watching.hangs.representative import (
    FunctionKey,
    Representative,
    is_unnamed,
    path_of,
    representative,
)

Path: TypeAlias = tuple[FunctionKey, ...]
"""The functions of a stack, outermost first."""

_MAX_CALLERS = 5000
_MAX_WAITS = 1000
_MAX_ABSENCES = 8
"""Absences that are remembered for each caller."""
_MIN_RUNS = 3
"""Times that samples find another task than before."""
_DISPATCHERS = frozenset(
    {
        *("Handle._run", "g_main_dispatch", "event_process_active_single_queue"),
        *("uv__run_timers", "uv__io_poll", "uv__run_check", "uv__run_idle", "uv__run_prepare"),
        *("uv__run_pending", "uv__run_closing_handles", "uv__work_done", "uv__async_io"),
        *("ev_invoke_pending", "aeProcessEvents", "ngx_event_process_posted", "processTimeEvents"),
    }
)
"""Functions of loops that call one task after the other, but are not below their wait."""
_COLLECTOR_SHARE = 0.5
_COLLECTORS: tuple[str, ...] = (
    *("gc_collect_main", "gc_collect_with_callback", "gc_collect_generations", "_PyGC_Collect"),
    *("gc_collect_region", "gc_collect_internal", "PyGC_Collect", "gc_collect"),
    *("v8::internal::Heap::CollectGarbage", "v8::internal::Heap::PerformGarbageCollection"),
    *("runtime.gcStart", "runtime.gcAssistAlloc", "runtime.gcDrain", "GC_try_to_collect_inner"),
    *("gc_start", "gc_marks", "rb_gc_impl_start", "G1CollectedHeap::do_collection_pause"),
)
"""Functions that collect garbage, of CPython, V8, Go, Boehm's collector, Ruby and HotSpot."""


class _Run(NamedTuple):
    """Consecutive samples of one task."""

    task: Path
    first_ns: int
    last_ns: int


class ShortTasks(NamedTuple):
    """An absence with many short tasks."""

    rule: AppliedRule
    depth: int
    """The number of functions that all of them share, from the outer end."""


class TaskCallers:
    """The functions of one thread that call tasks, as stacks of different absences show."""

    def __init__(self) -> None:
        self._called: dict[Path, dict[int, FunctionKey | None]] = {}
        """For each path, the only function that its end called in an absence; None for several."""
        self._proven: set[Path] = set()
        self._loop: set[Path] = set()
        """Those below which the loop waits, as far as is known."""
        self.waits: dict[CallPlace, Path] = {}
        """The functions of waits that were looked up."""

    def add_wait(self, place: CallPlace, path: Path, absence: int) -> None:
        """Take the functions of a wait; see :meth:`add`."""
        if len(self.waits) < _MAX_WAITS:
            self.waits[place] = path
        self.add(absence, path)

    def set_loop(self, places: Iterable[CallPlace]) -> None:
        """Take which waits are the loop's."""
        paths = [self.waits.get(place, ()) for place in places]
        self._loop = {path[:depth] for path in paths for depth in range(1, len(path) + 1)}

    def add(self, absence: int, path: Path) -> None:
        """Take a stack of an absence, or what all its stacks share; the root wait is one, too."""
        for depth, callee in enumerate(path[1:], 1):
            caller = path[:depth]
            if caller not in self._called and len(self._called) >= _MAX_CALLERS:
                return
            called = self._called.setdefault(caller, {})
            called[absence] = callee if called.get(absence, callee) == callee else None
            if len({each for each in called.values() if each is not None}) > 1:
                self._proven.add(caller)
            elif len(called) > _MAX_ABSENCES:
                del called[next(iter(called))]

    def task_of(self, path: Path) -> Path:
        """Return the part of a path that ends with the task."""
        depths = range(len(path) - 1, 0, -1)
        return path[: next((depth for depth in depths if self._calls_tasks(path[:depth])), 0) + 1]

    def _calls_tasks(self, path: Path) -> bool:
        return path[-1][0] in _DISPATCHERS or path in self._loop or path in self._proven


def short_tasks(
    callers: TaskCallers,
    stacks: Sequence[TimedStack],
    began_ns: int,
    until_ns: int,
    threshold_ns: int,
    *,
    ran: float = 1.0,
) -> ShortTasks | None:
    """Return what shows that no task took the threshold; None if one may have.

    Args:
        callers: of the thread.
        stacks: the samples.
        began_ns: the beginning of the absence.
        until_ns: its end so far.
        threshold_ns: the time of a hang.
        ran: the share of the time that the thread ran: queues make no task long.
    """
    runs: list[_Run] = []
    paths = [path_of(timed.stack) for timed in stacks]
    depth = len(shared_path(paths))
    # Where functions have no names, any of them may be a task.
    is_named = not any(is_unnamed(key) for path in paths for key in path[depth : depth + 1])
    for timed, path in zip(stacks, paths, strict=True):
        task = callers.task_of(path)
        if not is_named:
            task = (*path[:depth], *takewhile(is_unnamed, path[depth:]))
        if runs and runs[-1].task == task:
            runs[-1] = runs[-1]._replace(last_ns=timed.at_ns)
        elif task:
            runs.append(_Run(task, timed.at_ns, timed.at_ns))
    if len(runs) < _MIN_RUNS:
        return None
    # A task may have begun right after the last sample of the one before, and ended right before
    # the first of the next: half of both is likely. The first one may have begun with the absence.
    begins = [began_ns, *((last.last_ns + run.first_ns) // 2 for last, run in pairwise(runs))]
    ends = [*begins[1:], until_ns]
    longest = ran * max(end - begin for begin, end in zip(begins, ends, strict=True))
    if longest >= threshold_ns:
        return None
    shared = shared_path([run.task for run in runs])
    known = [name for name, *_ in shared if not name.startswith("?")]
    where = f" below {known[-1]}" if known else ""
    text = (
        f"no single call{where} took {threshold_ns / 1e6:g} ms, the longest about "
        f"{longest / 1e6:.0f} ms: a row of short tasks"
    )
    if not is_named:
        text = (
            f"samples found other functions without names{where} each time: a row of short tasks, "
            "or a long one that calls many functions"
        )
    return ShortTasks(AppliedRule("short-tasks", text), len(shared))


def shared_path(paths: Sequence[Path]) -> Path:
    """Return the functions that all paths have in common from the outer end."""
    depth = 0
    while all(len(path) > depth for path in paths) and len({path[depth] for path in paths}) == 1:
        depth += 1
    return paths[0][:depth] if paths else ()


def garbage_collection(stacks: Sequence[TimedStack]) -> AppliedRule | None:
    """Return the rule that a collector had most of the time; else None."""
    total = collecting = 0
    for timed in stacks:
        weight = max(1, timed.weight_ns)
        total += weight
        collecting += weight * any(_collects(frame) for frame in timed.stack.frames)
    if not total or collecting < _COLLECTOR_SHARE * total:
        return None
    return AppliedRule(
        "garbage-collection",
        f"a garbage collector had {100 * collecting / total:.0f} % of the time",
    )


def _collects(frame: Frame) -> bool:
    names = [call.name or "" for call in frame.inlined]
    if frame.symbol is not None:
        names.append(frame.symbol.name)
    # The compiler's parts of a function, such as gc_collect_main.constprop.0, have its name.
    return any(re.split(r"[.(@]", name, maxsplit=1)[0] in _COLLECTORS for name in names)


class Judgement(NamedTuple):
    """The meaning of the samples of an absence."""

    chosen: Representative | None
    certainty: VerdictCertainty
    rules: tuple[AppliedRule, ...]


def judge(
    callers: TaskCallers,
    number: int,
    absence: Absence,
    stacks: Sequence[TimedStack],
    threshold_ns: int | None,
) -> Judgement:
    """Judge the samples of an absence.

    Args:
        callers: of the thread; what the stacks share is added.
        number: of the absence.
        absence: what the polls showed.
        stacks: those of :func:`timed_stacks`.
        threshold_ns: the time of a hang.
    """
    callers.add(number, shared_path([path_of(stack.stack) for stack in stacks]))
    if absence.verdict is not Verdict.BUSY:
        return Judgement(representative(stacks), absence.certainty, ())
    collected = garbage_collection(stacks)
    rules = () if collected is None else (collected,)
    until_ns = absence.seen_ns if absence.ended is None else absence.ended.best_ns
    ran = min(1.0, int(absence.evidence.get("run_ns") or 0) / max(1, absence.duration_ns))
    short = short_tasks(
        callers, stacks, absence.began.best_ns, until_ns, threshold_ns or 0, ran=ran or 1.0
    )
    if short is None:
        return Judgement(representative(stacks, ran=True), absence.certainty, rules)
    chosen = representative(stacks, limit=short.depth)
    return Judgement(chosen, VerdictCertainty.LIKELY, (*rules, short.rule))


def blame_holder(incident: WatchIncident) -> WatchIncident:
    """Return an incident whose culprit is the holder of the GIL, if its thread waits for that."""
    wait = incident.waits_for
    if wait is None or wait.what != GIL or wait.owner is None or incident.capture is None:
        return incident
    holder = wait.owner.thread
    stacks = [stack for stack in incident.capture.stacks if stack.thread.id == holder]
    chosen = representative([TimedStack(incident.seen_ns, 1, stack) for stack in stacks])
    return incident if chosen is None else replace(incident, culprit=chosen.culprit)


def timed_stacks(
    samples: Sequence[tuple[int, CallStack]], absence: Absence
) -> tuple[TimedStack, ...]:
    """Weigh each stack by the time since the one before it, from the beginning to the end.

    Samples after the end show what came after it, and are left out.
    """
    until = max(absence.seen_ns, absence.began.best_ns + absence.duration_ns)
    if absence.ended is not None:
        until = absence.ended.best_ns
        samples = [sample for sample in samples if sample[0] <= until] or samples[:1]
    stacks: list[TimedStack] = []
    before = absence.began.best_ns
    for at, stack in samples:
        stacks.append(TimedStack(at, max(0, at - before), stack))
        before = max(before, at)
    if stacks and until > before:
        stacks[-1] = stacks[-1]._replace(weight_ns=stacks[-1].weight_ns + until - before)
    return tuple(stacks)
