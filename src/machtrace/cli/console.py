"""What all commands say the same way: errors and warnings."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from machtrace.errors import MachtraceError

_SHOWN = 10


def complain(error: MachtraceError) -> None:
    """One line on stderr: what happened, where, and what to do."""
    line = f"{error}; {error.remedy}" if error.remedy else str(error)
    sys.stderr.write(f"machtrace: {' '.join(line.split())}\n")


def complain_of_all(errors: Sequence[MachtraceError]) -> None:
    """A line each, up to a number that a person still reads."""
    for error in errors[:_SHOWN]:
        complain(error)
    if len(errors) > _SHOWN:
        sys.stderr.write(
            f"machtrace: {len(errors) - _SHOWN} more parts could not be read; "
            "--format json lists them all\n"
        )


def wants_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal whose user did not ask for plain text (NO_COLOR)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
