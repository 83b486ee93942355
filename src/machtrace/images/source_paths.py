"""Where source files are now: replacing the beginnings of paths that a compiler recorded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourcePaths:
    """Prefixes of recorded paths, and what to put in their places."""

    replacements: tuple[tuple[str, str], ...] = ()
    """(recorded folder, folder now); without a ``/`` at the end."""

    def now(self, path: str) -> str:
        """``path`` with the longest recorded folder that it is in replaced; else as it is."""
        best = ""
        there = path
        for recorded, current in self.replacements:
            if len(recorded) > len(best) and path.startswith(recorded):
                rest = path[len(recorded) :]
                if not rest or rest.startswith("/"):
                    best, there = recorded, current + rest
        return there


NOT_MOVED = SourcePaths()
"""Every path as it was recorded."""
