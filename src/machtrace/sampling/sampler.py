"""Sampling: a snapshot of a process at each tick, for some time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from machtrace.cpython.runs import PythonRuns
from machtrace.errors import (
    MachtraceError,
    TargetError,
    TargetGoneError,
    TargetSpecError,
    ThreadGoneError,
)
from machtrace.frozen import dataclass
from machtrace.images.resolver import ImageResolver
from machtrace.model.options import WITHOUT_PYTHON, NameOptions, WalkOptions
from machtrace.model.profile import Profile, SamplingEnd, SamplingRun, stopped_share
from machtrace.model.snapshot import Problem, Snapshot, ThreadId
from machtrace.sampling.collection import SampleCollection
from machtrace.sampling.stacks import SampledStacks
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.targets.base import ActivityTarget, PausingTarget, PythonTarget, Target
from machtrace.unwinder.unwinder import Unwinder


class TickClock:
    """Ticks at whole multiples of an interval from the first one.

    A tick that is missed is lost, and never repeated later: two samples would be closer together
    than the interval.

    Args:
        interval_ns: nanoseconds from one tick to the next, 1 or more.
        now_ns: returns nanoseconds of a monotonic clock.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self, interval_ns: int, now_ns: Callable[[], int], sleep: Callable[[float], None]
    ) -> None:
        self.interval_ns = interval_ns
        self._now_ns = now_ns
        self._sleep = sleep
        self.began_ns = now_ns()
        self.lost = 0
        self._next = 0

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds since the first tick."""
        return self._now_ns() - self.began_ns

    @property
    def left_ns(self) -> int:
        """Nanoseconds until the next tick; 0 or less if it is due."""
        return self.began_ns + self._next * self.interval_ns - self._now_ns()

    def wait(self, until_ns: int, should_stop: Callable[[], bool]) -> bool:
        """Wait for the next tick, count lost ones, and return whether there is a next one.

        Args:
            until_ns: the end, in nanoseconds since the first tick; no tick comes then or later.
            should_stop: called several times a second; True ends the wait without a tick.
        """
        interval = self.interval_ns
        while not should_stop():
            elapsed = self.elapsed_ns
            if elapsed >= until_ns:
                end = -(-until_ns // interval)
                self.lost += max(0, end - self._next)
                self._next = end
                return False
            left = min(self._next * interval, until_ns) - elapsed
            if left <= 0:
                newest = elapsed // interval
                self.lost += newest - self._next
                self._next = newest + 1
                return True
            self._sleep(min(left, _MAX_SLEEP_NS) / 1e9)
        return False


_MAX_SLEEP_NS = 50_000_000

_DEFAULT_WALK = WalkOptions()
_DEFAULT_NAMES = NameOptions()

FOREVER_NS = 1 << 62
"""A duration of 146 years, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class SamplingProgress:
    """The progress of a sampling run."""

    elapsed_ns: int
    ticks: int
    lost: int
    samples: int
    """The samples of all threads together."""
    stopped_share: float | None
    """See :attr:`~machtrace.model.profile.Profile.stopped_share`."""


class Sampler:
    """Samples a target, and builds a profile.

    Stacks are unwound between ticks, as far as time allows; names are looked up at the end. Unwind
    rules are cached from one tick to the next.

    Args:
        target: an open target of a running process; its owner closes it.
        interval_ns: nanoseconds from tick to tick, 1 or more.
        threads: thread ids; None for all threads of each tick.
        walk: the limits of each stack.
        names: what to look up. Python functions are read while all threads are suspended together.
        idle: whether the profile has samples of waiting and stopped threads.
        gil: whether it has only samples of threads that hold the interpreter lock.

    Raises:
        TargetSpecError: the target does not provide Python functions, or states of threads.
    """

    def __init__(
        self,
        target: Target,
        *,
        interval_ns: int,
        threads: Sequence[ThreadId] | None = None,
        walk: WalkOptions = _DEFAULT_WALK,
        names: NameOptions = _DEFAULT_NAMES,
        idle: bool = True,
        gil: bool = False,
    ) -> None:
        if names.python and not isinstance(target, PythonTarget):
            raise TargetSpecError(
                "Python functions cannot be read from this kind of target",
                remedy=f"{WITHOUT_PYTHON}, or sample a process of this machine by its id",
            )
        if not idle and not isinstance(target, ActivityTarget):
            raise TargetSpecError(
                "the states of threads cannot be read from this kind of target",
                remedy="sample idle threads, too, or a process of this machine by its id",
            )
        if gil and not names.python:
            raise TargetSpecError(
                "who holds the interpreter lock is read with Python functions only",
                remedy="request Python functions, too",
            )
        self._idle = idle
        self._python_only = names.python_only
        self._target = target
        self._python_target = target if names.python and isinstance(target, PythonTarget) else None
        self._interval_ns = interval_ns
        self._wanted = threads
        self._walk = walk
        files = ImageResolver.of(names.search)
        self._unwinder = Unwinder(files, scan=walk.scan)
        self._symbolicator = Symbolicator(files, lines=names.lines)
        self._symbolicate = names.symbolicate
        self._stacks = SampledStacks(
            self._unwinder, self._symbolicator, walk, python_only=names.python_only
        )
        self._collection = SampleCollection(self._stacks, holds_gil=gil)
        self._process = target.process
        self._awaits_python = False
        """Whether the process is new and has run no Python functions yet."""
        self._early_problems: tuple[Problem, ...] = ()
        self._ticks = 0
        self._walk_ns = 0
        """Nanoseconds of the slowest recent walk; it decays."""

    def run(
        self,
        duration_ns: int,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_tick: Callable[[SamplingProgress], None] = lambda _: None,
        on_start: Callable[[], None] | None = None,
    ) -> SamplingRun:
        """Sample until ``duration_ns`` have passed, the process exits, or the user stops it.

        If a snapshot fails, the samples before it are retained; the error of the very first one is
        raised. Call this once.

        Args:
            duration_ns: nanoseconds, 1 or more; :data:`FOREVER_NS` to run until the process exits.
            should_stop: called several times a second; True ends sampling.
            on_tick: called after each tick.
            on_start: has a process run that waits for its first instruction; called when it was
                captured once, before the first tick. It may run Python functions later.

        Raises:
            TargetGoneError: the process exited before it was sampled.
            TargetAccessError: the kernel refused.
            TargetSpecError: the process is stopped between snapshots.
            TargetError: the target cannot be captured.
        """
        self._prepare(is_new=on_start is not None)
        if on_start is not None:
            on_start()
        started_at = time.time_ns()
        clock = TickClock(self._interval_ns, time.monotonic_ns, time.sleep)
        end = SamplingEnd.DURATION
        while end is SamplingEnd.DURATION and clock.wait(duration_ns, should_stop):
            end = self._tick(clock)
            on_tick(self._progress(clock))
            self._walk_meanwhile(clock)
        elapsed = max(1, clock.elapsed_ns)
        if end is SamplingEnd.DURATION and elapsed < duration_ns:
            end = SamplingEnd.INTERRUPTED
        return SamplingRun(
            started_at_ns=started_at,
            duration_ns=elapsed,
            interval_ns=self._interval_ns,
            ticks=self._ticks,
            lost=clock.lost,
            end=end,
        )

    def profile(self, run: SamplingRun) -> Profile:
        """Unwind the remaining stacks, symbolicate all frames, and return the profile.

        ``run`` is the result of :meth:`run`. The target may be closed.
        """
        collection, symbolicator = self._collection, self._symbolicator
        for problem in self._early_problems:
            collection.miss(problem)
        samples = collection.samples()
        frames = self._stacks.frames.frames(partial(symbolicator.frame, named=self._symbolicate))
        unread = (Problem(thread=None, error=error) for error in symbolicator.problems)
        profile = Profile(
            process=self._process,
            images=collection.images,
            threads=collection.threads,
            frames=frames,
            stacks=self._stacks.rows.table(),
            samples=samples,
            run=run,
            problems=(*self.problems, *unread),
        )
        return profile if self._idle else profile.without_idle()

    @property
    def samples(self) -> int:
        """The number of samples so far, idle ones too."""
        return len(self._collection)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The parts of the process that could not be read; missing names and lines not included."""
        return self._collection.problems

    def _prepare(self, *, is_new: bool) -> None:
        """Capture the process once, so that its images and most rules are cached."""
        target = self._target
        if isinstance(target, ActivityTarget):
            target.observe_activity()
        first, python = self._snapshot()
        if isinstance(target, PausingTarget) and not target.runs_between_snapshots:
            raise TargetSpecError(
                "this stub stops the process from one snapshot to the next",
                remedy="sample it through lldb-server or debugserver, attached to it while it "
                "runs, or by its process id",
            )
        self._awaits_python = self._python_target is not None and is_new
        if self._python_target is not None and not python and not is_new:
            # It runs none, or cannot be read: the problem states why, and each try takes time.
            for problem in first.problems:
                self._collection.miss(problem)
            self._python_target = None
            if self._python_only:
                raise _no_python(first)
        self._process = first.process
        if self._python_only:
            return
        self._unwinder.columns([first], limit=self._walk.limit)

    def _snapshot(self) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
        wanted, stack_limit = self._wanted, self._walk.stack_limit
        if self._python_target is not None:
            return self._python_target.snapshot_with_python(
                wanted, stack_limit=stack_limit, stacks=not self._python_only
            )
        return self._target.snapshot(wanted, stack_limit=stack_limit), {}

    def _tick(self, clock: TickClock) -> SamplingEnd:
        """Take one snapshot; return why sampling ends, or DURATION if it continues."""
        at = clock.elapsed_ns
        collection = self._collection
        try:
            snapshot, python = self._snapshot()
            if not snapshot.threads:
                self._target.threads()  # raises if the process has exited
        except TargetGoneError:
            return SamplingEnd.PROCESS_ENDED
        except TargetError as error:
            collection.miss(Problem(thread=None, error=error))
            return SamplingEnd.TARGET_LOST
        self._ticks += 1
        if self._awaits_python:
            snapshot = self._without_early_problems(snapshot, has_python=bool(python))
        collection.add(snapshot, at, python)
        if self._wanted is not None:
            gone = {p.thread for p in snapshot.problems if isinstance(p.error, ThreadGoneError)}
            self._wanted = [thread for thread in self._wanted if thread not in gone]
            if not self._wanted:
                return SamplingEnd.THREADS_ENDED
        return SamplingEnd.FULL if collection.is_full else SamplingEnd.DURATION

    def _without_early_problems(self, snapshot: Snapshot, *, has_python: bool) -> Snapshot:
        """Withhold why a new process has no Python functions until it has some, or ends."""
        self._awaits_python = not has_python
        self._early_problems = () if has_python else snapshot.problems
        return replace(snapshot, problems=tuple(p for p in snapshot.problems if p.thread))

    def _progress(self, clock: TickClock) -> SamplingProgress:
        elapsed, collection = max(1, clock.elapsed_ns), self._collection
        return SamplingProgress(
            elapsed_ns=elapsed,
            ticks=self._ticks,
            lost=clock.lost,
            samples=len(collection),
            stopped_share=stopped_share(
                collection.stopped_ns,
                copies=collection.timed_copies,
                rate=self._ticks * 1e9 / elapsed,
            ),
        )

    def _walk_meanwhile(self, clock: TickClock) -> None:
        """Unwind waiting stacks, if there are many, while there is time before the next tick."""
        while self._collection.should_walk and clock.left_ns > 2 * self._walk_ns:
            began = time.monotonic_ns()
            self._collection.walk_oldest()
            took = time.monotonic_ns() - began
            # It decays: a rule is computed only once.
            self._walk_ns = max(took, self._walk_ns * 7 // 8)


def _no_python(snapshot: Snapshot) -> MachtraceError:
    """Return why a process has no stacks of Python functions."""
    if snapshot.problems:
        return snapshot.problems[0].error
    return TargetError(
        "no thread runs Python functions", remedy="sample native frames: leave out only"
    )
