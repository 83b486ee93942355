"""Incidents: what a watcher saw go wrong, with its evidence and the stacks of that time.

Times are nanoseconds of ``CLOCK_BOOTTIME``, which counts system sleep; durations leave the sleep
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.capture import Capture
from machtrace.model.symbol import CallStack
from machtrace.model.text import PLAIN, Document, Style, printable

Evidence: TypeAlias = Mapping[str, int | float | str | bool | None]
"""Differences between polls that prove a verdict: ``voluntary_switches``, ``run_ns`` …"""


_MAX_COUNT = 1 << 62
"""Limit of times and counts, which are differences of 64-bit numbers."""
_YEAR_10000 = 253_402_300_800 * 1_000_000_000


class IncidentKind(Enum):
    """The kind of an incident."""

    HANG = "hang"
    CPU = "cpu"
    MEMORY = "memory"
    DEADLOCK = "deadlock"
    CRASH = "crash"


class Verdict(Enum):
    """Why a thread did not return to its idle wait in time."""

    BLOCKED = "blocked"
    """It waited in one system call."""
    BUSY = "busy"
    """It ran."""
    STARVED = "starved"
    """It was ready to run and was given no processor: the host's contention, or a quota."""
    STOPPED = "stopped"
    """A signal, a tracer or a frozen control group stopped it."""
    UNINTERRUPTIBLE = "uninterruptible"
    """It waited inside the kernel, mostly for a device."""
    SLEPT = "slept"
    """The system slept, or this watcher was not scheduled."""
    IDLE = "idle"
    """Its wait turned out to be the loop's own: the report is withdrawn."""

    @property
    def is_hang(self) -> bool:
        """Whether it is the program's own doing."""
        return self in (Verdict.BLOCKED, Verdict.BUSY)


class VerdictCertainty(Enum):
    """How well a verdict is proven."""

    CERTAIN = "certain"
    """The evidence excludes every other verdict."""
    LIKELY = "likely"
    """The evidence permits another one, such as an idle wait between two polls."""


class WatchedThread(NamedTuple):
    """A thread of the watched process."""

    id: int
    name: str | None = None
    is_main: bool = False
    pid: int | None = None
    """Its process, if that is not the watched one."""

    def __str__(self) -> str:
        process = "" if self.pid is None else f" of process {self.pid}"
        return printable(f"{self.name or 'thread'} {self.id}{process}")


class TimeRange(NamedTuple):
    """A time that lies between two polls (``CLOCK_BOOTTIME``, in nanoseconds)."""

    earliest_ns: int
    latest_ns: int
    estimate_ns: int | None = None
    """The best estimate, if the thread's own times give a better one than the middle."""

    @property
    def best_ns(self) -> int:
        """The best estimate, else the middle."""
        middle = (self.earliest_ns + self.latest_ns) // 2
        return middle if self.estimate_ns is None else self.estimate_ns


class LockOwner(NamedTuple):
    """The thread or process that holds what another waits for."""

    pid: int | None
    thread: int | None
    recorded: bool
    """Whether the lock itself, or the kernel, states it; False where a lock keeps no owner."""

    def text(self, pid: int | None = None) -> str:
        """Return who holds it, in the process ``pid`` unless it is named; or that it has none."""
        names = []
        if self.thread is not None:
            names.append(f"thread {self.thread}")
        if self.pid is not None and (self.thread is None or self.pid != pid):
            names.append(f"process {self.pid}")
        if not names:
            return "owner unknown" if self.recorded else "owner not recorded"
        stated = "" if self.recorded else " (a guess: owner not recorded)"
        return f"held by {' of '.join(names)}{stated}"

    def __str__(self) -> str:
        return self.text()


GIL = "interpreter lock (GIL)"
""":attr:`WaitsFor.what` of CPython's."""


class WaitsFor(NamedTuple):
    """The object of a blocked thread's wait."""

    what: str
    """Such as ``mutex``, ``GIL``, ``socket to 10.0.0.1:5432``, ``process 4711``."""
    address: Avma | None = None
    """The address of the lock, if it is one."""
    owner: LockOwner | None = None
    """None if nothing of this kind has an owner, such as a socket."""

    def text(self, pid: int | None = None) -> str:
        """Return it with its owner, in the process ``pid`` unless it is named."""
        text = printable(self.what)
        if self.address is not None:
            text += f" {self.address:#x}"
        if self.owner is None:
            return text
        owner = self.owner.text(pid)
        if self.what.startswith("end of"):
            owner = owner.removeprefix("held by ")
            if owner in self.what:
                return text
        return f"{text}, {owner}"

    def __str__(self) -> str:
        return self.text()


class Culprit(NamedTuple):
    """The function where the time went: the last one that most samples share."""

    function: str
    image: str | None = None
    file: str | None = None
    line: int | None = None
    share: float = 1.0
    """The share of the time of all samples, from 0 to 1."""
    native: str | None = None
    """The native function beside it, if the culprit is a Python function."""


class TimedStack(NamedTuple):
    """A stack of the watched thread."""

    at_ns: int
    """``CLOCK_BOOTTIME``."""
    weight_ns: int
    """The time that it stands for: since the sample before it, or since the beginning."""
    stack: CallStack


class SeriesPoint(NamedTuple):
    """The process at one second."""

    at_ns: int
    """``CLOCK_BOOTTIME``."""
    cpu_share: float | None
    """A share of one processor: 2.0 are two busy threads."""
    resident: int | None
    """Bytes."""
    state: str | None
    """The watched thread's: ``idle``, a verdict's value, or None if unknown."""


class HostLoad(NamedTuple):
    """The load of the machine at the incident; None where the system does not state it."""

    processors: int
    load: float | None = None
    """The load average of one minute."""
    cpu_pressure: float | None = None
    """Percent of the last ten seconds in which a task waited for a processor (PSI, some)."""
    memory_pressure: float | None = None
    io_pressure: float | None = None


class WatcherCost(NamedTuple):
    """The cost of watching since the watcher started."""

    polls: int
    late_polls: int
    """Polls more than one interval late."""
    latest_ns: int
    """The longest delay of a poll."""
    cpu_ns: int
    """Processor time of the watcher."""
    stops: int
    """Times that a thread of the process was stopped."""
    stopped_ns: int
    """The longest of these."""


class AppliedRule(NamedTuple):
    """A rule against false reports that had a part in this incident."""

    name: str
    """Such as ``late-watcher``, ``launch-grace``, ``nested-loop``."""
    text: str
    """Its effect here, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFacts:
    """The facts of an incident, without its stacks."""

    id: str
    kind: IncidentKind
    certainty: VerdictCertainty
    began: TimeRange
    seen_ns: int
    """``CLOCK_BOOTTIME`` of the poll that exceeded the threshold."""
    seen_wall_ns: int | None = None
    """The same time in nanoseconds since 1970, UTC; None if unknown."""
    ended: TimeRange | None = None
    """None while it lasts."""
    pid: int | None = None
    verdict: Verdict | None = None
    """The reason of a hang; None for other kinds."""
    threshold: str = ""
    """The condition as it was given: ``250ms``, ``80%/60s``."""
    thread: WatchedThread | None = None
    """The thread that it is about; None if it is about the process."""
    duration_ns: int = 0
    """Its duration so far, without system sleep and other time that does not count."""
    evidence: Evidence = field(default_factory=lambda: MappingProxyType({}))
    culprit: Culprit | None = None
    waits_for: WaitsFor | None = None
    cycle: tuple[WatchedThread, ...] = ()
    """The threads of a deadlock, each of which waits for the next."""
    cycle_waits: tuple[WaitsFor, ...] = ()
    """The objects that the threads of :attr:`cycle` wait for, in their order."""
    host: HostLoad | None = None
    series: tuple[SeriesPoint, ...] = ()
    """The last minute."""
    cost: WatcherCost | None = None
    rules: tuple[AppliedRule, ...] = ()
    missing: tuple[str, ...] = ()
    """Parts that could not be captured or determined, and why; a sentence each."""

    def __post_init__(self) -> None:
        if not all(-_MAX_COUNT <= number < _MAX_COUNT for number in self._numbers()):
            msg = "a number of the incident is out of range"
            raise ValueError(msg)
        if self.seen_wall_ns is not None and not 0 <= self.seen_wall_ns < _YEAR_10000:
            msg = "the time of the incident is out of range"
            raise ValueError(msg)

    def _numbers(self) -> Iterator[float]:
        times = (*self.began, *(self.ended or ()))
        yield from (time for time in times if time is not None)
        yield from (self.seen_ns, self.duration_ns)
        yield from (value for value in self.evidence.values() if isinstance(value, int | float))
        yield from self.cost or ()
        for point in self.series:
            yield from (value for value in point if isinstance(value, int | float))

    def lines(self, style: Style = PLAIN) -> Iterator[str]:
        """Yield the facts as text, the verdict first."""
        from machtrace.model.incident.text import fact_lines

        yield from fact_lines(self, style)


STILL_OPEN = "watching ended before the incident did"
"""The missing fact of an incident that lasts when watching ends: its last report."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WatchIncident(WatchFacts, Document):
    """Something that went wrong in a watched process."""

    stacks: tuple[TimedStack, ...] = ()
    """Stacks of the thread, the oldest first."""
    representative: int | None = None
    """The index in :attr:`stacks` of the stack that stands for most of the time."""
    capture: Capture | None = None
    """All threads when the threshold was exceeded."""

    @property
    def stack(self) -> CallStack | None:
        """The representative stack, else the watched thread's in the capture, else None."""
        if self.stacks:
            return self.stacks[self.representative or 0].stack
        of_capture = () if self.capture is None else self.capture.stacks
        number = None if self.thread is None else self.thread.id
        return next((stack for stack in of_capture if stack.thread.id == number), None)

    def text_lines(self, style: Style = PLAIN) -> Iterator[str]:
        """Yield the main facts and the inner part of the representative stack."""
        from machtrace.model.incident.text import incident_lines

        yield from incident_lines(self, style)

    def __str__(self) -> str:
        return "\n".join(self.text_lines())

    def __repr__(self) -> str:
        reason = "" if self.verdict is None else f", {self.verdict.value}"
        return f"<WatchIncident {self.id}: {self.kind.value}{reason}, {self.certainty.value}>"
