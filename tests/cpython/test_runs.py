"""Python functions beside the frames of a copied thread."""

from __future__ import annotations

import pytest

from machtrace.cpython.runs import with_python_runs
from machtrace.model.snapshot import ThreadId, ThreadInfo
from machtrace.model.stack import NO_ADDRESS, Stop, StopReason
from machtrace.model.symbol import CallStack, Frame, FrameStatus, PythonFrame, SourceLocation

RUNS = {ThreadId(7): ((PythonFrame("parse", SourceLocation("a.py", 3)),),)}


@pytest.mark.parametrize("appends", [False, True])
def test_functions_follow_a_native_stack_that_ends_before_the_loop(*, appends: bool) -> None:
    """Registers of callers are unknown in the copy of a waiting thread."""
    frames = (Frame(address=NO_ADDRESS, status=FrameStatus.MISSING_SYMBOL),)
    stack = CallStack(
        thread=ThreadInfo(id=ThreadId(7), index=1), frames=frames, stop=Stop(StopReason.NO_RULE)
    )
    (joined,), problems = with_python_runs([stack], RUNS, appends=appends)
    names = [[function.name for function in frame.python] for frame in joined.frames]
    assert names == ([[], ["parse"]] if appends else [[]])
    assert len(problems) == (not appends)
