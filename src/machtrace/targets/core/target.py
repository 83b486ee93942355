"""Common parts of targets that are core files: the mapped file, and stacks in its memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Generic, TypeVar

from machtrace.errors import CoreFileError, TargetError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.process_metadata import NotedThread
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ThreadId, ThreadInfo
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.shared.thread_copy import RED_ZONE, STACK_GAP, has_red_zone

_Core = TypeVar("_Core")


class CoreTarget(ClosedWhenLeft, Generic[_Core]):
    """A core that is open until it is closed.

    The file is mapped, not read: memory in snapshots are views of the mapping, which lives as long
    as any of them, also after :meth:`close`. Truncating the file meanwhile ends this process
    with SIGBUS, as with every mapped file.
    """

    def __init__(self, path: str, core: _Core) -> None:
        """``core`` is the parsed file at ``path``."""
        self._path = path
        self._core: _Core | None = core

    @property
    def core(self) -> _Core:
        """The parsed file.

        Raises:
            TargetError: the target was closed.
        """
        if self._core is None:
            raise TargetError(f"the core is closed: {self._path}", remedy="open it again")
        return self._core

    def close(self) -> None:
        """Release the file; snapshots retain their views of it."""
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


def noted_indexes(noted: Sequence[NotedThread]) -> list[int]:
    """Return the threads' numbers: as noted, unless two are equal."""
    indexes = [thread.index or number for number, thread in enumerate(noted, 1)]
    return indexes if len(set(indexes)) == len(indexes) else list(range(1, len(noted) + 1))


def stack_region(
    memory: RegionMemory, registers: RegisterSet, limit: int, pointers: Collection[int] = ()
) -> MemoryRegion:
    """Return at most ``limit`` bytes of a stack, from sp less the red zone; empty if absent.

    If the stack has overflowed, it starts above sp; ``pointers`` are the stack pointers of all
    threads, since the region above may be another's. A stack in several adjoining regions is
    joined, which copies it.
    """
    arch, sp = registers.arch, registers.sp
    if sp is None or limit <= 0:
        return MemoryRegion(Avma(sp or 0), b"")
    at = Avma(sp)
    region = memory.region_at(at)
    if region is None:
        region = memory.region_above(at)
        if (
            region is None
            or region.start - at > STACK_GAP
            or any(region.start <= pointer < region.end for pointer in pointers)
        ):
            return MemoryRegion(at, b"")
    start = Avma(max(region.start, at - RED_ZONE if has_red_zone(arch) else at))
    end = start + limit
    upto = region.end
    while upto < end and (following := memory.region_at(upto)) is not None:
        upto = following.end
    return MemoryRegion(start, memory.read(start, min(end, upto) - start))
