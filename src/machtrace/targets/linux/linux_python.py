"""Python functions of another Linux process, read while it stands still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from machtrace.errors import MachtraceError, TargetError, TargetGoneError
from machtrace.model.memory import MemoryReader
from machtrace.model.snapshot import Problem, Snapshot
from machtrace.model.thread import ThreadId
from machtrace.targets.linux.procfs import ProcessDirectory
from machtrace.cpython.runs import PythonRuns
from machtrace.cpython.runtime import PythonRuntime
from machtrace.cpython.threads import PythonThreads, read_threads


class PythonReader:
    """Reads all threads' functions once for each time that the process is held.

    Args:
        directory: of the process.
        runtime: its CPython.
    """

    def __init__(self, directory: ProcessDirectory, runtime: PythonRuntime) -> None:
        self._directory = directory
        self._runtime = runtime
        self._found: list[tuple[dict[int, ThreadId], PythonThreads | None]] = []

    def while_held(self, threads: Sequence[int], memory: MemoryReader | None) -> None:
        """See :data:`~machtrace.targets.linux.freeze.WhileHeld`."""
        found = None
        ids: dict[int, ThreadId] = {}
        if memory is not None:
            found = read_threads(memory, self._runtime.address, self._runtime.layout)
            ids = self._own_ids(threads)
        self._found.append((ids, found))

    def completed(self, snapshot: Snapshot) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """The snapshot with what is missing, and the functions of its threads."""
        copied = {thread.info.id for thread in snapshot.threads}
        runs: dict[ThreadId, PythonRuns] = {}
        for ids, found in self._found:
            if found is None:
                snapshot = with_problem(snapshot, _not_held())
                continue
            known = {own: thread for own, thread in ids.items() if thread in copied}
            snapshot, some = with_functions(snapshot, found, known)
            runs |= some
        return snapshot, runs

    def _own_ids(self, threads: Sequence[int]) -> dict[int, ThreadId]:
        """Id as the process itself knows it → as this one does; they differ in a container.

        Asked while they stand still: of a thread that has ended nobody knows it any more.
        """
        in_container = len(self._known_as(self._directory.pid)) > 1
        return {
            self._known_as(thread)[-1] if in_container else thread: ThreadId(thread)
            for thread in threads
        }

    def _known_as(self, thread: int) -> list[int]:
        """Its ids in each namespace, from this process's inwards."""
        try:
            words = self._directory.status(thread).get("NSpid", "").split()
        except (OSError, TargetGoneError):
            words = []
        return [int(word) for word in words if word.isdecimal()] or [thread]


def with_functions(
    snapshot: Snapshot, found: PythonThreads, ids: dict[int, ThreadId]
) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
    """The snapshot with what could not be read, and the functions of its threads.

    Args:
        snapshot: of the same moment.
        found: what the process's memory says.
        ids: of the snapshot's threads, by what the process itself calls them.
    """
    problems = [
        Problem(thread=None if thread is None else ids[thread], error=_told(error))
        for thread, error in found.errors
        if thread is None or thread in ids
    ]
    runs: dict[ThreadId, PythonRuns] = {
        ids[thread]: found.runs(thread) for thread in found.standing if thread in ids
    }
    return replace(snapshot, problems=(*snapshot.problems, *problems)), runs


def with_problem(snapshot: Snapshot, error: MachtraceError) -> Snapshot:
    """``snapshot`` with one more thing that is missing."""
    problem = Problem(thread=None, error=error)
    return replace(snapshot, problems=(*snapshot.problems, problem))


def _not_held() -> TargetError:
    return TargetError(
        "Python functions were not read, since not all threads could be stopped together",
        remedy="capture again, and see what is said of the other threads",
    )


def _told(error: MachtraceError) -> TargetError:
    told = TargetError(
        f"Python functions could not be read ({error})",
        remedy="capture again; where it stays so, leave Python functions out",
    )
    told.__cause__ = error
    return told
