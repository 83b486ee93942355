"""What targets that are core files have in common: a mapped file, and what it lacks."""

from __future__ import annotations

from functools import cached_property
from typing import Generic, TypeVar

from machtrace.errors import CoreFileError, TargetError
from machtrace.model.thread import ThreadId, ThreadInfo
from machtrace.targets.base import ClosedWhenLeft

_Core = TypeVar("_Core")


class CoreTarget(ClosedWhenLeft, Generic[_Core]):
    """A core that is open until it is closed.

    The file is mapped, not read: memory in snapshots are views of the mapping, which lives as long
    as any of them, also after :meth:`close`. Whoever shortens the file meanwhile ends this process
    with SIGBUS, as with every mapped file.
    """

    def __init__(self, path: str, core: _Core) -> None:
        """``core`` is what the file at ``path`` says."""
        self._path = path
        self._core: _Core | None = core

    @property
    def core(self) -> _Core:
        """What the file says.

        Raises:
            TargetError: the target was closed.
        """
        if self._core is None:
            raise TargetError(f"the core was closed: {self._path}", remedy="open it again")
        return self._core

    def close(self) -> None:
        """Let go of the file; snapshots keep what they have of it."""
        self._core = None
        for name, member in vars(type(self)).items():
            if isinstance(member, cached_property):
                self.__dict__.pop(name, None)

    def _no_stack(self, info: ThreadInfo, sp: int | None) -> CoreFileError:
        return CoreFileError(
            f"the stack of thread {info.index}, at {sp or 0:#x}, is not in the core",
            source=self._path,
            offset=0,
            remedy="write the core with the memory of its stacks included",
        )

    def _no_thread(self, thread: ThreadId) -> TargetError:
        return TargetError(
            f"no thread {thread} in {self._path}", remedy="choose one of the threads it lists"
        )
