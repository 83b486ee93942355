"""What every target offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from machtrace.cpython.runs import PythonRuns
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo

DEFAULT_STACK_LIMIT = 16 << 20
"""Bytes of stack copied of each thread, unless the caller says otherwise.

What lies between the stack pointer and the stack's base is copied, so it costs nothing where
stacks are shallow. Main threads have 8 MiB and a stack that overflowed has used all of it.
"""


class Target(Protocol):
    """A process, dead or alive, whose threads can be listed and copied.

    A context manager: leaving it lets go of whatever was opened, and of every stopped thread.
    """

    @property
    def process(self) -> ProcessInfo:
        """Which one."""
        ...

    def threads(self) -> tuple[ThreadInfo, ...]:
        """Its threads, in the kernel's order.

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
        stay the same, :attr:`Snapshot.images` should be the same object: what was learnt of them is
        found again by it.

        Raises:
            TargetGoneError: the process exited.
            TargetAccessError: the kernel refused.
        """
        ...

    def close(self) -> None:
        """Let go of everything; calling it twice does nothing more."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


@runtime_checkable
class PythonTarget(Protocol):
    """A target that can tell of Python functions."""

    def snapshot_with_python(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> tuple[Snapshot, Mapping[ThreadId, PythonRuns]]:
        """:meth:`Target.snapshot`, and of each thread the Python functions of the same moment.

        A thread that runs no Python is not among them. What could not be told is in
        :attr:`Snapshot.problems`, too.
        """
        ...


@runtime_checkable
class PausingTarget(Protocol):
    """A target whose process may have to stand still from one snapshot to the next."""

    @property
    def runs_between_snapshots(self) -> bool:
        """Whether the process runs on after a snapshot; known once there was one."""
        ...


class ClosedWhenLeft(ABC):
    """What is closed when its ``with`` block is left."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; calling it twice does nothing more."""

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
