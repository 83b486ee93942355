"""Many runs of one image; see :mod:`tests.support.published`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from tests.support.published.callers import Callers, create_callers, place
from tests.support.published.comparison import Comparer, Verdict
from tests.support.published.entries import Entries
from tests.support.published.execution import LIMIT, Execution
from tests.support.published.files import Subject
from tests.support.published.functions import Functions
from tests.support.published.image import PublishedImage, load
from tests.support.published.machine import Machine, Values
from tests.support.published.results import Mismatch, Part, Result, Sample
from tests.support.published.true_calls import TrueCalls

RUNS_OF_FUNCTION = 8
"""Consecutive runs that begin at the same function; the first is walked with nothing cached."""
_FUNCTIONS_OF_STACK = 2
"""Consecutive functions that are called on the same stack."""
_NO_STACK = "left the stack"


@dataclass(frozen=True, slots=True)
class Finished:
    """One run."""

    number: int
    entry: int
    ended: str
    verdicts: tuple[tuple[int, Verdict], ...]
    """The numbers of the instructions at which it was compared, and the comparisons."""
    trace: tuple[int, ...]
    steps: int
    """Instructions at which it could be compared."""


class Harness:
    """Runs of one image, by number."""

    def __init__(self, image: PublishedImage, seed: int, entry: int | None = None) -> None:
        """``entry``: the stated address of the function that all runs begin at; None: random."""
        self.image = image
        self._entry = None if entry is None else entry + image.slide
        self.seed = seed
        self.functions = Functions(image)
        self.entries = Entries(image, self.functions)
        self.machine = Machine(image, self._key("memory"))
        self.execution = Execution(self.machine, self.functions, self.entries)
        self.comparer = Comparer(image)
        self.refused: Counter[str] = Counter()
        self._values = Values(image)
        self._callers: tuple[int, Callers] | None = None

    def _key(self, part: object) -> str:
        return f"{self.seed}/{self.image.name}/{part}"

    def callers_of(self, number: int) -> Callers:
        """Return the stack that a run begins on."""
        group = number // (RUNS_OF_FUNCTION * _FUNCTIONS_OF_STACK)
        if self._callers is None or self._callers[0] != group:
            random = Random(self._key(f"callers/{group}"))
            self._callers = (
                group,
                create_callers(self.machine, self.execution, self.entries, random),
            )
        return self._callers[1]

    def entry_of(self, number: int, refused: Counter[str] | None = None) -> int:
        """Return the function that a run begins at."""
        if self._entry is not None:
            return self._entry
        random = Random(self._key(f"function/{number // RUNS_OF_FUNCTION}"))
        counts = Counter() if refused is None else refused
        return self.entries.pick(random, counts)

    def run(self, number: int) -> Finished:
        """Execute and compare one run.

        It is compared at one or two random instructions. If it ended before them, it is executed
        again, and compared at a random one of those that it has.
        """
        callers = self.callers_of(number)
        is_first = number % RUNS_OF_FUNCTION == 0
        if is_first:
            self.comparer.reset()
        entry = self.entry_of(number, self.refused if is_first else None)
        chooser = Random(self._key(f"stops/{number}"))
        share = chooser.random()
        stops = frozenset({int(LIMIT * share * share), chooser.randrange(LIMIT)})
        verdicts = self._execute(number, callers, entry, stops)
        trace = tuple(self.execution.trace)
        bound = self.execution.steps
        while not verdicts and bound:  # it ended before, or its stack pointer left the stack
            bound = chooser.randrange(bound)
            verdicts = self._execute(number, callers, entry, frozenset({bound}))
        return Finished(
            number, entry, self.execution.ended, tuple(verdicts), trace, self.execution.steps
        )

    def _execute(
        self, number: int, callers: Callers, entry: int, stops: frozenset[int]
    ) -> list[tuple[int, Verdict]]:
        random = Random(self._key(number))
        machine, execution = self.machine, self.execution
        machine.restore()
        place(machine, callers, self._values, random)
        calls: TrueCalls = callers.calls.copy()
        verdicts: list[tuple[int, Verdict]] = []
        execution.run(entry, calls, random, stops=stops, visit=partial(self._compare, verdicts))
        return verdicts

    def _compare(self, verdicts: list[tuple[int, Verdict]]) -> None:
        verdict = self.comparer.compare(self.machine, self.execution)
        if verdict is not None:
            verdicts.append((len(self.execution.trace) - 1, verdict))


def run_image(
    contents: bytes | memoryview | Path,
    arch: Arch | None,
    seed: int,
    count: int,
    *,
    first: int = 0,
    name: str = "",
    samples: int = 0,
    advance: Callable[[int], object] | None = None,
) -> Result:
    """Execute and compare runs of one image.

    Args:
        contents: a Mach-O, thin or fat, or an ELF file.
        arch: the slice of a fat file; None: the first that can be emulated.
        seed: determines all runs, together with ``name``.
        count: the number of runs.
        first: the number of the first run.
        name: the file's name; by default that of the path.
        samples: the number of compared moments to return.
        advance: called with the number of runs that were finished since the last call.

    Raises:
        FormatError: the file is malformed, or has no code for an emulated architecture.
    """
    image = load(contents, arch, name)
    harness = Harness(image, seed)
    return run_many(harness, range(first, first + count), samples=samples, advance=advance)


def run_many(
    harness: Harness,
    numbers: range,
    *,
    samples: int = 0,
    advance: Callable[[int], object] | None = None,
) -> Result:
    """Execute and compare runs by number; see :func:`run_image`."""
    image = harness.image
    result = Result(image.name, image.arch.value, harness.seed)
    stride = max(1, len(numbers) // max(1, samples))
    started = time.process_time()
    for number in numbers:
        finished = harness.run(number)
        add(result, harness, finished)
        is_wanted = len(result.samples) < samples and (number - numbers.start) % stride == 0
        if is_wanted and finished.verdicts:
            result.samples.append(_sample(harness, finished))
        if advance is not None:
            advance(1)
    result.refused = harness.refused
    harness.refused = Counter()
    result.seconds = time.process_time() - started
    return result


def add(result: Result, harness: Harness, finished: Finished) -> None:
    """Count a run."""
    image = harness.image
    result.runs += 1
    result.instructions += len(finished.trace)
    result.ended[finished.ended] += 1
    if not finished.verdicts:
        result.dropped[_NO_STACK if finished.steps else finished.ended] += 1
        return
    result.compared += 1
    result.stacks += len(finished.verdicts)
    result.exact += all(verdict.is_exact for _, verdict in finished.verdicts)
    names = image.arch.registers.names
    for step, verdict in finished.verdicts:
        if not verdict.is_exact:
            result.wrong.append(mismatch_of(image, finished.number, step, verdict))
        for frame, register in verdict.wrong_registers:
            callee = image.label(verdict.truth[frame - 1])
            result.wrong_registers.append((finished.number, callee, names[register]))
        result.lost_registers.update(names[register] for register in verdict.lost_registers)


def mismatch_of(image: PublishedImage, number: int, step: int, verdict: Verdict) -> Mismatch:
    """Return a wrong walk with stated addresses."""

    def stated(address: Avma) -> int:
        return address - image.slide if image.holds_code(address) else address

    frame = len(verdict.truth) if verdict.frame is None else verdict.frame
    return Mismatch(
        run=number,
        step=step,
        function=image.label(verdict.truth[0]),
        caller=image.label(verdict.truth[max(0, frame - 1)]) if frame <= len(verdict.truth) else "",
        frame=frame,
        truth=tuple(map(stated, verdict.truth)),
        walk=tuple(map(stated, verdict.walk)),
        methods=tuple(FrameTrust(method).label for method in verdict.methods),
        stop=str(verdict.stop),
        claims=verdict.claims,
        disagreement=verdict.disagreement,
    )


def _sample(harness: Harness, finished: Finished) -> Sample:
    _, verdict = finished.verdicts[0]
    return Sample(
        run=finished.number,
        registers=verdict.registers,
        stack=verdict.stack,
        truth=verdict.truth,
        slide=harness.image.slide,
        is_exact=verdict.is_exact,
    )


# --- for processes of a pool ---


@dataclass(frozen=True, slots=True)
class Job:
    """Consecutive runs of one slice of a file."""

    subject: Subject
    part: Part
    samples: int = 0
    """Compared moments to return."""


def harness_of(subject: Subject, seed: int, entry: int | None) -> Harness:
    """Load the image of a subject.

    Raises:
        FormatError: it is malformed, or has no code for an emulated architecture.
    """
    image = load(subject.path, Arch(subject.architecture), subject.name)
    return Harness(image, seed, entry)


_LOADED: list[tuple[tuple[Subject, int, int | None], Harness]] = []
"""The harness of this process's last job."""


def run_job(job: Job) -> Result:
    """Execute a job, in a process that may have loaded the image for an earlier one."""
    part = job.part
    key = (job.subject, part.seed, part.entry)
    if not _LOADED or _LOADED[0][0] != key:
        _LOADED[:] = [(key, harness_of(*key))]
    numbers = range(part.first, part.first + part.count)
    return run_many(_LOADED[0][1], numbers, samples=job.samples)
