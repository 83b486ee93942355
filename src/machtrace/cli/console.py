"""Output, errors and warnings of all commands."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, TextIO

from machtrace.errors import FileAccessError, MachtraceError, ThreadGoneError

if TYPE_CHECKING:
    from machtrace.model.snapshot import Snapshot
    from machtrace.targets.child_process import StartedProgram

_SHOWN = 10
_COLUMNS = 100


def prepare_output() -> None:
    """Make standard output and standard error accept any text.

    Characters that a stream's encoding lacks are written as escapes. If the caller closed standard
    output, flushing what was written there is an error; messages to a closed standard error are
    dropped.
    """
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    set_quiet(False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _ClosedOutput(io.StringIO):
    """A standard output that cannot be written to."""

    def flush(self) -> None:
        if self.getvalue():
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123


@contextmanager
def output() -> Iterator[TextIO]:
    """Buffer a command's result, and write it to standard output as a whole at the end.

    A reader that closes the pipe, such as ``head``, ends the command quietly.

    Raises:
        FileAccessError: standard output cannot be written.
    """
    result = io.StringIO()
    try:
        yield result
        sys.stdout.write(result.getvalue())
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        sys.exit(0)
    except OSError as error:
        if isinstance(error, MachtraceError):
            raise
        drop_output()
        reason = error.strerror or "cannot be written"
        if error.filename:
            raise FileAccessError(str(error.filename), reason) from error
        refused = FileAccessError("standard output", reason)
        refused.remedy = "redirect it to a file or pipe that is writable and has room"
        raise refused from error


@contextmanager
def binary_output() -> Iterator[BinaryIO]:
    """Yield standard output for bytes, unbuffered; otherwise as :func:`output`.

    Raises:
        FileAccessError: standard output is a terminal, or cannot be written.
    """
    if sys.stdout.isatty():
        refused = FileAccessError("standard output", "a terminal cannot show binary data")
        refused.remedy = "redirect it, or name an output file"
        raise refused
    with raw_output() as sink:
        yield sink


@contextmanager
def raw_output() -> Iterator[BinaryIO]:
    """Yield standard output for bytes, be it a terminal or not.

    Raises:
        FileAccessError: it cannot be written.
    """
    with output():
        sink = getattr(sys.stdout, "buffer", None)
        if sink is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        yield sink
        sink.flush()


def is_unread(stream: TextIO) -> bool:
    """Return whether ``stream`` is a pipe whose reader has left."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))


def drop_output() -> None:
    """Discard what is still buffered: the interpreter would fail to write it when it exits."""
    if isinstance(sys.stdout, _ClosedOutput):
        sys.stdout = _nowhere()
        return
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


class _Quiet:
    """Whether ``--quiet`` was passed."""

    is_requested = False


def set_quiet(requested: bool) -> None:  # noqa: FBT001 - click's flag
    """Set whether warnings, summaries and progress are omitted."""
    _Quiet.is_requested = requested


def is_quiet() -> bool:
    """Return whether ``--quiet`` was passed."""
    return _Quiet.is_requested


def print_error(error: MachtraceError) -> None:
    """Print an error on standard error: the fact, and a hint on a line of its own.

    The candidates for an ambiguous target are printed in between, a line each, cut to
    the width of the terminal.
    """
    candidates = getattr(error, "candidates", ())
    if not candidates:
        print_message(str(error), hint=error.remedy or "")
        return
    width = _width(sys.stderr)
    rows = [row if len(row) <= width else f"{row[: width - 1]}…" for row in candidates]
    summary = getattr(error, "summary", "")
    _write_lines([f"machtrace: {summary}", *rows, "hint: pass the id of one"])


def _width(stream: TextIO) -> int:
    """Return the columns of a terminal, or 100 of another stream."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def warn(fact: str, *, hint: str = "") -> None:
    """Print a message as :func:`print_message` does, unless ``--quiet`` was passed."""
    if not _Quiet.is_requested:
        print_message(fact, hint=hint)


def print_message(fact: str, *, hint: str = "") -> None:
    """Print a message and a hint on standard error, one line each; ignore a closed stream."""
    lines = [f"machtrace: {fact}", f"hint: {hint}"] if hint else [f"machtrace: {fact}"]
    _write_lines([" ".join(line.split()) for line in lines])


def _write_lines(lines: Sequence[str]) -> None:
    try:
        sys.stderr.writelines(f"{line}\n" for line in lines)
        sys.stderr.flush()
    except OSError:
        # The interpreter would fail to write what is left in the buffer when it exits.
        sys.stderr = _nowhere()


def print_errors(errors: Sequence[MachtraceError]) -> None:
    """Print at most ten errors, the number of the others, and the number of threads that exited."""
    from machtrace.model.text import counted

    exited = sum(isinstance(error, ThreadGoneError) for error in errors)
    if exited:
        warn(f"{counted(exited, 'thread')} exited before the copy")
    lasting = [error for error in errors if not isinstance(error, ThreadGoneError)]
    for error in lasting[:_SHOWN]:
        print_error(error)
    if len(lasting) > _SHOWN:
        print_message(
            counted(len(lasting) - _SHOWN, "more error"), hint="--format json lists them all"
        )


def status_of(copied: Snapshot) -> int:
    """Return the exit status for a snapshot: 1 if a part of it is missing.

    A thread that exited is not missing, unless it was the only one requested.
    """
    lasting = any(not isinstance(problem.error, ThreadGoneError) for problem in copied.problems)
    return int(lasting or not copied.threads)


def run_program(
    arguments: Sequence[str],
    task: Callable[[StartedProgram, list[int]], None],
    *,
    reports_success: bool = False,
) -> int:
    """Start a program for ``task``, wait for its end, and return the command's exit status.

    It is the program's own, 128 and the number of the signal that ended it, 127 or 126 if it does
    not exist or cannot be executed, or 125 if ``task`` failed: then the program is killed.

    Args:
        arguments: the program and its arguments.
        task: is called with the program, which waits for its first instruction, and the list of
            signals that were passed on to it.
        reports_success: whether an exit status of 0 is printed, too.
    """
    from machtrace.targets.child_process import FAILED, StartedProgram, status_without

    try:
        program = StartedProgram(arguments)
    except MachtraceError as error:
        print_error(error)
        return status_without(error)
    try:
        with program, program.passing_signals() as arrived:
            task(program, arrived)
            status = program.wait()
    except MachtraceError as error:
        print_error(error)
        return FAILED
    warn_of_end(arguments[0], status, reports_success=reports_success)
    return status


def warn_of_end(program: str, status: int, *, reports_success: bool = False) -> None:
    """Print how a program ended; unless ``reports_success``, not if its exit status is 0."""
    from machtrace.model.cause import LINUX_SIGNALS

    number = status - 128
    if number > 0:
        warn(f"{program} was ended by {LINUX_SIGNALS.get(number, f'signal {number}')}")
    elif status or reports_success:
        warn(f"{program} exited with status {status}")


def wants_colour(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal with colours, and NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
