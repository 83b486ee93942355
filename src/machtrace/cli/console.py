"""What all commands do the same way: output, errors and warnings."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, TextIO

from machtrace.errors import FileAccessError, MachtraceError

_SHOWN = 10


def prepare_output() -> None:
    """Let no name that a target gives itself stop the output.

    What a stream's encoding lacks is written as an escape. Where the caller closed standard
    output, what is written there is an error once it is flushed; complaints are dropped.
    """
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _ClosedOutput(io.StringIO):
    """Standard output that nothing can be written to."""

    def flush(self) -> None:
        if self.getvalue():
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123


@contextmanager
def output() -> Iterator[TextIO]:
    """A place for a command's result, which goes to standard output as a whole at the end.

    A reader who has had enough, as ``head`` has, ends the command quietly.

    Raises:
        FileAccessError: what was written cannot be.
    """
    result = io.StringIO()
    try:
        yield result
        sys.stdout.write(result.getvalue())
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except OSError as error:
        if isinstance(error, MachtraceError):
            raise
        _drop_output()
        reason = error.strerror or "cannot be written"
        if error.filename:
            raise FileAccessError(str(error.filename), reason) from error
        refused = FileAccessError("standard output", reason)
        refused.remedy = "send it to a file or a pipe that can be written to and has room"
        raise refused from error


@contextmanager
def binary_output() -> Iterator[BinaryIO]:
    """Standard output for bytes, as :func:`output` is for text, but nothing is held back.

    Raises:
        FileAccessError: it is a terminal, or it cannot be written.
    """
    if sys.stdout.isatty():
        refused = FileAccessError("standard output", "bytes are not for a terminal")
        refused.remedy = "redirect it, or give the name of a file"
        raise refused
    with output():
        sink = getattr(sys.stdout, "buffer", None)
        if sink is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        yield sink
        sink.flush()


def _drop_output() -> None:
    """Send what is still buffered nowhere: the interpreter would try, and fail, at its end."""
    if isinstance(sys.stdout, _ClosedOutput):
        sys.stdout = _nowhere()
        return
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def print_error(error: MachtraceError) -> None:
    """One line on stderr: what happened, where, and what to do."""
    line = f"{error}; {error.remedy}" if error.remedy else str(error)
    warn(" ".join(line.split()))


def warn(line: str) -> None:
    """One line on stderr; where nothing can be written there, the status still tells."""
    try:
        sys.stderr.write(f"machtrace: {line}\n")
        sys.stderr.flush()
    except OSError:
        # What is left in its buffer would make the interpreter's end one with an error.
        sys.stderr = _nowhere()


def print_errors(errors: Sequence[MachtraceError]) -> None:
    """A line each, up to a number that a person still reads."""
    for error in errors[:_SHOWN]:
        print_error(error)
    if len(errors) > _SHOWN:
        warn(f"{len(errors) - _SHOWN} more parts could not be read; --format json lists them all")


def wants_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal whose user did not ask for plain text (NO_COLOR)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
