"""Making the rule sources of an image, whatever state its tables are in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from machtrace.errors import FormatError, MemoryReadError
from machtrace.unwinder.rules import RuleSource

_Source = TypeVar("_Source", bound=RuleSource)


def source_or_none(build: Callable[[], _Source | None]) -> _Source | None:
    """What ``build`` makes; None where its tables are malformed, or were not captured."""
    try:
        return build()
    except (FormatError, MemoryReadError):
        return None
