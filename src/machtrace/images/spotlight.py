"""Asking a Mac's Spotlight for the dSYM of a UUID.

Spotlight's importer for dSYM bundles and Xcode archives stores the UUIDs of all slices under
``com_apple_xcode_dsym_uuids`` (LLDB's *Symbols on macOS*). It finds what is in indexed places.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

_PATIENCE = 10.0
"""Seconds; Spotlight answers in some tenths of one, or is busy."""
_MOST_ANSWERS = 64


def run_mdfind(query: str) -> bytes | None:
    """What ``mdfind`` prints for ``query``; None where there is no Spotlight, or no answer."""
    if sys.platform != "darwin":
        return None
    import subprocess
    from shutil import which

    program = which("mdfind")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the query is made of a UUID
            [program, "-0", query], capture_output=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


@dataclass(frozen=True, slots=True)
class Spotlight:
    """The index of files that a Mac keeps."""

    run: Callable[[str], bytes | None] = run_mdfind
    """Gives what ``mdfind -0`` prints for a query."""

    def bundles(self, uuid: UUID) -> tuple[str, ...] | None:
        """Paths of dSYM bundles and Xcode archives that have ``uuid``; None: it cannot be asked."""
        printed = self.run(spotlight_query(uuid))
        return None if printed is None else paths_printed(printed)


def spotlight_query(uuid: UUID) -> str:
    """What to ask ``mdfind`` for."""
    return f"com_apple_xcode_dsym_uuids == {str(uuid).upper()}"


def paths_printed(printed: bytes) -> tuple[str, ...]:
    """The absolute paths that ``mdfind -0`` printed, each with a NUL behind it."""
    paths = (path.decode("utf-8", "surrogateescape") for path in printed.split(b"\0"))
    return tuple(path for path in paths if path.startswith("/"))[:_MOST_ANSWERS]
