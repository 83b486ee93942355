"""Contexts of suspended Swift functions, which lie in no stack.

A frame record whose saved frame pointer has the tag 1 in its top four bits is an async function's;
the word below it points to the function's context. A context begins with the pointer to its
caller's and the address where that resumes (swift's ``include/swift/ABI/Task.h``:
``AsyncContext``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

import numpy as np

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryReader, MemoryRegion

_HEAD = Struct("<2Q")
"""A context's parent, and the address where that resumes."""
_TAG_SHIFT = 60
_MAX_CONTEXTS = 1 << 12
_ASYNC_CONTEXT = {True: 22, False: 14}
"""DWARF number of the register that holds the context while a function begins: x22, r14."""


def context_pointers(
    stacks: Iterable[MemoryRegion], registers: Iterable[Sequence[int | None]], arch: Arch
) -> list[int]:
    """Return words that may point to a context: below tagged frame records, and in registers."""
    if arch.pointer_size != _HEAD.size // 2:
        return []
    pointers: dict[int, None] = {}
    for stack in stacks:
        skipped = -stack.start % 8
        end = skipped + max(0, len(stack.data) - skipped) // 8 * 8
        words = np.frombuffer(memoryview(stack.data)[skipped:end], np.dtype("<u8"))
        records = np.flatnonzero(words >> np.uint64(_TAG_SHIFT) == np.uint64(1))
        pointers |= dict.fromkeys(words[records[records > 0] - 1].tolist())
    number = _ASYNC_CONTEXT[arch.is_arm64]
    for values in registers:
        value = values[number] if len(values) > number else None
        if value:
            pointers[value] = None
    return list(pointers)


def read_contexts(
    memory: MemoryReader, pointers: Sequence[int], mask: PacMask
) -> list[MemoryRegion]:
    """Read the contexts at ``pointers`` and those of their callers, as far as they are readable."""
    contexts: dict[Avma, MemoryRegion] = {}
    for pointer in pointers:
        at = mask.strip(pointer)
        while at and at not in contexts and len(contexts) < _MAX_CONTEXTS:
            try:
                data = bytes(memory.read(at, _HEAD.size))
            except MemoryReadError:
                break
            contexts[at] = MemoryRegion(at, data)
            at = mask.strip(_HEAD.unpack(data)[0])
    return list(contexts.values())
