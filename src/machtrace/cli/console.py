"""What all commands do the same way: output, errors and warnings."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from machtrace.errors import FileAccessError, MachtraceError

_SHOWN = 10


def prepare_output() -> None:
    """Let no name that a target gives itself stop the output.

    What a stream's encoding lacks is written as an escape. A stream that the caller closed takes
    what is written to it and drops it.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


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
        place = str(error.filename or "standard output")
        raise FileAccessError(place, error.strerror or "cannot be written") from error


def _drop_output() -> None:
    """Send what is still buffered nowhere: the interpreter would try, and fail, at its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def complain(error: MachtraceError) -> None:
    """One line on stderr: what happened, where, and what to do."""
    line = f"{error}; {error.remedy}" if error.remedy else str(error)
    warn(" ".join(line.split()))


def warn(line: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"machtrace: {line}\n")


def complain_of_all(errors: Sequence[MachtraceError]) -> None:
    """A line each, up to a number that a person still reads."""
    for error in errors[:_SHOWN]:
        complain(error)
    if len(errors) > _SHOWN:
        warn(f"{len(errors) - _SHOWN} more parts could not be read; --format json lists them all")


def wants_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal whose user did not ask for plain text (NO_COLOR)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
