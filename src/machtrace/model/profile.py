"""What sampling yields: which stacks a process's threads had, when, and how often."""

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
from machtrace.model.text import counted, printable

OUTERMOST = -1
"""In :attr:`StackTable.callers`: that nobody called."""


_FUNCTIONS_SHOWN = 20
"""Functions in a profile's text."""


class MissingFrames(Enum):
    """What stands in a stack in the place of frames that are not there."""

    LEFT_OUT = "frames left out"
    """In the middle of a stack that is deeper than was to be kept."""
    UNKNOWN_CALLERS = "unknown callers"
    """At the outer end of a stack whose walk ended before its root."""


ProfileFrame: TypeAlias = Frame | MissingFrames


@dataclass(frozen=True, slots=True, eq=False)
class StackTable:
    """Distinct stacks, as a tree: a row is a frame together with all that called it.

    A stack is named by the row of its innermost frame; stacks share the rows of their outer ends.
    """

    callers: array[int]
    """Of each row its caller's row, which is lower than its own; or :data:`OUTERMOST`."""
    frames: array[int]
    """Of each row its frame: an index of :attr:`Profile.frames`."""

    def __len__(self) -> int:
        return len(self.callers)

    def __repr__(self) -> str:
        return f"<StackTable: {counted(len(self), 'row')}>"

    def frames_of(self, row: int) -> Iterator[int]:
        """The frames of the stack at ``row``, innermost first."""
        while row != OUTERMOST:
            yield self.frames[row]
            row = self.callers[row]


@dataclass(frozen=True, slots=True, eq=False)
class SampleTable:
    """Which thread had which stack when; rows are in the order of time."""

    times_ns: array[int]
    """Nanoseconds since sampling began."""
    threads: array[int]
    """An index of :attr:`Profile.threads`."""
    stacks: array[int]
    """A row of :attr:`Profile.stacks`."""
    weights: array[int]
    """How many samples the row stands for."""

    def __len__(self) -> int:
        return len(self.times_ns)

    def __repr__(self) -> str:
        return f"<SampleTable: {counted(len(self), 'row')}>"


class SamplingEnd(Enum):
    """Why sampling ended."""

    DURATION = "duration"
    """The time that was asked for had passed."""
    INTERRUPTED = "interrupted"
    """The user ended it."""
    PROCESS_ENDED = "process-ended"
    THREADS_ENDED = "threads-ended"
    """All threads that were asked for have ended."""
    TARGET_LOST = "target-lost"
    """The process could be looked at no more; :attr:`Profile.problems` says why."""
    FULL = "full"
    """There was no room for more samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRun:
    """How a process was sampled."""

    started_at_ns: int
    """Nanoseconds since 1970, in UTC."""
    duration_ns: int
    """From the first tick to the end of the last interval; at least 1."""
    interval_ns: int
    """Between ticks, as it was asked for; at least 1."""
    ticks: int
    """How often all threads were copied."""
    lost: int
    """How often that should have been done, and was not, since the copy before took too long."""
    end: SamplingEnd

    @property
    def rate(self) -> float:
        """Ticks a second, as they were achieved."""
        return self.ticks * 1e9 / self.duration_ns

    def __str__(self) -> str:
        lost = f", {self.lost:,} lost" if self.lost else ""
        return f"{counted(self.ticks, 'tick')} in {self.duration_ns / 1e9:.1f} s{lost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledThread:
    """A thread that was seen at least once."""

    info: ThreadInfo
    """As it was when it was last seen."""
    samples: int
    """In how many ticks it was copied."""
    stopped_ns: int | None
    """For how long all copies of it kept it from running; None where nothing tells."""
    longest_stop_ns: int | None
    """The longest of these stops."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """The samples of one process."""

    process: ProcessInfo
    images: tuple[BinaryImage, ...]
    """All that were loaded at any time, by load address; some may have followed one another."""
    threads: tuple[SampledThread, ...]
    """In the order in which they were first seen."""
    frames: tuple[ProfileFrame, ...]
    """Each once."""
    stacks: StackTable
    samples: SampleTable
    run: SamplingRun
    problems: tuple[Problem, ...] = ()
    """What is missing, and why; what happened in many ticks is there once."""

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
        """Which part of its time a thread was kept from running, from 0 to 1, on average.

        None where no target tells how long it stops threads.
        """
        known = [thread for thread in self.threads if thread.stopped_ns is not None]
        return stopped_share(
            sum(thread.stopped_ns or 0 for thread in known),
            copies=sum(thread.samples for thread in known),
            rate=self.run.rate,
        )


def stopped_share(stopped_ns: int, *, copies: int, rate: float) -> float | None:
    """Which part of its time a thread was kept from running, from 0 to 1; None without copies.

    Args:
        stopped_ns: for how long all ``copies`` together stopped the thread that they are of.
        copies: of one thread or of several.
        rate: copies of one thread a second.
    """
    return min(1.0, stopped_ns / copies * rate / 1e9) if copies else None
