"""Where a user said that files are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SearchPlaces:
    """Files and folders, in the order in which they are asked."""

    paths: tuple[Path, ...] = ()

    @classmethod
    def of(cls, search: str | Path | Sequence[str | Path] = ()) -> SearchPlaces:
        """From paths as a user gives them: one, or several."""
        places = (search,) if isinstance(search, str | Path) else search
        return cls(tuple(Path(path) for path in places))
