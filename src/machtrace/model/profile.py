"""Samples of a process: the stacks of its threads over time."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import TypeAlias

from machtrace.frozen import dataclass
from machtrace.model.image import BinaryImage
from machtrace.model.snapshot import Problem, ProcessInfo, ThreadInfo
from machtrace.model.symbol import Frame
from machtrace.model.text import Document, counted, printable

OUTERMOST = -1
"""The caller of an outermost frame in :attr:`StackTable.callers`."""


_FUNCTIONS_SHOWN = 20
"""Functions in a profile's text."""


class MissingFrames(Enum):
    """Placeholders for frames that are missing in a stack."""

    LEFT_OUT = "frames left out"
    """In the middle of a stack deeper than the limit."""
    UNKNOWN_CALLERS = "unknown callers"
    """At the outer end of an incomplete stack."""


ProfileFrame: TypeAlias = Frame | MissingFrames


@dataclass(frozen=True, slots=True, eq=False)
class StackTable:
    """Distinct stacks as a tree: a row is a frame with all its callers.

    A stack is identified by the row of its innermost frame; stacks share rows of outer frames.
    """

    callers: array[int]
    """Each row's caller, a lower row; or :data:`OUTERMOST`."""
    frames: array[int]
    """Each row's frame, an index of :attr:`Profile.frames`."""

    def __len__(self) -> int:
        return len(self.callers)

    def __repr__(self) -> str:
        return f"<StackTable: {counted(len(self), 'row')}>"

    def frames_of(self, row: int) -> Iterator[int]:
        """Yield the frames of the stack at ``row``, innermost first."""
        while row != OUTERMOST:
            yield self.frames[row]
            row = self.callers[row]


@dataclass(frozen=True, slots=True, eq=False)
class SampleTable:
    """Samples in the order of time."""

    times_ns: array[int]
    """Nanoseconds since sampling began."""
    threads: array[int]
    """An index of :attr:`Profile.threads`."""
    stacks: array[int]
    """A row of :attr:`Profile.stacks`."""
    weights: array[int]
    """The number of samples that the row represents."""

    def __len__(self) -> int:
        return len(self.times_ns)

    def __repr__(self) -> str:
        return f"<SampleTable: {counted(len(self), 'row')}>"


class SamplingEnd(Enum):
    """Why sampling ended."""

    DURATION = "duration"
    """The requested time had passed."""
    INTERRUPTED = "interrupted"
    """The user interrupted it."""
    PROCESS_ENDED = "process-ended"
    THREADS_ENDED = "threads-ended"
    """All requested threads exited."""
    TARGET_LOST = "target-lost"
    """The process became inaccessible; :attr:`Profile.problems` has the reason."""
    FULL = "full"
    """The limit of samples was reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRun:
    """How a process was sampled."""

    started_at_ns: int
    """Nanoseconds since 1970, in UTC."""
    duration_ns: int
    """The time from the first tick to the end of the last interval; at least 1."""
    interval_ns: int
    """The requested time between ticks; at least 1."""
    ticks: int
    """The number of captures of all threads."""
    lost: int
    """The number of captures skipped because the previous one took too long."""
    end: SamplingEnd

    @property
    def rate(self) -> float:
        """The actual ticks per second."""
        return self.ticks * 1e9 / self.duration_ns

    def __str__(self) -> str:
        lost = f", {self.lost:,} lost" if self.lost else ""
        return f"{counted(self.ticks, 'tick')} in {self.duration_ns / 1e9:.1f} s{lost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledThread:
    """A thread that was captured at least once."""

    info: ThreadInfo
    """Its state in the last capture."""
    samples: int
    """The number of ticks in which it was captured."""
    stopped_ns: int | None
    """The total time it was stopped for captures; None if unknown."""
    longest_stop_ns: int | None
    """The longest stop."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile(Document):
    """The samples of one process."""

    process: ProcessInfo
    images: tuple[BinaryImage, ...]
    """All images loaded at any time, by load address; they may overlap."""
    threads: tuple[SampledThread, ...]
    """The threads, in the order of their first capture."""
    frames: tuple[ProfileFrame, ...]
    """Distinct frames."""
    stacks: StackTable
    samples: SampleTable
    run: SamplingRun
    problems: tuple[Problem, ...] = ()
    """Parts that are missing, and why; a problem of many ticks is listed once."""

    def __str__(self) -> str:
        """Return the process, its threads, and the functions that were innermost most often."""
        lines = [f"{self.process}  {self.run}", ""]
        lines += [
            f"{thread.info.heading()}  {counted(thread.samples, 'sample')}"
            for thread in self.threads
        ]
        innermost = self._innermost_functions()
        if total := innermost.total():
            lines += ["", "Samples by innermost function:"]
        for (image, name), count in innermost.most_common(_FUNCTIONS_SHOWN):
            lines.append(f"{count:8,d}  {count / total:6.1%}  {image}  {name}")
        if len(innermost) > _FUNCTIONS_SHOWN:
            lines.append(
                f"{'…':>8s}  {counted(len(innermost) - _FUNCTIONS_SHOWN, 'more function')}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        threads = counted(len(self.threads), "thread")
        return f"<Profile of {str(self.process).replace('  ', ', ')}: {threads}, {self.run}>"

    def _innermost_functions(self) -> Counter[tuple[str, str]]:
        """Return the samples of each (image, function)."""
        frames: Counter[int] = Counter()
        for stack, weight in zip(self.samples.stacks, self.samples.weights, strict=True):
            if stack != OUTERMOST:
                frames[self.stacks.frames[stack]] += weight
        functions: Counter[tuple[str, str]] = Counter()
        for index, count in frames.items():
            frame = self.frames[index]
            if isinstance(frame, MissingFrames):
                functions["", frame.value] += count
            else:
                row = frame.text.rows[-1]
                name = row.name if frame.symbol is None else printable(frame.symbol.name)
                functions[row.image, name] += count
        return functions

    @property
    def stopped_share(self) -> float | None:
        """The average share of its time that a thread was stopped, from 0 to 1; None if unknown."""
        known = [thread for thread in self.threads if thread.stopped_ns is not None]
        return stopped_share(
            sum(thread.stopped_ns or 0 for thread in known),
            copies=sum(thread.samples for thread in known),
            rate=self.run.rate,
        )


def stopped_share(stopped_ns: int, *, copies: int, rate: float) -> float | None:
    """Return the share of its time that a thread was stopped, from 0 to 1; None without copies.

    Args:
        stopped_ns: the total time of all stops.
        copies: the number of stops, of one thread or several.
        rate: stops of one thread per second.
    """
    return min(1.0, stopped_ns / copies * rate / 1e9) if copies else None
