"""Runtimes' last words about uncaught exceptions, and the addresses in exceptions' words."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LAST_WORDS = re.compile(
    r"\*\*\* Terminating app due to uncaught exception (?:of class )?'(?P<name>[^'\n]{1,200})'"
    r"(?:, reason: '(?P<reason>.*)')?",
    re.DOTALL,
)


def last_words(texts: Iterable[str]) -> tuple[str, str | None] | None:
    """Return the exception's name and reason from the first text that has them."""
    for text in texts:
        match = _LAST_WORDS.search(text) if "uncaught exception" in text else None
        if match is not None:
            return match["name"], match["reason"]
    return None


_ADDRESS = re.compile(r"\bat (0x[0-9a-fA-F]{1,16})\b")


def accessed_address(subtype: str | None) -> int | None:
    """Return the address of ``KERN_INVALID_ADDRESS at 0x0000000000000010``."""
    match = _ADDRESS.search(subtype) if subtype is not None else None
    return None if match is None else int(match[1], 16)
