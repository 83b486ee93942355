"""The locations that a search for a file tried, to show users why nothing was found."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from machtrace.frozen import dataclass
from machtrace.model.symbol import FrameStatus


class Outcome(Enum):
    """The result of trying one location; the value is shown to users."""

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
    """One location, and the result of trying it."""

    location: str
    """A path, or the service that was queried."""
    outcome: Outcome
    detail: str = ""
    """Facts: the identifiers that it has, what is wrong with it."""

    def __str__(self) -> str:
        """Return the attempt as one line."""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.location}: {self.outcome.value}{detail}"


_STATUS = {
    Outcome.OTHER_IDENTIFIER: FrameStatus.MISMATCHED_FILE,
    Outcome.OTHER_CHECKSUM: FrameStatus.MISMATCHED_FILE,
    Outcome.MALFORMED: FrameStatus.MALFORMED_FILE,
}


@dataclass(slots=True)
class SearchRecord:
    """Everything that one search tried, in its order."""

    attempts: list[Attempt] = field(default_factory=list)

    def add(self, location: str, outcome: Outcome, detail: str = "") -> None:
        """Append one attempt."""
        self.attempts.append(Attempt(location, outcome, detail))

    @property
    def status(self) -> FrameStatus:
        """Why nothing was found: the first reason other than that no file exists."""
        for attempt in self.attempts:
            if attempt.outcome in _STATUS:
                return _STATUS[attempt.outcome]
        return FrameStatus.MISSING_FILE
