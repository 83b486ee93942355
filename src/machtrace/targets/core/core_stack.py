"""What reading a thread out of a core takes, whatever its format."""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.process_metadata import NotedThread
from machtrace.model.registers import RegisterSet

RED_ZONE = 128
"""Bytes below the stack pointer that a leaf may use: *Apple arm64 ABI*, System V x86-64 psABI."""


def noted_indexes(noted: Sequence[NotedThread]) -> list[int]:
    """The numbers of threads: as noted, unless two would have the same."""
    indexes = [one.index or place for place, one in enumerate(noted, 1)]
    return indexes if len(set(indexes)) == len(indexes) else list(range(1, len(noted) + 1))


def stack_region(memory: RegionMemory, registers: RegisterSet, limit: int) -> MemoryRegion:
    """At most ``limit`` bytes of a thread's stack, from sp less the red zone; empty if not there.

    A stack in several adjoining regions is joined, which copies it.
    """
    arch, sp = registers.arch, registers.sp
    if sp is None or limit <= 0:
        return MemoryRegion(Avma(sp or 0), b"")
    at = Avma(sp)
    region = memory.region_at(at)
    if region is None:
        return MemoryRegion(at, b"")
    start = Avma(max(region.start, at - RED_ZONE if has_red_zone(arch) else at))
    end = start + limit
    upto = region.end
    while upto < end and (following := memory.region_at(upto)) is not None:
        upto = following.end
    return MemoryRegion(start, memory.read(start, min(end, upto) - start))


def has_red_zone(arch: Arch) -> bool:
    """Whether a leaf may use memory below its stack pointer."""
    return arch.is_arm64 or arch in (Arch.X86_64, Arch.X86_64H)
