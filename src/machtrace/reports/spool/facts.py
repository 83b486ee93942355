"""The facts of a spool besides stacks: in the details of its report, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from machtrace.frozen import dataclass
from machtrace.model.report import Report
from machtrace.model.text import counted
from machtrace.reports.stacks.captures import stored

FACTS = "spool"
"""The detail of a report."""


class RuleState(Enum):
    """The outcome of watching a function."""

    NOT_IMPORTED = "not imported"
    WATCHED = "watched"
    NOT_DEFINED = "not defined"
    TOO_MANY = "too many functions"
    INHERITED = "inherited"
    """Watched: the superclass's method, for all classes that inherit it."""
    SHARED = "shared"
    """Watched: another method of the class has the same implementation."""
    REFUSED = "refused"
    """It cannot be hooked."""
    UNKNOWN = "unknown"

    @property
    def is_watched(self) -> bool:
        """Whether calls are recorded."""
        return self in (RuleState.WATCHED, RuleState.INHERITED, RuleState.SHARED)


STATES = tuple(RuleState)[:-1]
"""By the number that the spool has."""


CONSENT = ("not stated", "absent", "given", "withdrawn")
"""The user's consent, by the number that the spool has."""


class StateCalls(NamedTuple):
    """Calls that were made in one state of the program."""

    consent: str
    """One of :data:`CONSENT`."""
    is_background: bool
    calls: int

    @property
    def text(self) -> str:
        """The state and the calls."""
        where = " in the background" if self.is_background else ""
        return f"{self.consent}{where} {self.calls:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """A watched function."""

    number: int
    symbol: str
    state: RuleState
    slots: int
    """Import slots when it was bound."""
    counts_only: bool
    is_at_entry: bool
    """Whether its first instructions are replaced, and no import slot."""
    other: str
    """The method that is the watched one, too, if inherited or shared; why, if refused."""
    calls: int
    """All, with those whose stack or time is unknown."""
    stacks: int
    """Distinct ones."""
    timed: int
    """Calls whose time and thread are known."""
    has_budget: bool = False
    """Whether each call site has a budget of stacks."""
    untaken: int = 0
    """Calls without a stack, since the budget of their site was used up."""
    states: tuple[StateCalls, ...] = ()
    """Calls by state; none if the program stated no state."""

    @property
    def text(self) -> str:
        """The state in words."""
        join = ": " if self.state is RuleState.REFUSED else " with "
        other = f"{join}{self.other}" if self.other else ""
        where = f", {counted(self.slots, 'import slot')}" if self.slots else ""
        if self.is_at_entry:
            where = " at its first instruction" if self.state.is_watched else ""
        if self.counts_only and self.state.is_watched:
            where += ", stacks are not taken"
        elif self.has_budget or self.untaken:
            where += f", stack taken {self.calls - self.untaken:,} of {self.calls:,}"
        return f"{self.state.value}{other}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolFacts:
    """The facts of a spool."""

    run: str
    """Digits that no other spool has."""
    is_stopped: bool
    rules: tuple[RuleFacts, ...]
    """The most called first."""
    log_full: int
    """This and the following: see :class:`~machtrace.reports.spool.records.Losses`."""
    stacks_full: int
    stacks_cut: int
    events_counted: int
    without_stack: int
    ignored: int
    overwritten: int
    """Events whose time and thread were overwritten."""
    without_frame_pointer: int
    """Calls, of those with a time, whose outer frames are missing for that reason."""
    incidents: tuple[str, ...]
    """A line for each."""
    unknown_records: int

    def lines(self) -> Iterator[str]:
        """Yield what is incomplete, one line each."""
        if not self.is_stopped:
            yield (
                "the agent was not stopped: the process was killed, or was running when the file"
                " was copied; what it recorded last, of up to 0.2 s, may be missing"
            )
        for count, text in (
            (self.without_stack, "calls without a known stack"),
            (self.stacks_full, "stacks without inner frames, since the tree was full"),
            (
                self.without_frame_pointer,
                "calls without outer frames, since a function without frame pointers called",
            ),
            (self.stacks_cut, "stacks without outer frames, since they were too deep"),
            (self.events_counted, "calls without time and thread, since they were too fast"),
            (self.overwritten, "events whose time and thread were overwritten by later ones"),
            (self.log_full, "records and stacks of calls that had no room in the log"),
            (self.unknown_records, "records of kinds that this version does not know"),
        ):
            if count:
                yield f"{text}: {count:,}"


def spool_facts(report: Report) -> SpoolFacts | None:
    """Return the facts of a spool's report; None if it is of another kind."""
    return stored(report.details, FACTS, SpoolFacts)
