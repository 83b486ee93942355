"""What identifies an image's contents, from the digits that reports have for it."""

from __future__ import annotations

import re
from uuid import UUID

from machtrace.model.image import BuildId

BUILD_ID = re.compile(r"([0-9a-f]{2}){2,64}")
"""A build-id as it is written: small letters, no dashes."""
_UUID_BYTES = 16


def build_id(text: str) -> BuildId | None:
    """A build-id that is spelt as one is written; None of any other text."""
    return BuildId(bytes.fromhex(text)) if BUILD_ID.fullmatch(text) else None


def identifier(digits: str | None, *, is_macho: bool) -> UUID | BuildId | None:
    """What digits identify: Mach-O has a UUID; ELF has a build-id, which may be as long.

    Args:
        digits: an even number of them; None, others, or only zeros are none.
        is_macho: whether the report is of a system of Apple's.
    """
    try:
        data = bytes.fromhex(digits or "")
    except ValueError:
        return None
    if not any(data):
        return None
    return UUID(bytes=data) if is_macho and len(data) == _UUID_BYTES else BuildId(data)
