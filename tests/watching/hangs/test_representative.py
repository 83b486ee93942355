"""The culprit of some samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from machtrace.model.incident.facts import Culprit, TimedStack
from machtrace.watching.hangs.representative import representative
from tests.support.reports.incidents import LIBC
from tests.watching.hangs.test_wait_roles import native, python

MS = 1_000_000


def culprit(*rows: tuple[int, Sequence[str]]) -> Culprit:
    stacks = [TimedStack(0, weight * MS, native(*names)) for weight, names in rows]
    chosen = representative(stacks)
    assert chosen is not None
    return chosen.culprit


def test_99_ms_in_one_function_and_1_ms_in_another() -> None:
    chosen = culprit((99, ("a", "task", "main")), (1, ("b", "task", "main")))
    assert (chosen.function, chosen.share) == ("a", 0.99)


def test_a_loop_over_many_leaves_is_the_loop() -> None:
    rows = [(10, (f"leaf_{number}", "loop", "main")) for number in range(10)]
    assert culprit(*rows).function == "loop"


def test_weights_decide_and_not_the_number_of_samples() -> None:
    rows = [(90, ("a", "main")), *[(1, ("b", "main"))] * 10]
    assert culprit(*rows).function == "a"


def test_the_first_of_few_samples_is_not_the_culprit_of_the_time_before_it() -> None:
    rows = [(150, ("leaf_1", "scan", "main")), (50, ("leaf_2", "scan", "main"))]
    assert culprit(*rows, (50, ("leaf_3", "scan", "main"))).function == "scan"
    assert culprit(*rows).function == "scan"
    assert culprit(rows[0]).function == "leaf_1"


def test_the_representative_is_one_of_the_culprits_stacks() -> None:
    stacks = [TimedStack(0, 10, native("b", "main")), TimedStack(0, 90, native("a", "main"))]
    chosen = representative(stacks)
    assert chosen is not None
    assert chosen.stack == 1


def test_a_python_function_has_the_native_one_beside_it() -> None:
    stack = python("time_sleep", ("handler", "/app.py"), ("main", "/app.py"))
    chosen = representative([TimedStack(0, 100, stack)])
    assert chosen is not None
    assert (chosen.culprit.function, chosen.culprit.native) == ("handler", "time_sleep")
    assert (chosen.culprit.file, chosen.culprit.line) == ("/app.py", 1)


def test_the_machinery_of_waits_is_no_culprit() -> None:
    stack = native("epoll_wait", "WaitEventSetWait", "WaitLatch", "ProcSleep", "LockAcquire")
    wait = replace(stack.frames[0], image=LIBC)
    stack = replace(stack, frames=(wait, *stack.frames[1:]))
    chosen = representative([TimedStack(0, 100, stack)])
    assert chosen is not None
    assert chosen.culprit.function == "ProcSleep"


def test_native_functions_between_python_functions_split_no_time() -> None:
    """They depend on how CPython has adapted its instructions."""
    inner = python("clock_gettime", ("parse", "/app.py")).frames[:2]
    stacks = []
    for between in ("context_run", "cfunction_call"):
        outer = python(between, ("main", "/app.py"))
        stacks.append(replace(outer, frames=(*inner, *outer.frames)))
    chosen = representative([TimedStack(at, 10, each) for at, each in enumerate(stacks)])
    assert chosen is not None
    assert (chosen.culprit.function, chosen.culprit.share) == ("parse", 1.0)


def test_no_stacks_have_no_representative() -> None:
    assert representative([]) is None
