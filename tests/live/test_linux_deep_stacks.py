"""An overflowing stack: both of its ends, and its depth."""

from __future__ import annotations

from machtrace.model.stack import StopReason
from machtrace.pipeline.backtraces import build_capture
from machtrace.targets.linux.process import LinuxProcessTarget

CALLS = 300_000


def test_recursion_is_counted_to_the_threads_start(build, start, wait_blocked, copier):
    """The recursing function is at the inner end, its first caller at the outer one."""
    process = start(build("deep"), str(CALLS))
    wait_blocked(process.pid)
    with LinuxProcessTarget(process.pid, copier=copier) as target:
        snapshot = target.snapshot()
    _, deep = build_capture(snapshot).stacks
    names = [frame.symbol.name if frame.symbol else None for frame in deep.frames]

    assert StopReason.ROOT is deep.stop.reason
    assert deep.gap is not None
    assert len(names) == 512
    inner = names.index("recurse")
    assert names[inner - 1] == "wait_here"
    outer = names.index("start")
    assert {"recurse"} == set(names[inner:outer])
    assert outer - inner + deep.gap.count == CALLS
