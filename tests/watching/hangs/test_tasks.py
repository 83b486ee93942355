"""Rows of short tasks and long tasks, by the stacks of their samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from machtrace.model.address import Avma
from machtrace.model.incident.facts import (
    GIL,
    LockOwner,
    TimedStack,
    TimeRange,
    Verdict,
    VerdictCertainty,
    WaitsFor,
)
from machtrace.model.polls import CallPlace
from machtrace.model.symbol import CallStack
from machtrace.watching.hangs.absences import Absence
from machtrace.watching.hangs.representative import path_of
from machtrace.watching.hangs.tasks import (
    Judgement,
    TaskCallers,
    blame_holder,
    judge,
    timed_stacks,
)
from tests.support.reports.incidents import HANG, PID, WORKER
from tests.watching.hangs.test_wait_roles import native

MS = 1_000_000
T = 100 * MS


def absence_of(
    duration_ms: int,
    verdict: Verdict = Verdict.BUSY,
    ended_ms: int | None = None,
    ran_ms: int | None = None,
) -> Absence:
    ended = None if ended_ms is None else TimeRange(ended_ms * MS, ended_ms * MS)
    return Absence(
        began=TimeRange(0, 0),
        seen_ns=duration_ms * MS,
        verdict=verdict,
        certainty=VerdictCertainty.CERTAIN,
        duration_ns=duration_ms * MS,
        evidence={"run_ns": (duration_ms if ran_ms is None else ran_ms) * MS},
        ended=ended,
    )


def taught() -> TaskCallers:
    """Return callers that know ``main``'s loop and its dispatcher."""
    callers = TaskCallers()
    for number, names in enumerate(
        (
            ("epoll_wait", "wait_for_events", "main"),
            ("read", "read_config", "dispatch", "main"),
            ("recv", "receive_reply", "dispatch", "main"),
        )
    ):
        callers.add(number, path_of(native(*names)))
    return callers


def judged(
    *samples: tuple[int, Sequence[str]],
    verdict: Verdict = Verdict.BUSY,
    callers: TaskCallers | None = None,
    ran_ms: int | None = None,
) -> Judgement:
    absence = absence_of(samples[-1][0], verdict, ran_ms=ran_ms)
    stacks = timed_stacks([(at * MS, native(*names)) for at, names in samples], absence)
    return judge(callers or taught(), 9, absence, stacks, T)


def row(*tasks: str, below: Sequence[str] = ("dispatch", "main")) -> list[tuple[int, list[str]]]:
    return [(60 + 10 * at, [task, *below]) for at, task in enumerate(tasks)]


def names_of(judgement: Judgement) -> tuple[str | None, list[str]]:
    culprit = None if judgement.chosen is None else judgement.chosen.culprit.function
    return culprit, [rule.name for rule in judgement.rules]


SHORT = ("parse", "render", "flush", "parse", "log")


def test_a_row_of_short_tasks_is_no_long_one() -> None:
    judgement = judged(*row(*SHORT))
    assert names_of(judgement) == ("dispatch", ["short-tasks"])
    assert judgement.certainty is VerdictCertainty.LIKELY
    assert "no single call below dispatch took 100 ms" in judgement.rules[0].text


def test_the_weight_of_the_first_sample_is_no_long_task() -> None:
    """It stands for the 60 ms before it, which is more than half of the time."""
    assert names_of(judged(*row("parse", "render", "flush"))) == ("dispatch", ["short-tasks"])


def test_a_task_that_calls_many_functions_is_one_long_task() -> None:
    judgement = judged(*row(*"abcde", below=("convert_all", "dispatch", "main")))
    assert names_of(judgement) == ("convert_all", [])
    assert judgement.certainty is VerdictCertainty.CERTAIN


def test_a_long_task_between_short_ones_is_the_culprit() -> None:
    judgement = judged(*row("parse", *["render"] * 12, "flush", "log"))
    assert names_of(judgement) == ("render", [])


def test_tasks_that_queue_for_a_processor_are_short() -> None:
    samples = [(300 * at, [task, "dispatch", "main"]) for at, task in enumerate(SHORT, 1)]
    assert names_of(judged(*samples, ran_ms=300)) == ("dispatch", ["short-tasks"])
    assert names_of(judged(*samples))[1] == []


def test_nothing_is_a_row_before_the_loop_is_known() -> None:
    assert names_of(judged(*row(*SHORT), callers=TaskCallers())) == ("parse", [])


WAIT = CallPlace(232, Avma(0x9000), Avma(0x1000))


def waited_below(*names: str) -> TaskCallers:
    """Return callers that know the loop's wait alone."""
    callers = TaskCallers()
    callers.add_wait(WAIT, path_of(native(*names)), 1)
    callers.set_loop([WAIT])
    return callers


def test_the_function_that_waits_for_events_calls_tasks() -> None:
    callers = waited_below("epoll_wait", "wait_for_events", "serve", "main")
    assert names_of(judged(*row(*SHORT, below=("serve", "main")), callers=callers)) == (
        "serve",
        ["short-tasks"],
    )


def test_functions_below_one_that_the_loop_calls_are_one_long_task() -> None:
    """From outside, a dispatcher that is called by the loop alone looks the same."""
    callers = waited_below("epoll_wait", "serve", "main")
    judgement = judged(*row(*"abcde", below=("scan_table", "serve", "main")), callers=callers)
    assert names_of(judgement) == ("scan_table", [])
    assert judgement.certainty is VerdictCertainty.CERTAIN


def test_a_wait_that_is_not_the_loops_calls_no_tasks() -> None:
    callers = waited_below("read", "convert_all", "main")
    callers.set_loop([])
    assert names_of(judged(*row(*SHORT, below=("convert_all", "main")), callers=callers))[1] == []


def test_dispatchers_of_known_loops_call_tasks() -> None:
    samples = row(*SHORT, below=("uv__run_timers", "uv_run", "main"))
    assert names_of(judged(*samples, callers=TaskCallers()))[1] == ["short-tasks"]


JAVASCRIPT = ("Builtins_JSEntryTrampoline", "Builtins_JSEntry", "uv__run_check", "uv_run", "main")


def unnamed(*frames: str | int) -> CallStack:
    """Return a stack of names and of addresses without one."""
    stack = native(*(str(frame) for frame in frames))
    return replace(
        stack,
        frames=tuple(
            replace(each, symbol=None, address=replace(each.address, address=Avma(frame)))
            if isinstance(frame, int)
            else each
            for each, frame in zip(stack.frames, frames, strict=True)
        ),
    )


def judged_stacks(*stacks: CallStack) -> Judgement:
    samples = [(at * MS, stack) for at, stack in zip(range(60, 500, 10), stacks, strict=False)]
    absence = absence_of(samples[-1][0] // MS)
    return judge(TaskCallers(), 9, absence, timed_stacks(samples, absence), T)


def test_functions_without_names_may_be_short_tasks() -> None:
    addresses = (0x7FF1D37CC2C3, 0x7FF1D37CD995, 0x7FF1D37CE280, 0x7FF1D37CC2EE, 0x7FF1D37CEF55)
    stacks = [
        unnamed(address, "Builtins_InterpreterEntryTrampoline", *JAVASCRIPT)
        for address in addresses
    ]
    judgement = judged_stacks(*stacks)
    assert names_of(judgement) == ("JavaScript (functions without names)", ["short-tasks"])
    assert judgement.certainty is VerdictCertainty.LIKELY
    assert "or a long one that calls many functions" in judgement.rules[0].text


def test_one_function_without_a_name_is_a_long_task() -> None:
    """Its return address when it calls a function of V8 is another one in the same code."""
    stacks = [
        unnamed(0x7FF1D37CC2C3, *JAVASCRIPT),
        unnamed("Builtins_StringAdd_CheckNone", 0x7FF1D37CC9E7, *JAVASCRIPT),
    ] * 3
    judgement = judged_stacks(*stacks)
    assert names_of(judgement) == ("JavaScript (functions without names)", [])
    assert judgement.certainty is VerdictCertainty.CERTAIN


def test_a_blocked_thread_has_no_row_of_tasks() -> None:
    assert names_of(judged(*row(*SHORT), verdict=Verdict.BLOCKED))[1] == []


def test_functions_that_differ_within_one_absence_prove_no_caller() -> None:
    callers = TaskCallers()
    for name in ("a", "b", "c"):
        callers.add(1, path_of(native(name, "convert_all", "main")))
    task = callers.task_of(path_of(native("a", "convert_all", "main")))
    assert [name for name, _, _ in task] == ["main"]


@pytest.mark.parametrize(
    "collector", ["gc_collect_main", "gc_collect_main.constprop.0", "PyGC_Collect"]
)
def test_a_garbage_collection_is_named(collector: str) -> None:
    stack = (collector, "allocate", "handle", "dispatch", "main")
    assert names_of(judged(*((at, stack) for at in range(60, 110, 10))))[1] == [
        "garbage-collection"
    ]


HOLDER = LockOwner(PID, WORKER, recorded=True)


def test_the_holder_of_the_interpreter_lock_is_the_culprit() -> None:
    waiting = replace(HANG, waits_for=WaitsFor(GIL, Avma(0x5000), HOLDER))
    assert HANG.capture is not None
    (holder,) = (stack for stack in HANG.capture.stacks if stack.thread.id == WORKER)
    blamed = blame_holder(waiting).culprit
    assert blamed is not None
    assert blamed.function in [name for name, *_ in path_of(holder)]


@pytest.mark.parametrize(
    "waits_for",
    [None, WaitsFor("threading.RLock", Avma(0x5000), HOLDER), WaitsFor(GIL, Avma(0x5000), None)],
)
def test_other_waits_are_blamed_on_the_thread_itself(waits_for: WaitsFor | None) -> None:
    waiting = replace(HANG, waits_for=waits_for)
    assert blame_holder(waiting) == waiting


def test_samples_after_the_end_do_not_count() -> None:
    samples = [
        (at * MS, native(name, "main")) for at, name in ((60, "task"), (110, "task"), (150, "wait"))
    ]
    stacks = timed_stacks(samples, absence_of(100, ended_ms=120))
    assert [timed.at_ns // MS for timed in stacks] == [60, 110]
    assert sum(timed.weight_ns for timed in stacks) == 120 * MS


def test_the_only_sample_counts_even_if_it_is_late() -> None:
    stacks = timed_stacks([(150 * MS, native("task", "main"))], absence_of(100, ended_ms=120))
    assert stacks == (TimedStack(150 * MS, 150 * MS, stacks[0].stack),)
