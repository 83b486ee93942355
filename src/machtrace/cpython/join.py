"""Python functions beside the frames of the interpreter's loop that run them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from machtrace.cpython.runs import PythonRuns
from machtrace.errors import TargetError
from machtrace.model.snapshot import Problem, ThreadId
from machtrace.model.symbol import CallStack, Frame, PythonFrame

LOOP = "_PyEval_EvalFrameDefault"
"""What every CPython since 3.6 calls its loop."""

TAIL_CALLS = "_TAIL_CALL_"
"""How the names of its parts begin where each instruction is a function that ends with a jump to
the next one's (3.14, ``Python/ceval_macros.h``): one at a time has the run's frame."""

_Run = tuple[PythonFrame, ...]


def with_python(stack: CallStack, runs: Sequence[_Run] | None) -> CallStack | None:
    """``stack`` with :attr:`Frame.python` of each run of the loop; None where they do not match.

    Runs are counted from the outer end, and none may be left over. Only where the loop itself was
    about to go on may there be one frame more: a run that has no function yet, or no more. Of a
    stack whose middle was left out, inner frames are counted from the inner end. A stack that ends
    too early has lost its outer end, and nothing says which run is which.

    Args:
        stack: with names.
        runs: innermost first; None where they are not known, and nothing is added.
    """
    if not runs:
        return stack
    places = [number for number, frame in enumerate(stack.frames) if _is_loop(frame)]
    unsure = bool(places) and places[0] == 0
    if stack.gap is None:
        inner, outer = [], places
        matches = len(places) - len(runs) in ((0, 1) if unsure else (0,))
    else:
        inner = [] if unsure else [number for number in places if number < stack.gap.after]
        outer = [number for number in places if number >= stack.gap.after]
        matches = len(inner) + len(outer) <= len(runs)
    if not stack.stop.is_complete or not matches:
        return None
    found = dict(zip(reversed(outer), reversed(runs), strict=False))
    found |= dict(zip(inner, runs, strict=False))
    frames = tuple(
        replace(frame, python=found[number]) if number in found else frame
        for number, frame in enumerate(stack.frames)
    )
    return replace(stack, frames=frames)


def with_python_runs(
    stacks: Iterable[CallStack], runs: Mapping[ThreadId, PythonRuns]
) -> tuple[tuple[CallStack, ...], list[Problem]]:
    """:func:`with_python` of many stacks, and what is missing where they do not match."""
    found: list[CallStack] = []
    problems: list[Problem] = []
    for stack in stacks:
        matched = with_python(stack, runs.get(stack.thread.id))
        if matched is None:
            error = TargetError(
                f"the Python functions of thread {stack.thread.id} do not fit its frames",
                remedy="capture again; where it stays so, give the interpreter's files with "
                "--search, for it takes whole stacks and the name of CPython's loop in them",
            )
            problems.append(Problem(thread=stack.thread.id, error=error))
        found.append(stack if matched is None else matched)
    return tuple(found), problems


def _is_loop(frame: Frame) -> bool:
    # A compiler may have moved a part of it elsewhere, named with a suffix.
    if frame.symbol is None:
        return False
    name = frame.symbol.name.partition(".")[0]
    return name == LOOP or name.startswith(TAIL_CALLS)
