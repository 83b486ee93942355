"""Copies of a watched target's threads: without a stop where they wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from machtrace.errors import MachtraceError, TargetGoneError
from machtrace.model.snapshot import Snapshot, ThreadId
from machtrace.watching.naming import RawCopy
from machtrace.watching.target import WatchedTarget


class Tracer(Protocol):
    """The tracer of a target while it is copied."""

    @property
    def tracer_id(self) -> int:
        """The id of the OS thread that traces; 0 if none does."""
        ...

    def pass_on(self, copied: Collection[int], /) -> None:
        """Handle what happened to threads while some were copied."""
        ...


class StackCopies:
    """Copies threads, and counts the stops that it takes.

    Args:
        target: the target; it may be replaced when the process executes another program.
        describe: adds the locks that threads wait for to a copy.
        on_stop: called with each thread that was stopped, and the nanoseconds.
        tracer: what traces the target's threads. Their copies are taken by the OS thread that does.
    """

    def __init__(
        self,
        target: WatchedTarget,
        describe: Callable[[Snapshot], Snapshot],
        on_stop: Callable[[int, int], None],
        tracer: Tracer,
    ) -> None:
        self.target = target
        self._describe = describe
        self._on_stop = on_stop
        self._tracer = tracer
        self.stops = 0
        self.longest_ns = 0
        """The longest stop."""

    def one(self, thread: int, *, is_waiting: bool) -> RawCopy | None:
        """Copy a thread: without a stop if it waits, else with a stop of its own."""
        try:
            if is_waiting:
                copy = self.waiting([thread])
                if copy.snapshot.threads:
                    return copy
            return self._stopped([ThreadId(thread)])
        except TargetGoneError:
            raise
        except MachtraceError:
            return None

    def waiting(self, threads: Sequence[int]) -> RawCopy:
        """Copy those of ``threads`` that wait."""
        return RawCopy(*self.target.copy_waiting(threads))

    def several(self, ids: Sequence[int]) -> list[RawCopy]:
        """Copy threads: those that wait without a stop, the others with one each."""
        try:
            waiting = self.waiting(ids)
            copied = {thread.info.id for thread in waiting.snapshot.threads}
            rest = [ThreadId(thread) for thread in ids if thread not in copied]
            copies = [waiting, self._stopped(rest)] if rest else [waiting]
            return [copy._replace(snapshot=self._describe(copy.snapshot)) for copy in copies]
        except TargetGoneError:
            raise
        except MachtraceError:
            return []

    def all(self) -> list[RawCopy]:
        """Copy all threads; see :meth:`several`."""
        return self.several(self.target.thread_ids())

    def _stopped(self, threads: Sequence[ThreadId]) -> RawCopy:
        is_traced = bool(self._tracer.tracer_id)
        try:
            copy = RawCopy(*self.target.copy_stopped(threads, is_traced=is_traced))
        finally:
            self._tracer.pass_on(threads)
        for thread in copy.snapshot.threads:
            if thread.stopped_for_ns:
                self.stops += 1
                self.longest_ns = max(self.longest_ns, thread.stopped_for_ns)
                self._on_stop(thread.info.id, thread.stopped_for_ns)
        return copy
