"""Incidents compared with the truth."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.support.hangs.incidents import Incident
from tests.support.hangs.truth import MS, Class, Event, is_act


@dataclass(frozen=True, slots=True)
class Match:
    """A hang and the first incident of it."""

    scenario: str
    event: Event
    incident: Incident

    @property
    def key(self) -> str:
        """The program and the action."""
        return _key_of(self.scenario, self.event)

    @property
    def latency(self) -> int:
        """From the beginning of the hang until it was seen, in nanoseconds."""
        return self.incident.seen - self.event.began

    @property
    def delivery(self) -> int:
        """From the beginning of the hang until its line arrived."""
        return self.incident.arrived - self.event.began

    @property
    def duration_error(self) -> int | None:
        """The reported duration minus the true one; None if no end was reported."""
        if self.incident.ended is None:
            return None
        reported = self.incident.ended - self.incident.began
        return reported - self.event.duration

    @property
    def is_culprit(self) -> bool:
        """Whether the function is the one of the scenario."""
        return _plain(self.incident.culprit) == self.event.culprit

    @property
    def is_inside(self) -> bool:
        """Whether it is the function of the scenario, or a library function that it called."""
        name = _plain(self.incident.culprit)
        return self.is_culprit or name in self.event.inside


def _key_of(scenario: str, event: Event) -> str:
    return f"{scenario.split(maxsplit=1)[0]} {event.action}"


def _plain(name: str | None) -> str:
    return (name or "").split("(")[0].rsplit(".", 1)[-1].strip()


@dataclass
class Score:
    """The results of some runs."""

    matches: list[Match] = field(default_factory=list)
    missed: list[tuple[str, Event]] = field(default_factory=list)
    quiet: Counter[str] = field(default_factory=Counter)
    """Events that are no hangs, by action."""
    hangs: Counter[str] = field(default_factory=Counter)
    """Hangs, by program and action."""
    false: list[tuple[str, Event | None, Incident]] = field(default_factory=list)
    """Incidents that report a hang where there was none."""
    named_as_loops: list[tuple[str, Event | None, Incident]] = field(default_factory=list)
    """Nested loops and rows of short tasks that were reported as such."""
    unscored: int = 0
    undecidable: int = 0
    """Rows of equal short tasks."""
    undecidable_reports: int = 0
    repeated: int = 0
    """Further incidents of the same hang."""
    other_verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Incidents that blame nobody, by action and verdict."""
    groups: dict[str, set[tuple[str | None, str | None]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    stated: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Verdicts that blame nobody, and rules, in incidents by action."""

    def add(self, scenario: str, events: Sequence[Event], incidents: Iterable[Incident]) -> None:
        """Compare one run."""
        by_event: dict[int | None, list[Incident]] = defaultdict(list)
        for incident in incidents:
            if incident.kind == "hang":
                by_event[_event_of(events, incident)].append(incident)
        for incident in by_event[None]:
            self._count(scenario, None, incident)
        for index, event in enumerate(events):
            self._compare(scenario, event, by_event[index])

    def _compare(self, scenario: str, event: Event, incidents: Sequence[Incident]) -> None:
        key = _key_of(scenario, event)
        reports = [incident for incident in incidents if incident.reports_hang]
        if event.kind is Class.HANG:
            self.hangs[key] += 1
            if reports:
                self.matches.append(Match(scenario, event, reports[0]))
                self.groups[key].add(reports[0].group)
                self.repeated += len(reports) - 1
            else:
                self.missed.append((scenario, event))
        elif event.kind is Class.QUIET:
            self.quiet[event.action] += 1
            for incident in reports:
                self._count(scenario, event, incident)
        elif event.kind is Class.UNDECIDABLE:
            self.undecidable += 1
            self.undecidable_reports += bool(reports)
        else:
            self.unscored += 1
        for incident in incidents:
            if not incident.reports_hang:
                self.other_verdicts[event.action, str(incident.verdict)] += 1
                self.stated[event.action, str(incident.verdict)] += 1
            self.stated.update((event.action, rule) for rule in incident.rules)

    def _count(self, scenario: str, event: Event | None, incident: Incident) -> None:
        if not incident.reports_hang:
            self.other_verdicts["idle", str(incident.verdict)] += 1
            return
        is_apart = incident.is_named_as_loop and event is not None
        (self.named_as_loops if is_apart else self.false).append((scenario, event, incident))

    @property
    def hang_count(self) -> int:
        """The number of hangs."""
        return self.hangs.total()

    @property
    def quiet_count(self) -> int:
        """The number of events that are no hangs."""
        return self.quiet.total()

    @property
    def false_events(self) -> int:
        """The number of events, and of idle times, with a false report."""
        return len({(scenario, _key(event, incident)) for scenario, event, incident in self.false})


def _key(event: Event | None, incident: Incident) -> object:
    return (event.step, event.action) if event else incident.id


def _event_of(events: Sequence[Event], incident: Incident) -> int | None:
    """Return the index of the event that an incident is about: the one it shares most time with.

    An incident that has not ended, or ended before it was seen, lasts until it was seen.
    """
    until = max(incident.ended or 0, incident.seen)
    best, most = None, 0
    for index, event in enumerate(events):
        shared = event.overlap(incident.began, until)
        # What the runner did lies over what the program did meanwhile.
        if shared > most or (shared == most > 0 and is_act(event)):
            best, most = index, shared
    return best


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that is not below the percentage of the values; NaN for none."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    index = -(-len(ordered) * percent // 100) - 1
    return ordered[max(0, int(index))]


def in_ms(ns: float) -> float:
    """Return milliseconds."""
    return ns / MS
