"""Unwinds and names the watcher's copies in a thread of its own, so that polls stay on time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from machtrace.cpython.runs import PythonRuns, with_python_runs
from machtrace.errors import MachtraceError
from machtrace.images.resolver import ImageResolver
from machtrace.model.capture import Capture
from machtrace.model.options import DEFAULT_FRAME_LIMIT
from machtrace.model.snapshot import Problem, Snapshot, ThreadId
from machtrace.model.symbol import CallStack
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.unwinder.unwinder import Unwinder


class RawCopy(NamedTuple):
    """Copied threads that are not unwound yet."""

    snapshot: Snapshot
    python: Mapping[ThreadId, PythonRuns]


class Namer:
    """Unwinds and names copies in the order in which they come.

    Args:
        search: files and folders with the program's images.
        lines: whether source lines are looked up.
        scan: whether stacks are searched for return addresses where no rule leads on, as after
            functions that need a register which a waiting thread's copy lacks.
    """

    def __init__(
        self, search: Sequence[str] = (), *, lines: bool = True, scan: bool = False
    ) -> None:
        files = ImageResolver.of(tuple(search))
        self._unwinder = Unwinder(files, scan=scan)
        self._symbolicator = Symbolicator(files, lines=lines)
        self._quick = Symbolicator(files, lines=False)
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="machtrace-names", daemon=True)
        self._thread.start()
        self.errors: list[str] = []
        self.failure: Exception | None = None
        """An error of a job that is not about the process, such as of a callback."""

    def submit(self, job: Callable[[], object]) -> None:
        """Run a job in the naming thread after those before it."""
        self._jobs.put(job)

    def wait(self) -> None:
        """Wait until all jobs so far are done."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait()

    def close(self) -> None:
        """Finish all jobs and end the thread; a second call does nothing."""
        self._jobs.put(None)
        self._thread.join()

    def stacks(self, copy: RawCopy, *, lines: bool = True) -> tuple[CallStack, ...]:
        """Unwind and name the threads of a copy; to be called by jobs."""
        stacks, _ = self._stacks(copy, lines=lines)
        return stacks

    def capture(self, copies: Sequence[RawCopy]) -> Capture | None:
        """Return all copies as one capture; None without any."""
        if not copies:
            return None
        last = copies[-1].snapshot
        stacks: list[CallStack] = []
        problems: list[Problem] = []
        for copy in copies:
            named, unmatched = self._stacks(copy, lines=True)
            stacks += named
            problems += [*copy.snapshot.problems, *unmatched]
        return Capture(
            process=last.process,
            images=last.images,
            stacks=tuple(sorted(stacks, key=lambda stack: stack.thread.index)),
            explanations=(),
            problems=tuple(problems),
            linux=last.linux,
        )

    def _stacks(self, copy: RawCopy, *, lines: bool) -> tuple[tuple[CallStack, ...], list[Problem]]:
        symbolicator = self._symbolicator if lines else self._quick
        walked = self._unwinder.unwind(copy.snapshot, limit=DEFAULT_FRAME_LIMIT)
        stacks = tuple(map(symbolicator.symbolicate, walked))
        return with_python_runs(stacks, copy.python, appends=True) if copy.python else (stacks, [])

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except MachtraceError as error:
                self.errors.append(str(error))
            except Exception as error:  # noqa: BLE001 - the watcher raises it when it is closed
                self.failure = error
