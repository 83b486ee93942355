"""``machtrace doctor``: the captures that work here, and how to enable more."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from functools import partial

import click

from machtrace.cli.doctor.findings import Answer, Check, Finding, State, kind_of_target
from machtrace.cli.options import DocumentFormat, complete_files, format_option
from machtrace.errors import MachtraceError

_TOPIC = "capture"
_RETRIES = 2


def _refused(error: MachtraceError) -> Finding:
    return Finding(State.MISSING, getattr(error, "summary", "") or str(error), error.remedy)


def child() -> Finding:
    """Check whether a child of this process can be captured, which needs the fewest rights."""
    from machtrace.targets.child_process import own_child

    try:
        with own_child() as pid:
            return capture(pid)
    except MachtraceError as error:
        return _refused(error)


def child_python() -> Finding:
    """Check whether the Python functions of a child can be read."""
    from machtrace.pipeline.backtraces import backtraces
    from machtrace.targets.child_process import own_child

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
    from machtrace.model.text import counted
    from machtrace.pipeline.backtraces import snapshot
    from machtrace.unwinder.unwinder import unwind

    try:
        copied = snapshot(target)
    except MachtraceError as error:
        return _refused(error)
    whole = sum(stack.stop.is_complete for stack in unwind(copied))
    threads = counted(len(copied.threads), "thread")
    times = [
        thread.stopped_for_ns for thread in copied.threads if thread.stopped_for_ns is not None
    ]
    stopped = f", stopped for at most {max(times) / 1000:.0f} µs" if times else ""
    if not copied.threads and copied.problems:
        return _refused(copied.problems[0].error)
    if copied.problems:
        problem = copied.problems[0].error
        text = f"{threads} copied; {counted(len(copied.problems), 'part')} not: {problem}"
        return Finding(State.LIMITED, text, problem.remedy)
    if whole < len(copied.threads):
        return Finding(
            State.LIMITED,
            f"{threads} copied{stopped}; {whole} of {counted(len(copied.threads), 'stack')} whole",
            "give the images' files with --search, or see where stacks end with: "
            "machtrace backtrace SPEC --explain",
        )
    return Finding(State.OK, f"{threads} copied{stopped}; all stacks are whole")


def own() -> Finding:
    """Check whether a thread of this process, started for it, can be captured from within.

    A thread that answers too late, or a stack that is not whole once, is due to the machine's
    load: the capture is tried again.
    """
    for _ in range(_RETRIES):
        finding = _own()
        if finding.state is State.OK:
            return finding
    return _own()


def _own() -> Finding:
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


@click.command()
@click.argument("spec", metavar="[SPEC]", required=False, shell_complete=complete_files)
@format_option()
def doctor(*, spec: str | None, form: DocumentFormat) -> int:
    """Report what this machine and user can capture, and how to enable more.

    SPEC is a target as for machtrace backtrace; capturing it is tried, and the text has only
    what concerns it. The exit status is 0 if SPEC
    can be captured, or without it a process started here.
    """
    from machtrace.cli.console import output
    from machtrace.cli.doctor.findings import write_json, write_text

    if spec is None or form is DocumentFormat.JSON:
        answers = [Answer(check, _finding(check)) for check in checks(spec)]
    else:
        answers = _concerning(spec)
    with output() as sink:
        (write_json if form is DocumentFormat.JSON else write_text)(answers, spec, sink)
    return int(any(answer.fails for answer in answers))


def checks(spec: str | None) -> Sequence[Check]:
    """Return the checks of this system, with a trial of ``spec`` first."""
    from machtrace.cli.doctor import darwin, installation, linux

    of_system = {"linux": linux.CHECKS, "darwin": darwin.CHECKS}
    return (
        *(TRIALS if spec is None else (trial_of(spec),)),
        *of_system.get(sys.platform, ()),
        *installation.CHECKS,
        *installation.FILE_CHECKS,
    )


def _concerning(spec: str) -> list[Answer]:
    """Return the trial of ``spec``, and what is not ok of the machine and concerns it.

    What can prevent the capture of its kind of targets is left out if the trial succeeded.
    """
    trial, *others = checks(spec)
    tried = Answer(trial, _finding(trial))
    kinds = {""} if tried.finding.state is State.OK else {"", kind_of_target(spec)}
    answers = (Answer(check, _finding(check)) for check in others if check.targets in kinds)
    return [tried, *(answer for answer in answers if answer.finding.state is not State.OK)]


def _finding(check: Check) -> Finding:
    try:
        return check.ask()
    except Exception as error:  # noqa: BLE001 - one failing check must not hide the others
        text = f"could not be checked ({type(error).__name__}: {error})"
        return Finding(State.MISSING, text, "report this, with what machtrace doctor printed")
