"""Samples of a process: the stacks of its threads over time."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from enum import Enum
from itertools import compress
from typing import TypeAlias

from machtrace.frozen import dataclass
from machtrace.model.image import BinaryImage
from machtrace.model.snapshot import Problem, ProcessInfo, ThreadInfo, ThreadState
from machtrace.model.symbol import Frame
from machtrace.model.text import Document, counted, printable

OUTERMOST = -1
"""The caller of an outermost frame in :attr:`StackTable.callers`."""


UNKNOWN = -1
"""An unknown value of :attr:`SampleTable.states` and :attr:`SampleTable.cpu_ns`."""

STATES = tuple(ThreadState)
"""The states by their number in :attr:`SampleTable.states`."""

RUNNING = STATES.index(ThreadState.RUNNING)

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
    states: array[int] = field(default_factory=lambda: array("b"))
    """An index of :data:`STATES`, or :data:`UNKNOWN`; by default all are unknown."""
    cpu_ns: array[int] = field(default_factory=lambda: array("q"))
    """The processor time that the thread used since its previous sample, or :data:`UNKNOWN`."""

    def __post_init__(self) -> None:
        for column in (self.states, self.cpu_ns):
            column.extend([UNKNOWN] * (len(self) - len(column)))

    def __len__(self) -> int:
        return len(self.times_ns)

    def append(
        self,
        time_ns: int,
        thread: int,
        stack: int,
        weight: int,
        state: int = UNKNOWN,
        cpu_ns: int = UNKNOWN,
    ) -> None:
        """Add a row while the table is built."""
        self.times_ns.append(time_ns)
        self.threads.append(thread)
        self.stacks.append(stack)
        self.weights.append(weight)
        self.states.append(state)
        self.cpu_ns.append(cpu_ns)

    @property
    def has_states(self) -> bool:
        """Whether the state of any sample is known."""
        return any(state != UNKNOWN for state in self.states)

    @property
    def has_cpu(self) -> bool:
        """Whether the processor time of any sample is known."""
        return any(cpu_ns != UNKNOWN for cpu_ns in self.cpu_ns)

    def selected(self, wanted: Sequence[bool]) -> SampleTable:
        """Return the rows for which ``wanted`` is true."""
        columns = self.times_ns, self.threads, self.stacks, self.weights, self.states, self.cpu_ns
        return SampleTable(
            *(array(column.typecode, compress(column, wanted)) for column in columns)
        )

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
    running: int | None = None
    """The number of samples in which it ran or waited for a processor; None if unknown."""
    cpu_ns: int | None = None
    """The processor time that it used from its first sample to its last, or from its start if that
    was later; None if unknown."""
    left_out: int = 0
    """Idle samples that the profile does not have; :attr:`samples` does not count them."""
    merged: int | None = None
    """The number of threads that this one stands for; None if it is a single thread."""

    @property
    def label(self) -> str:
        """The thread's name and id; of merged threads their name."""
        if self.merged is None:
            return self.info.label
        return printable(self.info.name or "All threads")

    @property
    def is_all(self) -> bool:
        """Whether it stands for all threads of the profile."""
        return self.merged is not None and self.info.name is None

    @property
    def activity(self) -> str:
        """Its running samples and processor time: ``3 running, 0.041 s CPU``; empty if unknown."""
        return activity_text(
            merged=self.merged, running=self.running, left_out=self.left_out, cpu_ns=self.cpu_ns
        )


def activity_text(
    *, merged: int | None, running: int | None, left_out: int | None, cpu_ns: int | None
) -> str:
    """Return :attr:`SampledThread.activity` of a thread with these values."""
    known = [] if merged is None else [counted(merged, "thread")]
    if running is not None:
        known.append(f"{running:,} running")
    if left_out:
        known.append(f"{left_out:,} idle left out")
    if cpu_ns is not None:
        known.append(f"{cpu_ns / 1e9:.3f} s CPU")
    return ", ".join(known)


def with_activity(
    threads: Sequence[SampledThread], samples: SampleTable
) -> tuple[SampledThread, ...]:
    """Return ``threads`` with the running samples and the processor time of ``samples``."""
    running: list[int | None] = [None] * len(threads)
    cpu: list[int | None] = [None] * len(threads)
    columns = samples.threads, samples.states, samples.weights, samples.cpu_ns
    for thread, state, weight, cpu_ns in zip(*columns, strict=True):
        if state != UNKNOWN:
            running[thread] = (running[thread] or 0) + weight * (state == RUNNING)
        if cpu_ns != UNKNOWN:
            cpu[thread] = (cpu[thread] or 0) + cpu_ns
    return tuple(
        replace(thread, running=running[number], cpu_ns=cpu[number])
        for number, thread in enumerate(threads)
    )


def _heading(thread: SampledThread) -> str:
    return thread.info.heading() if thread.merged is None else thread.label


def _merged_thread(threads: Sequence[SampledThread], name: str | None) -> SampledThread:
    """Return one thread with the sums of ``threads``."""
    first = threads[0].info

    def total(values: Iterable[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    longest = (thread.longest_stop_ns for thread in threads)
    return SampledThread(
        info=replace(first, name=name, queue=None, is_main=False, crashed=False, cause=None),
        samples=sum(thread.samples for thread in threads),
        stopped_ns=total(thread.stopped_ns for thread in threads),
        longest_stop_ns=max((stop for stop in longest if stop is not None), default=None),
        running=total(thread.running for thread in threads),
        cpu_ns=total(thread.cpu_ns for thread in threads),
        left_out=sum(thread.left_out for thread in threads),
        merged=sum(thread.merged or 1 for thread in threads),
    )


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
            f"{_heading(thread)}  {counted(thread.samples, 'sample')}"
            + (f", {thread.activity}" if thread.activity else "")
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

    def without_idle(self) -> Profile:
        """Return the profile without the samples of waiting and stopped threads.

        Samples of an unknown state stay. Threads without any other sample are left out.
        """
        samples = self.samples
        wanted = [state in (RUNNING, UNKNOWN) for state in samples.states]
        left_out = [0] * len(self.threads)
        for number, weight, is_wanted in zip(samples.threads, samples.weights, wanted, strict=True):
            left_out[number] += 0 if is_wanted else weight
        counts = [
            max(0, thread.samples - count)
            for thread, count in zip(self.threads, left_out, strict=True)
        ]
        numbers: dict[int, int] = {}
        threads: list[SampledThread] = []
        for number, (thread, count) in enumerate(zip(self.threads, counts, strict=True)):
            if count:
                numbers[number] = len(threads)
                threads.append(
                    replace(thread, samples=count, left_out=thread.left_out + left_out[number])
                )
        left = samples.selected(
            [
                is_wanted and thread in numbers
                for thread, is_wanted in zip(samples.threads, wanted, strict=True)
            ]
        )
        renumbered = array("i", (numbers[thread] for thread in left.threads))
        return replace(self, threads=tuple(threads), samples=replace(left, threads=renumbered))

    def with_merged_threads(self, *, by_name: bool = True) -> Profile:
        """Return the profile with one thread for all of a name, or for all threads.

        Without a name, the name of the queue counts.
        """
        groups: dict[str | None, list[int]] = {}
        for number, thread in enumerate(self.threads):
            info = thread.info
            name = info.name or info.queue or ("main" if info.is_main else "unnamed")
            groups.setdefault(name if by_name else None, []).append(number)
        numbers = [0] * len(self.threads)
        for group, members in enumerate(groups.values()):
            for number in members:
                numbers[number] = group
        renumbered = array("i", (numbers[thread] for thread in self.samples.threads))
        return replace(
            self,
            threads=tuple(
                _merged_thread([self.threads[number] for number in members], name)
                for name, members in groups.items()
            ),
            samples=replace(self.samples, threads=renumbered),
        )

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
    def named_images(self) -> tuple[BinaryImage, ...]:
        """:attr:`images`, and then those that only frames name: their extent is unknown."""
        of_frames = (frame.image for frame in self.frames if not isinstance(frame, MissingFrames))
        named = (image for image in of_frames if image is not None and image.path)
        return tuple(dict.fromkeys((*self.images, *named)))

    @property
    def stopped_share(self) -> float | None:
        """The average share of its time that a thread was stopped, from 0 to 1; None if unknown."""
        known = [thread for thread in self.threads if thread.stopped_ns is not None]
        return stopped_share(
            sum(thread.stopped_ns or 0 for thread in known),
            copies=sum(thread.samples + thread.left_out for thread in known),
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
