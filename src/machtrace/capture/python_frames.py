"""Python functions beside the frames of the interpreter's loop that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from machtrace.model.symbol import CallStack, Frame, PythonFrame

LOOP = "_PyEval_EvalFrameDefault"
"""What every CPython since 3.6 calls its loop."""

_Run = tuple[PythonFrame, ...]


def with_python(stack: CallStack, runs: Sequence[_Run] | None) -> CallStack:
    """``stack`` with :attr:`Frame.python` of each run of the loop.

    Runs are counted from the outer end, for at the inner one a run may have begun that has no
    function yet. Of a stack whose middle was left out, inner frames are counted from the inner end.

    Args:
        stack: with names.
        runs: innermost first; None where they are not known, and nothing is added.
    """
    places = [number for number, frame in enumerate(stack.frames) if _is_loop(frame)]
    if not runs or not places:
        return stack
    outer = [number for number in places if stack.gap is None or number >= stack.gap.after]
    inner = [number for number in places if number not in outer]
    found = dict(zip(reversed(outer), reversed(runs), strict=False))
    found |= dict(zip(inner, runs, strict=False))
    frames = tuple(
        replace(frame, python=found[number]) if number in found else frame
        for number, frame in enumerate(stack.frames)
    )
    return replace(stack, frames=frames)


def _is_loop(frame: Frame) -> bool:
    # A compiler may have moved a part of it elsewhere, named with a suffix.
    return frame.symbol is not None and frame.symbol.name.partition(".")[0] == LOOP
