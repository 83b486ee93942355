"""Python functions by run of the interpreter's loop, and the frames of the loop that run them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import CodeType

from machtrace.errors import TargetError
from machtrace.model.snapshot import Problem, ThreadId
from machtrace.model.symbol import CallStack, Frame, PythonFrame, SourceLocation

LOOP = "_PyEval_EvalFrameDefault"
"""The symbol of the loop in every CPython since 3.6."""

TAIL_CALLS = "_TAIL_CALL_"
"""Prefix of the loop's parts where each instruction is a function that ends with a jump to the next
(3.14, ``Python/ceval_macros.h``): one of them at a time has the run's frame."""

PythonRun = tuple[PythonFrame, ...]
"""The functions of one run of the loop, innermost first."""

PythonRuns = tuple[PythonRun, ...] | None
"""A thread's runs, innermost first; None where it is unknown which function began a run."""


def python_runs(rows: Sequence[tuple[CodeType, int, int]]) -> PythonRuns:
    """Return the runs of a thread.

    Args:
        rows: each function's code, its line (0 if unknown) and whether it began a run (1, 0, or -1
            if unknown), innermost first.
    """
    if any(began < 0 for _, _, began in rows):
        return None
    runs: list[PythonRun] = []
    run: list[PythonFrame] = []
    for code, line, began in rows:
        run.append(PythonFrame(code.co_qualname, SourceLocation(code.co_filename, line or None)))
        if began:
            runs.append(tuple(run))
            run = []
    if run:
        runs.append(tuple(run))
    return tuple(runs)


def with_python(stack: CallStack, runs: Sequence[PythonRun] | None) -> CallStack | None:
    """Set :attr:`Frame.python` of each run of the loop; None if the runs do not match the frames.

    Runs are counted from the outer end, and none may be left over. One frame more is allowed only
    if the loop itself is the innermost frame: its run has no function yet, or no longer. In a stack
    without its middle, inner frames are counted from the inner end. A stack that ends too early has
    lost its outer end, so its runs cannot be assigned.

    Args:
        stack: with names.
        runs: innermost first; None if unknown, then nothing is set.
    """
    if not runs:
        return stack
    indexes = [index for index, frame in enumerate(stack.frames) if _is_loop(frame)]
    may_lack_run = bool(indexes) and indexes[0] == 0
    if stack.gap is None:
        inner, outer = [], indexes
        matches = len(indexes) - len(runs) in ((0, 1) if may_lack_run else (0,))
    else:
        inner = [] if may_lack_run else [index for index in indexes if index < stack.gap.after]
        outer = [index for index in indexes if index >= stack.gap.after]
        matches = len(inner) + len(outer) <= len(runs)
    if not stack.stop.is_complete or not matches:
        return None
    run_at = dict(zip(reversed(outer), reversed(runs), strict=False))
    run_at |= dict(zip(inner, runs, strict=False))
    frames = tuple(
        replace(frame, python=run_at[index]) if index in run_at else frame
        for index, frame in enumerate(stack.frames)
    )
    return replace(stack, frames=frames)


def with_python_runs(
    stacks: Iterable[CallStack], runs: Mapping[ThreadId, PythonRuns]
) -> tuple[tuple[CallStack, ...], list[Problem]]:
    """Apply :func:`with_python` to each stack; also return a problem for each mismatch."""
    joined: list[CallStack] = []
    problems: list[Problem] = []
    for stack in stacks:
        matched = with_python(stack, runs.get(stack.thread.id))
        if matched is None:
            error = TargetError(
                f"the Python functions of thread {stack.thread.id} do not match its frames",
                remedy="capture again; if it happens each time, pass the interpreter's files with "
                "--search: matching needs complete stacks and the symbol of CPython's loop",
            )
            problems.append(Problem(thread=stack.thread.id, error=error))
        joined.append(stack if matched is None else matched)
    return tuple(joined), problems


def _is_loop(frame: Frame) -> bool:
    # A compiler may have moved a part of it elsewhere, named with a suffix.
    if frame.symbol is None:
        return False
    name = frame.symbol.name.partition(".")[0]
    return name == LOOP or name.startswith(TAIL_CALLS)
