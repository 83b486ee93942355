"""What a search for a file looked at, so that a person can see why nothing was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from machtrace.model.symbol import FrameStatus


class Outcome(Enum):
    """What came of one place that was looked at; the value is how people are told."""

    FOUND = "found"
    NO_FILE = "no such file"
    NO_MATCH = "nothing in it has this identifier"
    OTHER_IDENTIFIER = "is another image's"
    OTHER_CHECKSUM = "its checksum is not the one that the binary states"
    NO_DWARF = "holds no debug information"
    MALFORMED = "is malformed"
    OTHER_FORMAT = "is of another format"
    UNREADABLE = "cannot be read"
    CUT_SHORT = "holds too much to be searched whole"
    NO_CODE = "holds no instructions"
    NOT_READ = "is not read"
    CHANGED = "was changed after it was linked"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One place, and what came of it."""

    place: str
    """A path, or what was asked, as a user would name it."""
    outcome: Outcome
    detail: str = ""
    """Facts: which identifiers are there, what is wrong with it."""

    def __str__(self) -> str:
        """As one line."""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.place}: {self.outcome.value}{detail}"


_STATUS = {
    Outcome.OTHER_IDENTIFIER: FrameStatus.MISMATCHED_FILE,
    Outcome.OTHER_CHECKSUM: FrameStatus.MISMATCHED_FILE,
    Outcome.MALFORMED: FrameStatus.MALFORMED_FILE,
}


@dataclass(slots=True)
class SearchRecord:
    """All that one search looked at, in its order."""

    looked_at: list[Attempt] = field(default_factory=list)

    def add(self, place: str, outcome: Outcome, detail: str = "") -> None:
        """Note one place."""
        self.looked_at.append(Attempt(place, outcome, detail))

    @property
    def status(self) -> FrameStatus:
        """Why nothing was found: the first thing that says more than that nothing was there."""
        for one in self.looked_at:
            if one.outcome in _STATUS:
                return _STATUS[one.outcome]
        return FrameStatus.MISSING_FILE
