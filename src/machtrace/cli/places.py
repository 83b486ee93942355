"""The places that a user names to search in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from machtrace.errors import FileAccessError


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
