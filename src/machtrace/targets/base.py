"""The interface of targets, and the selection of threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self, TypeAlias, runtime_checkable

from machtrace.cpython.runs import PythonRuns
from machtrace.errors import TargetSpecError
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo

ALL_THREADS = "all"
_LISTED = 12
"""Threads named in an error."""


class Target(AbstractContextManager["Target"], Protocol):
    """A process, dead or alive, whose threads can be listed and copied.

    A context manager: on exit it releases what it opened and resumes every stopped thread.
    """

    @property
    def process(self) -> ProcessInfo:
        """The process's id, path and architecture."""
        ...

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads, in the kernel's order.

        Raises:
            TargetGoneError: it exited.
        """
        ...

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """Copy ``threads`` (None: all), each stopped only while it is copied.

        At most ``stack_limit`` bytes of each stack are copied. A thread that ends, or whose part
        of a core is bad, is left out and named in :attr:`Snapshot.problems`. As long as the images
        stay the same, :attr:`Snapshot.images` should be the same object: it is the key of what is
        cached about them.

        Raises:
            TargetGoneError: the process exited.
            TargetAccessError: the kernel refused.
        """
        ...

    def close(self) -> None:
        """Release all resources; a second call does nothing."""
        ...


@runtime_checkable
class PythonTarget(Protocol):
    """A target that can read Python functions."""

    def snapshot_with_python(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
        """Capture as :meth:`Target.snapshot` does, with each thread's Python functions.

        Threads that run no Python are left out. What could not be read is in
        :attr:`Snapshot.problems`, too.
        """
        ...


@runtime_checkable
class ActivityTarget(Protocol):
    """A target that can read what its threads do between snapshots."""

    def observe_activity(self) -> None:
        """From now on, set :attr:`ThreadSnapshot.state` and :attr:`ThreadSnapshot.cpu_ns`."""
        ...


@runtime_checkable
class PausingTarget(Protocol):
    """A target whose process may have to stay stopped between snapshots."""

    @property
    def runs_between_snapshots(self) -> bool:
        """Whether the process is resumed after a snapshot; valid after the first."""
        ...


class ClosedWhenLeft(ABC):
    """A context manager that closes itself on exit."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.close()


ThreadChoice: TypeAlias = str | Sequence[str]
"""``all``, ``main``, ``crashed``, ``#N`` as lldb counts, a thread id, or a name, which several
threads may share; or several of these."""


def select_threads(
    threads: Sequence[ThreadInfo], wanted: ThreadChoice
) -> tuple[ThreadId, ...] | None:
    """Return the ids of the threads that ``wanted`` names; None means all.

    Raises:
        TargetSpecError: a choice matches no thread; the remedy lists the threads.
    """
    choices = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if ALL_THREADS in choices:
        return None
    ids: set[ThreadId] = set()
    for choice in choices:
        matches = {thread.id for thread in threads if _matches(thread, choice)}
        if not matches:
            raise _no_match(threads, choice)
        ids |= matches
    return tuple(thread.id for thread in threads if thread.id in ids)


def _no_match(threads: Sequence[ThreadInfo], choice: str) -> TargetSpecError:
    if choice == "crashed":
        return TargetSpecError(
            "no thread crashed, as far as the target states",
            remedy="choose all, main, or a thread by its name or id",
        )
    listed = ", ".join(_label(thread) for thread in threads[:_LISTED])
    more = f" and {len(threads) - _LISTED} more" if len(threads) > _LISTED else ""
    return TargetSpecError(
        f"no thread matches {choice!r}", remedy=f"choose all, main, or one of {listed}{more}"
    )


def _matches(thread: ThreadInfo, wanted: str) -> bool:
    if (wanted == "main" and thread.is_main) or (wanted == "crashed" and thread.crashed):
        return True
    if wanted.startswith("#"):
        return wanted[1:] == str(thread.index)
    return wanted in (str(thread.id), thread.name)


def _label(thread: ThreadInfo) -> str:
    return f"{thread.id} ({thread.name})" if thread.name else str(thread.id)
