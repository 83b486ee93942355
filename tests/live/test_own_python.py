"""Python functions beside the native frames of the interpreter loop that run them."""

from __future__ import annotations

import ast
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable

import pytest

import machtrace as mt
from machtrace.errors import TargetSpecError
from machtrace.model.symbol import CallStack

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")


def through_c(inner: Callable[[], object]) -> object:
    """Call through C, which starts another run of the interpreter loop."""
    return next(map(lambda _: inner(), [0]))  # noqa: C417 - C is meant


def runs(stack: CallStack) -> list[list[str]]:
    """Return the last parts of the function names of each frame of the interpreter loop."""
    return [
        [one.name.rpartition(".")[2] for one in frame.python]
        for frame in stack.frames
        if frame.symbol is not None and frame.symbol.name.startswith("_PyEval_EvalFrameDefault")
    ]


def leaf(event: threading.Event) -> None:
    """Block."""
    event.wait()


def middle(event: threading.Event) -> None:
    """Call without leaving the run of the loop."""
    leaf(event)


def start(event: threading.Event) -> None:
    """Call through C, twice."""
    through_c(lambda: through_c(lambda: middle(event)))


def test_functions_are_at_the_run_that_they_share() -> None:
    """A call from Python to Python stays in its run; one through C begins another."""
    event = threading.Event()
    thread = threading.Thread(target=start, args=(event,))
    thread.start()
    try:
        functions = ["wait", "wait", "leaf", "middle", "<lambda>", "<lambda>"]
        deadline = time.monotonic() + 20
        # It may not have reached the call yet.
        while (actual := runs(mt.backtrace(thread, python=True, lines=False)))[:1] != [functions]:
            assert time.monotonic() < deadline, actual
        assert actual[1] == ["through_c", "<lambda>", "<lambda>"]
        assert actual[2] == ["through_c", "start"]
        assert actual[-1] == ["run", "_bootstrap_inner", "_bootstrap"]
        assert all(actual)
    finally:
        event.set()
        thread.join()


def test_a_generator_has_a_run_of_its_own_or_shares_one() -> None:
    """In each version of CPython all functions are present, in their order."""

    def generate() -> object:
        yield mt.backtrace(python=True, lines=False), traceback.extract_stack()

    stack, expected = through_c(lambda: list(generate())[0])  # type: ignore[index, misc]  # noqa: RUF015
    functions = [function for frame in stack.frames for function in frame.python]
    assert [function.name.rpartition(".")[2] for function in functions] == [
        function.name for function in expected[::-1]
    ]
    lines = [function.location.line for function in functions]
    assert lines == [function.lineno for function in expected[::-1]]
    assert [function.location.path for function in functions] == [
        function.filename for function in expected[::-1]
    ]


def test_python_and_native_frames_of_contending_threads_are_consistent() -> None:
    """The innermost Python function is one whose code the stack's run can be executing."""
    done, begun = threading.Event(), threading.Semaphore(0)

    def spin(depth: int) -> None:
        begun.release()
        while not done.is_set():
            through_c(lambda: sorted(range(50), key=lambda one: -one)) if depth else through_c(int)

    threads = [threading.Thread(target=spin, args=(n % 2,), daemon=True) for n in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 20)  # more contention, and this thread waits less for its turn
    for thread in threads:
        thread.start()
    try:
        assert all(begun.acquire(timeout=20) for _ in threads)
        for _ in range(2):
            for stack in mt.backtraces("self", python=True, lines=False):
                if not stack.thread.name or "spin" not in stack.thread.name:
                    continue
                functions = runs(stack)
                assert functions[-1][-1] == "_bootstrap"
                # The innermost run may not have a function yet.
                assert all(functions[1:])
                order = [name for run in functions for name in run]
                assert order.index("spin") < order.index("run") < order.index("_bootstrap_inner")
    finally:
        sys.setswitchinterval(interval)
        done.set()
        for thread in threads:
            thread.join()


def test_python_without_symbolication_is_refused() -> None:
    """The loop is recognised by its symbol, and nothing is opened before the error."""
    with pytest.raises(TargetSpecError, match="require names"):
        mt.backtraces("self", python=True, symbolicate=False)


def test_lines_are_those_of_the_calls_in_the_source() -> None:
    frames = [one for frame in mt.backtrace(python=True).frames for one in frame.python]
    own = next(
        one for one in frames if one.name == "test_lines_are_those_of_the_calls_in_the_source"
    )
    source, first = inspect.getsourcelines(test_lines_are_those_of_the_calls_in_the_source)
    call = next(
        n
        for n in ast.walk(ast.parse("".join(source)))
        if isinstance(n, ast.GeneratorExp | ast.ListComp)
    )
    assert own.location.line == first + call.lineno - 1
