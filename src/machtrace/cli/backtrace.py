"""``machtrace backtrace``: the call stacks of a target."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

import click

from machtrace.cli.application import ProgramCommand
from machtrace.cli.options import (
    format_option,
    limit_option,
    lines_option,
    name_options,
    names_option,
    python_option,
    quiet_option,
    scan_option,
    search_option,
    stack_limit_option,
    target_argument,
    thread_option,
    unique_option,
)
from machtrace.model.address import Avma
from machtrace.model.capture import Capture
from machtrace.model.options import ONLY, PythonView, WalkOptions
from machtrace.model.snapshot import Snapshot, ThreadId
from machtrace.model.stack import FrameTrust, StopReason
from machtrace.model.symbol import CallStack, FrameStatus
from machtrace.model.text import counted

if TYPE_CHECKING:
    from machtrace.cpython.runs import PythonRuns
    from machtrace.targets.base import Target
    from machtrace.targets.child_process import StartedProgram

    _Runs: TypeAlias = Mapping[ThreadId, PythonRuns]


class Format(StrEnum):
    """Output formats of stacks."""

    TEXT = "text"
    LLDB = "lldb"
    NSTHREAD = "nsthread"
    BS = "bs"
    JSON = "json"
    APPLE = "apple"
    IPS = "ips"
    HTML = "html"


_WITH_LINES = (
    Format.TEXT,
    Format.LLDB,
    Format.JSON,
    Format.APPLE,
    Format.IPS,
    Format.HTML,
)
"""Formats that show source lines."""

_OF_GROUPS = (Format.TEXT, Format.LLDB, Format.JSON)
"""Formats in which several threads have one stack."""

_MAX_RETURN_NS = 100_000_000
"""Longest wait until stopped threads are in their waits again, which states what these are for."""

_WITH_DETAILS = (Format.TEXT, Format.JSON)
"""Formats that show why each stack ends, and how frames were found."""


@click.command(cls=ProgramCommand)
@target_argument(metavar="SPEC | -- PROGRAM [ARGS]...")
@thread_option
@format_option(Format)
@search_option
@limit_option
@stack_limit_option
@scan_option
@names_option
@lines_option
@unique_option
@click.option(
    "--explain", is_flag=True, help="Show how each frame was found, and what other methods found."
)
@click.option(
    "--registers/--no-registers",
    default=None,
    help="Show registers of all threads, or of none. By default those of a crashed thread.",
)
@python_option
@click.option(
    "--on-crash",
    is_flag=True,
    help="Start PROGRAM, or wait for a running process, and print its stacks when a signal ends it "
    "that would write a core.",
)
@quiet_option
def backtrace(  # noqa: PLR0913 - an option each
    *,
    spec: str | tuple[str, ...],
    thread: str | tuple[str, ...],
    form: Format,
    search: tuple[str, ...],
    limit: int,
    stack_limit: int,
    scan: bool,
    names: bool,
    lines: bool,
    unique: bool,
    explain: bool,
    registers: bool | None,
    python: PythonView,
    on_crash: bool,
) -> int:
    """Print the call stacks of a process, a core file or an emulated program.

    SPEC is {SPECS}. The exit status is 1 if a part of the target could not be read; the rest is
    printed. With --on-crash it is that of the program: 128 and the number of a signal that ended
    it; 127 or 126 if PROGRAM does not exist or cannot be executed, 125 if machtrace failed.
    """
    from machtrace.cli.console import output, print_errors, status_of
    from machtrace.pipeline.backtraces import build_capture, capture_snapshot

    walk = WalkOptions(limit=limit, stack_limit=stack_limit, scan=scan)
    naming = name_options(search=search, names=names, lines=lines, python=python)
    if unique:
        _check_format("--unique", form, _OF_GROUPS)
        if registers:
            raise click.UsageError("--unique merges threads whose --registers differ: omit one")
    if explain:
        _check_format("--explain", form, _WITH_DETAILS)
    if registers:
        _check_format("--registers", form, _WITH_DETAILS)
    if python:
        _check_format("--python", form, _WITH_LINES)
    if python == ONLY and explain:
        raise click.UsageError("--explain is about native frames, which --python=only leaves out")

    def show(copied: Snapshot, runs: _Runs) -> int:
        shown_names = replace(naming, lines=lines and form in _WITH_LINES)
        result = build_capture(copied, walk, shown_names, explain=explain, python=runs)
        shown = result.unique if unique else result
        with output() as sink:
            write_report(shown, form, sink, registers=registers, unique=unique)
        _warn(result, form)
        _warn_of_limit(copied, result, stack_limit)
        print_errors([problem.error for problem in result.problems])
        # Other problems are names and lines that may be missing; the stacks are whole.
        return status_of(copied)

    if on_crash:
        return _on_crash(spec, lambda target: capture_snapshot(target, thread, walk, naming), show)
    if isinstance(spec, tuple):
        raise click.UsageError("-- PROGRAM requires --on-crash")
    copied, runs = capture_snapshot(spec, thread, walk, naming)
    return show(_with_waits(spec, copied), runs)


def _with_waits(spec: str, copied: Snapshot) -> Snapshot:
    """Return the snapshot with the owners of the locks that a process's threads wait for."""
    is_process = spec.isdecimal() or not (":" in spec or spec == "self" or Path(spec).exists())
    pid = copied.process.pid
    if sys.platform != "linux" or not is_process or pid is None:
        return copied
    from machtrace.errors import TargetError
    from machtrace.targets.linux.locks import LinuxLocks
    from machtrace.watching.locks.waits import LockSurveyor

    locks = LinuxLocks()
    pcs: dict[int, Avma] = {thread.info.id: thread.registers.pc for thread in copied.threads}
    try:
        locks.await_return(pid, pcs, _MAX_RETURN_NS)
        return LockSurveyor(pid, locks).described(copied)
    except TargetError:  # it exited, or hides them: the stacks are whole
        return copied
    finally:
        locks.close()


def _on_crash(
    spec: str | tuple[str, ...],
    capture: Callable[[Target], tuple[Snapshot, _Runs]],
    show: Callable[[Snapshot, _Runs], object],
) -> int:
    from machtrace.cli.console import run_program, warn, warn_of_end
    from machtrace.targets.child_process import exit_status
    from machtrace.targets.open import process_named, traced_until_crash

    if isinstance(spec, tuple):

        def await_crash(program: StartedProgram, _signals: list[int]) -> None:
            watch = traced_until_crash(program.pid, capture, program.run)
            if watch.status is not None:
                program.collected(watch.status)
            if watch.captured is not None:
                show(*watch.captured)

        return run_program(spec, await_crash, reports_success=True)
    if ":" in spec or "/" in spec:
        raise click.UsageError("--on-crash requires a process id or name, or -- and a program")
    pid = int(spec) if spec.isdecimal() else process_named(spec)
    watch = traced_until_crash(
        pid,
        capture,
        lambda: warn(f"waiting until process {pid} crashes or ends", hint="Ctrl-C detaches"),
    )
    if watch.captured is not None:
        show(*watch.captured)
    status = exit_status(watch.status if watch.status is not None else watch.signal)
    warn_of_end(f"process {pid}", status, reports_success=True)
    return status


def _check_format(option: str, form: Format, formats: tuple[Format, ...]) -> None:
    if form not in formats:
        raise click.UsageError(f"{option} requires --format {', '.join(formats)}, not {form}")


def _warn(result: Capture, form: Format) -> None:
    from machtrace.cli.console import warn

    warn_of_guesses(result.stacks)
    if form not in _WITH_DETAILS:
        for fact in _hidden_facts(result):
            warn(fact, hint="--format text shows where")


def warn_of_guesses(stacks: Sequence[CallStack]) -> None:
    """Warn of guessed callers; advise --search only where the image's file was not read."""
    from machtrace.cli.console import warn

    count = counted(len(stacks), "stack")
    guessed = list(filter(_is_guess_at_top, stacks))
    unread = [stack for stack in guessed if stack.frames[0].status not in _READ]
    if unread:
        warn(
            f"in {len(unread)} of {count} the first caller is a guess: no unwind info or "
            "code was available there",
            hint="pass the binaries with --search",
        )
    if len(guessed) > len(unread):
        warn(
            f"in {len(guessed) - len(unread)} of {count} the first caller is a guess: the "
            "binary has no unwind info there, and its code does not determine the caller"
        )


def _warn_of_limit(copied: Snapshot, result: Capture, stack_limit: int) -> None:
    """Warn of stacks whose copy ended at ``--stack-limit``."""
    from machtrace.cli.console import warn

    cut = {thread.info.id for thread in copied.threads if len(thread.stack.data) >= stack_limit}
    ends = sum(
        stack.stop.reason is StopReason.UNREADABLE and stack.thread.id in cut
        for stack in result.stacks
    )
    if ends:
        verb = "was" if ends == 1 else "were"
        warn(
            f"{counted(ends, 'stack')} {verb} copied up to the limit of {stack_limit:,} bytes only",
            hint="--stack-limit copies more",
        )


_READ = (FrameStatus.SYMBOLICATED, FrameStatus.MISSING_SYMBOL)
"""The statuses of frames whose image was read."""
_GUESSES = frozenset({FrameTrust.FRAME_POINTER, FrameTrust.LINK_REGISTER, FrameTrust.SCAN})


def _is_guess_at_top(stack: CallStack) -> bool:
    """Return whether only a convention identifies the caller of the interrupted function."""
    first = stack.frames[:2]
    return (
        len(first) == 2  # noqa: PLR2004 - the first two
        and first[0].image is not None
        and first[0].address.trust is FrameTrust.CONTEXT
        and first[1].address.trust in _GUESSES
    )


def _hidden_facts(result: Capture) -> Iterator[str]:
    """Yield what formats that only list frames do not show."""
    incomplete = sum(not stack.stop.is_complete for stack in result.stacks)
    if incomplete:
        verb = "is" if incomplete == 1 else "are"
        yield f"{incomplete} of {counted(len(result.stacks), 'stack')} {verb} incomplete"
    disputed = sum(
        bool(frame.address.disputed_by) for stack in result.stacks for frame in stack.frames
    )
    if disputed:
        yield f"methods of unwinding disagree at {counted(disputed, 'frame')}"


def write_report(
    result: Capture,
    form: Format,
    sink: TextIO,
    *,
    registers: bool | None = None,
    unique: bool = False,
) -> None:
    """Write ``result`` to ``sink``, with colours if standard output is a terminal.

    ``unique``: whether its equal stacks are merged.
    """
    from machtrace.cli.console import wants_colour
    from machtrace.render import bs, json_document, lldb, nsthread, text

    match form:
        case Format.TEXT:
            text.write(result, sink, colour=wants_colour(sys.stdout), registers=registers)
        case Format.LLDB:
            (lldb.write_unique if unique else lldb.write)(result, sink)
        case Format.NSTHREAD:
            nsthread.write(result, sink)
        case Format.BS:
            bs.write(result, sink)
        case Format.JSON:
            json_document.write(result, sink, registers=registers)
        case Format.APPLE | Format.IPS | Format.HTML:
            from machtrace.reports.stacks.crash_reports import crash_report_of
            from machtrace.reports.writers import write_reports

            sink.write(write_reports([crash_report_of(result)], form.value).decode())
