"""Trial captures: of a child, of this process, or of the target that the user named."""

from __future__ import annotations

import sys
import threading
from functools import partial

from machtrace.cli.doctor.findings import Check, Finding, State
from machtrace.errors import MachtraceError

_TOPIC = "capture"


def _refused(error: MachtraceError) -> Finding:
    return Finding(State.MISSING, str(error), error.remedy)


def child() -> Finding:
    """Check whether a child of this process can be captured, which needs the fewest rights."""
    from machtrace.targets.trial_child import own_child

    try:
        with own_child() as pid:
            return capture(pid)
    except MachtraceError as error:
        return _refused(error)


def child_python() -> Finding:
    """Check whether the Python functions of a child can be read."""
    from machtrace.pipeline.backtraces import backtraces
    from machtrace.targets.trial_child import own_child

    try:
        with own_child() as pid:
            stacks = backtraces(pid, python=True, lines=False)
    except MachtraceError as error:
        return _refused(error)
    names = {call.name for stack in stacks for frame in stack.frames for call in frame.python}
    running = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    if "waiting_for_input" in names:
        return Finding(State.OK, f"read of a child that runs {running}")
    return Finding(
        State.LIMITED,
        f"not found in a child that runs {running}",
        "see why with: machtrace backtrace PID --python",
    )


def capture(target: int | str) -> Finding:
    """Check whether ``target`` can be opened, its threads captured and their stacks unwound."""
    from machtrace.pipeline.backtraces import snapshot
    from machtrace.unwinder.unwinder import unwind

    try:
        copied = snapshot(target)
    except MachtraceError as error:
        return _refused(error)
    whole = sum(stack.stop.is_complete for stack in unwind(copied))
    threads = f"{len(copied.threads)} thread{'' if len(copied.threads) == 1 else 's'}"
    times = [
        thread.stopped_for_ns for thread in copied.threads if thread.stopped_for_ns is not None
    ]
    stopped = f", stopped for at most {max(times) / 1000:.0f} µs" if times else ""
    if not copied.threads and copied.problems:
        return _refused(copied.problems[0].error)
    if copied.problems:
        problem = copied.problems[0].error
        text = f"{threads} copied; {len(copied.problems)} parts not: {problem}"
        return Finding(State.LIMITED, text, problem.remedy)
    if whole < len(copied.threads):
        return Finding(
            State.LIMITED,
            f"{threads} copied{stopped}; {whole} stacks are whole",
            "give the images' files with --search, or see where stacks end with: "
            "machtrace backtrace SPEC --explain",
        )
    return Finding(State.OK, f"{threads} copied{stopped}; all stacks are whole")


def own() -> Finding:
    """Check whether a thread of this process, started for it, can be captured from within."""
    done = threading.Event()
    waiting = threading.Thread(target=done.wait, name="machtrace doctor", daemon=True)
    waiting.start()
    try:
        return capture("self")
    finally:
        done.set()
        waiting.join()


TRIALS = (
    Check(_TOPIC, "own children", child, is_needed=True),
    Check(_TOPIC, "Python functions", child_python),
    Check(_TOPIC, "this process", own),
)


def trial_of(spec: str) -> Check:
    """Return the check that captures the target that the user named."""
    from machtrace.targets.open import SELF

    return Check(_TOPIC, spec, own if spec == SELF else partial(capture, spec), is_needed=True)
