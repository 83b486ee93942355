"""Contexts of suspended Swift functions of a process that runs on meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.model.memory import MemoryRegion
from machtrace.model.snapshot import ProcessInfo
from machtrace.model.thread import ThreadSnapshot
from machtrace.targets.darwin.memory import TaskMemory
from machtrace.targets.shared.paged_memory import PagedMemory


def copy_contexts(
    memory: TaskMemory, threads: Sequence[ThreadSnapshot], process: ProcessInfo
) -> list[MemoryRegion]:
    """The contexts that frames of ``threads`` lead to, as far as they are still theirs.

    They are read after the threads were let go. A function whose frame is on the stack keeps its
    context, and those of its callers; so what leads to a context is looked up again afterwards,
    and what is not there any more is left out.
    """
    if not threads:
        return []
    from machtrace.targets.shared.async_contexts import context_pointers, read_contexts

    mask = process.pointer_mask
    stacks = [one.stack for one in threads]
    pointers = context_pointers(stacks, (), process.arch)
    if not pointers:
        return []
    pages = PagedMemory(memory)
    pages.gather(lambda: read_contexts(pages, pointers, mask))
    ranges = [(stack.start, len(stack.data)) for stack in stacks]
    again = [
        MemoryRegion(stack.start, data)
        for stack, data in zip(stacks, memory.read_many(ranges), strict=True)
    ]
    still = set(context_pointers(again, (), process.arch))
    return read_contexts(pages, [one for one in pointers if one in still], mask)
