"""The words that name a target, as commands take them.

The places that a user names to search in.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from machtrace.errors import FileAccessError, TargetSpecError
from machtrace.targets.open import SELF


def _other_than_self(spec: str) -> str:
    """The spec, unless it names the command that reads it.

    Raises:
        TargetSpecError: it does: who says so means a program of theirs.
    """
    if spec == SELF:
        raise TargetSpecError(
            "self is this very command",
            remedy='give a process id, or call machtrace.backtraces("self") in the program',
        )
    return spec


Spec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="A process id, a core file, gdb://host:port, device://UDID/bundle-id,"
        " frida://local/PID, or emulated:demo.",
        callback=_other_than_self,
    ),
]

RunningSpec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="A process id, gdb://host:port, device://UDID/bundle-id, or frida://local/PID.",
        callback=_other_than_self,
    ),
]
"""Of what can be looked at again and again."""


def check_search_paths(places: Iterable[Path]) -> None:
    """See that all are there.

    Raises:
        FileAccessError: one is not.
    """
    for place in places:
        try:
            place.stat()
        except OSError as error:
            raise FileAccessError(str(place), error.strerror or "cannot be read") from error
