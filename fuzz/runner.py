"""Feeds a target, counts, and keeps what went wrong."""

from __future__ import annotations

import gc
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from resource import RLIMIT_AS, getrlimit, setrlimit
from traceback import extract_tb, format_exc

from fuzz.mutation import mutated
from fuzz.target import Target
from machtrace.errors import MachtraceError

SLOW_SECONDS = 0.1
"""Processor time; an input that takes more is a finding."""
ENDLESS_SECONDS = 20
"""Processor time after which an input is abandoned."""
MEMORY_LIMIT = 4 << 30
"""Bytes of address space of a run; a larger allocation is a MemoryError, which is a finding."""
_SLOWEST_KEPT = 5
_LOW_BITS = 1 << 40


class EndlessError(Exception):
    """An input took :data:`ENDLESS_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that does what none may do."""

    kind: str
    """The event and its location; findings of one kind are counted, and the first is stored."""
    data: bytes
    details: str


@dataclass(slots=True)
class Outcome:
    """The result of a run, or of a part of it."""

    inputs: int = 0
    refused: int = 0
    """Inputs that ended in a MachtraceError."""
    seconds: float = 0.0
    """Processor time in the target."""
    findings: dict[str, Finding] = field(default_factory=dict)
    """The first of each kind."""
    counts: dict[str, int] = field(default_factory=dict)
    """By kind of finding: how many."""
    slowest: list[tuple[float, bytes]] = field(default_factory=list)
    """Seconds and input, the slowest first."""

    def add(self, other: Outcome) -> None:
        """Count in what another part came to."""
        self.inputs += other.inputs
        self.refused += other.refused
        self.seconds += other.seconds
        for kind, finding in other.findings.items():
            self.findings.setdefault(kind, finding)
        for kind, count in other.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count
        ranked = sorted([*self.slowest, *other.slowest], key=lambda item: -item[0])
        self.slowest = ranked[:_SLOWEST_KEPT]

    @property
    def slowest_milliseconds(self) -> float:
        """The time of the slowest input."""
        return 1000 * self.slowest[0][0] if self.slowest else 0.0

    def found(self, finding: Finding) -> None:
        """Count a finding; keep it if it is the first of its kind."""
        self.findings.setdefault(finding.kind, finding)
        self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1


def inputs(target: Target, seed: int, numbers: Iterable[int]) -> Iterator[bytes]:
    """The inputs of these numbers; each depends on its number and ``seed`` alone."""
    seeds = tuple(target.seeds())
    for number in numbers:
        yield mutated(seeds, target.mutations, Random(seed * _LOW_BITS + number))  # noqa: S311


def try_all(
    target: Target,
    data: Iterable[bytes],
    progress: Callable[[Outcome], None] = lambda _: None,
    *,
    every: float = 0.5,
    slow: float = SLOW_SECONDS,
) -> Outcome:
    """Feed ``target``; pass new results to ``progress`` every ``every`` seconds.

    An input that takes more than ``slow`` seconds of processor time is a finding.
    """
    total, part = Outcome(), Outcome()
    clock = time.process_time
    last = time.monotonic()
    with _strictly():
        for given_input in data:
            start = clock()
            _try(target, given_input, part)
            taken = clock() - start
            part.inputs += 1
            part.seconds += taken
            if taken > slow:
                taken = min(taken, _again(target, given_input))
            if taken > slow:
                part.found(
                    Finding("slow", given_input, f"took {1000 * taken:.0f} ms of processor time")
                )
            if len(part.slowest) < _SLOWEST_KEPT or taken > part.slowest[-1][0]:
                part.slowest = sorted(
                    [*part.slowest, (taken, given_input)], key=lambda item: -item[0]
                )
                del part.slowest[_SLOWEST_KEPT:]
            if time.monotonic() - last > every:
                last = time.monotonic()
                progress(part)
                total.add(part)
                part = Outcome()
    progress(part)
    total.add(part)
    return total


def _again(target: Target, data: bytes) -> float:
    """How long an input takes that is tried again: other programs take the processor's caches."""
    start = time.process_time()
    _try(target, data, Outcome())
    return time.process_time() - start


def _try(target: Target, data: bytes, outcome: Outcome) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, ENDLESS_SECONDS)
    try:
        target.run(data)
    except MachtraceError:
        outcome.refused += 1
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (whatever it is, it is a finding)
        place = extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} in {Path(place.filename).name}:{place.name}"
        outcome.found(Finding(kind, data, format_exc()))


@contextmanager
def _strictly() -> Iterator[None]:
    """Warnings are errors, memory has an end, and so has the time of an input."""

    def give_up(*_: object) -> None:
        raise EndlessError

    before = signal.signal(signal.SIGVTALRM, give_up)
    limits = getrlimit(RLIMIT_AS)
    setrlimit(RLIMIT_AS, (MEMORY_LIMIT, limits[1]))
    gc.collect()
    gc.freeze()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        setrlimit(RLIMIT_AS, limits)
        gc.unfreeze()


def write_reproducers(outcome: Outcome, target: Target, directory: Path) -> list[Path]:
    """A file of each finding, with what happened beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, finding in outcome.findings.items():
        name = f"{target.name}-{sha256(finding.data).hexdigest()[:12]}"
        path = directory / f"{name}.bin"
        path.write_bytes(finding.data)
        note = f"{kind}, {outcome.counts[kind]} times\n\n{finding.details}"
        path.with_suffix(".txt").write_text(note, encoding="utf-8")
        written.append(path)
    return written
