"""Images as reports list them."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from machtrace.model.address import Avma
from machtrace.model.image import BuildId
from machtrace.model.json_value import Details


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedImage:
    """An image that a report lists, or only mentions."""

    uuid: UUID | BuildId | None = None
    """What identifies its contents; None where it has nothing, or only zeros."""
    name: str = ""
    """Empty where the report has none."""
    path: str = ""
    """Where it was on the machine of the report; empty where that is not known."""
    arch: str | None = None
    """As the report has it: ``arm64e``."""
    load_address: Avma | None = None
    """Of its header."""
    size: int | None = None
    """In bytes, of its code (``__TEXT``)."""
    version: str | None = None
    """``CFBundleShortVersionString``, else what stands in its place."""
    details: Details = field(default_factory=dict)

    def holds(self, address: int) -> bool:
        """Whether ``address`` (Avma) is in it, as far as the report says where it ends."""
        if self.load_address is None or self.size is None:
            return False
        return self.load_address <= address < self.load_address + self.size
