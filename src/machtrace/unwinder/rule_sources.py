"""Making the rule sources of an image, whatever state its tables are in."""

from __future__ import annotations

from collections.abc import Callable

from machtrace.errors import FormatError, MemoryReadError
from machtrace.unwinder.rules import RuleSource


def built(build: Callable[[], RuleSource | None]) -> RuleSource | None:
    """What ``build`` makes; None where its tables are malformed, or were not captured."""
    try:
        return build()
    except (FormatError, MemoryReadError):
        return None
