"""Taking values out of the objects of frames, threads and images, of which there are many.

Each takes a value that is what it should be, and leaves any other where it is, so that what is
written of an object is the object again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

from machtrace.model.image import BuildId
from machtrace.reports.identifiers import build_id

WORD = 1 << 64
_UUID_DIGITS = 32


def take_text(rest: dict[str, Any], key: str) -> str | None:
    """A string that is not empty."""
    value = rest.get(key)
    if isinstance(value, str) and value:
        del rest[key]
        return value
    return None


def take_word(rest: dict[str, Any], key: str) -> int | None:
    """A number of 64 bits."""
    value = rest.get(key)
    if type(value) is int and 0 <= value < WORD:
        del rest[key]
        return value
    return None


def take_uuid(rest: dict[str, Any], key: str) -> UUID | None:
    """A UUID, which stays too where it is not spelt as Python spells it; none of zeros."""
    value = rest.get(key)
    uuid, is_usual = _uuid(value) if isinstance(value, str) else (None, False)
    if is_usual:
        del rest[key]
    return uuid


def take_build_id(rest: dict[str, Any], key: str) -> BuildId | None:
    """A build-id, spelt as it is written."""
    value = rest.get(key)
    found = build_id(value) if isinstance(value, str) else None
    if found is not None:
        del rest[key]
    return found


@lru_cache(maxsize=1 << 14)
def _uuid(text: str) -> tuple[UUID | None, bool]:
    digits = text.replace("-", "")
    if len(digits) != _UUID_DIGITS:
        return None, False
    try:
        uuid = UUID(hex=digits)
    except ValueError:
        return None, False
    return (uuid, str(uuid) == text) if uuid.int else (None, False)
