"""Threads as the script in the process copied them: ``struct thread`` of its C code, and stacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from struct import Struct

from machtrace.errors import RemoteProtocolError, TargetError, ThreadGoneError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion
from machtrace.model.snapshot import Problem, ThreadId, ThreadInfo
from machtrace.targets.frida.agent import Part, wrong
from machtrace.targets.shared.thread_copy import (
    CaptureFailure,
    CopiedThread,
    ThreadCopy,
    UncopiedThread,
)

MAX_THREADS = 1 << 14
"""Threads that the script lists at most."""
MAX_STACK_SIZE = 1 << 28
"""Upper limit for the bytes of one stack, regardless of the request."""
_ADDRESSES = 1 << 64

_THREAD = Struct("<14Q512s")
_OUTCOMES = {0, *(one.value for one in CaptureFailure)}


def read_copies(parts: Sequence[Part], wanted: Collection[int]) -> dict[int, ThreadCopy]:
    """Read the copies in the parts of one answer, by id.

    A Darwin thread's second stack is none: it is what :func:`read_contexts` reads.

    Args:
        parts: of the answer: rows of threads, the stacks that they are about, and so on.
        wanted: the ids of which copies may come.

    Raises:
        RemoteProtocolError: they do not fit one another.
    """
    copies: dict[int, ThreadCopy] = {}
    rows, stacks = b"", bytearray()
    for part in parts:
        if part.name == "threads":
            rows, stacks = part.data, bytearray()
        elif part.name == "stacks":
            stacks += part.data
        elif part.name == "copied":
            for copy in _copies(rows, memoryview(bytes(stacks))):
                if copy.id not in wanted:
                    raise wrong("a thread that was not requested", "capture", copy.id)
                copies[copy.id] = copy
            rows, stacks = b"", bytearray()
    return copies


def _copies(rows: bytes, stacks: memoryview) -> Iterator[ThreadCopy]:
    if len(rows) % _THREAD.size:
        raise wrong("rows of threads cut short", "capture", len(rows))
    for row in _THREAD.iter_unpack(rows):
        number, outcome, error, uninterruptible, asked, stopped, resumed, size, *rest = row
        starts, sizes, places, registers = rest[0:2], rest[2:4], rest[4:6], rest[6]
        if outcome not in _OUTCOMES or size > len(registers):
            raise wrong("a thread with no known outcome", "capture", (number, outcome, size))
        if outcome:
            yield UncopiedThread(
                id=number,
                why=CaptureFailure(outcome),
                errno=error,
                is_uninterruptible=bool(uninterruptible),
            )
            continue
        regions = [
            _region(start, length, place, stacks)
            for start, length, place in zip(starts, sizes, places, strict=True)
        ]
        yield CopiedThread(
            id=number,
            registers=registers[:size],
            stacks=tuple(regions if len(regions[1].data) else regions[:1]),
            taken_at_ns=min(stopped, _ADDRESSES >> 1),
            stopped_for_ns=min(max(0, resumed - asked), _ADDRESSES >> 1),
        )


def _region(start: int, size: int, place: int, stacks: memoryview) -> MemoryRegion:
    if place + size > len(stacks) or start + size > _ADDRESSES:
        raise wrong("a stack that is not there", "capture", (start, size, place))
    return MemoryRegion(Avma(start), bytes(stacks[place : place + size]) if size else b"")


_CONTEXT = Struct("<3Q")


def read_contexts(region: MemoryRegion) -> list[MemoryRegion]:
    """Read the contexts of suspended Swift functions that were copied with a Darwin thread.

    Args:
        region: its second stack: address and two words of each; see ``frida_darwin.c``.
    """
    data = bytes(region.data)
    whole = len(data) // _CONTEXT.size * _CONTEXT.size
    return [
        MemoryRegion(Avma(address), data[at + 8 : at + 24])
        for at, (address, _, _) in zip(
            range(0, whole, _CONTEXT.size), _CONTEXT.iter_unpack(data[:whole]), strict=True
        )
    ]


def why_not(copy: UncopiedThread, reasons: Mapping[int, str]) -> TargetError:
    """Return the error for a thread that was not copied.

    Args:
        copy: the thread and the failure.
        reasons: names of its system's error numbers; others are shown as numbers.
    """
    thread = copy.id
    reason = reasons.get(copy.errno, f"error {copy.errno}")
    if copy.why is CaptureFailure.GONE:
        return ThreadGoneError(f"thread {thread} has exited", thread=thread)
    if copy.why is CaptureFailure.REFUSED:
        return TargetError(
            f"thread {thread} could not be stopped from within the process ({reason})",
            remedy="check whether a debugger is attached to it, or a sandbox forbids ptrace",
        )
    if copy.why is CaptureFailure.NOT_STOPPED and copy.is_uninterruptible:
        return TargetError(
            f"thread {thread} cannot be stopped: it is in uninterruptible sleep",
            remedy="check what it waits for: a device, a network file system, a child",
        )
    if copy.why is CaptureFailure.NOT_STOPPED:
        return TargetError(
            f"thread {thread} did not stop in time",
            remedy="capture again when the machine is less busy",
        )
    return TargetError(
        f"thread {thread} could not be copied ({reason})",
        remedy="capture again, with a lower stack limit if its stack is large",
    )


def not_listed(threads: Sequence[ThreadInfo], wanted: Collection[ThreadId] | None) -> list[Problem]:
    """Return a problem for each of ``wanted`` that the process does not have."""
    lacking = set(wanted or ()) - {one.id for one in threads}
    return [
        Problem(
            thread=thread, error=ThreadGoneError(f"thread {thread} does not exist", thread=thread)
        )
        for thread in sorted(lacking)
    ]


def stopped_early(error: int) -> RemoteProtocolError:
    """Return the error for a script that could not continue copying."""
    return wrong(f"up before all threads were copied (error {error})", "capture", error)
