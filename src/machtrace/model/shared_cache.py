"""Where a Darwin process has the cache that the system's images are in."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from machtrace.model.address import Avma


@dataclass(frozen=True, slots=True)
class SharedCache:
    """dyld's shared cache, as a process has it mapped."""

    base: Avma
    """Where its header is."""
    uuid: UUID | None
    """Of its contents, which differ with each build of the system; None where it is not told."""
