"""Profiles put together by hand: for tests of what reads and writes them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.profile import (
    OUTERMOST,
    Profile,
    ProfileFrame,
    SampledThread,
    SampleTable,
    SamplingEnd,
    SamplingRun,
    StackTable,
)
from machtrace.model.snapshot import ProcessInfo
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust
from machtrace.model.symbol import (
    Certainty,
    Frame,
    FrameStatus,
    InlineFrame,
    PythonFrame,
    SourceLocation,
    Symbol,
)
from machtrace.model.thread import ThreadId, ThreadInfo

IMAGE = BinaryImage(
    path="/Applications/Demo.app/Demo",
    uuid=UUID("d5bd0e97-65e0-3dbd-9e18-2e8f1a6f3c11"),
    arch=Arch.ARM64,
    format=ImageFormat.MACHO,
    load_address=Avma(0x102060000),
    header_svma=Svma(0x100000000),
    size=0x10000,
)
"""The image of all functions here."""

MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Seen:
    """Samples of one thread that follow one another."""

    thread: int
    """Its number, from 0."""
    stack: Sequence[ProfileFrame]
    """Outermost first."""
    count: int = 1


def function(
    name: str,
    *,
    offset: int = 0x100,
    at: int = 4,
    line: int | None = None,
    inlined: Iterable[InlineFrame] = (),
    python: Iterable[PythonFrame] = (),
    is_leaf: bool = False,
) -> Frame:
    """A frame in :data:`IMAGE`.

    Args:
        name: of the function; empty where only its start is known.
        offset: where it starts, from the image's header.
        at: bytes from there to the frame's address.
        line: in ``/src/demo.c``.
        inlined: innermost first.
        python: the functions that it runs, innermost first.
        is_leaf: whether the address is a program counter, and not one to return to.
    """
    kind = AddressKind.PROGRAM_COUNTER if is_leaf else AddressKind.RETURN_ADDRESS
    trust = FrameTrust.CONTEXT if is_leaf else FrameTrust.CFI
    return Frame(
        address=FrameAddress(Avma(IMAGE.load_address + offset + at), trust, kind),
        status=FrameStatus.SYMBOLICATED if name else FrameStatus.MISSING_SYMBOL,
        image=IMAGE,
        symbol=Symbol(
            name=name or f"unnamed_{offset:x}",
            linkage_name=f"_{name}" if name else "",
            offset=ImageOffset(offset),
            size=0x40,
            certainty=Certainty.EXACT if name else Certainty.NONE,
        ),
        location=None if line is None else SourceLocation("/src/demo.c", line),
        inlined=tuple(inlined),
        python=tuple(python),
    )


def profile(seen: Iterable[Seen], *, names: Sequence[str | None] = ("main",)) -> Profile:
    """A profile of these samples, a tick each 10 milliseconds for each thread on its own.

    Args:
        seen: in the order of time.
        names: of the threads, by their number; the first is the main thread.
    """
    frames: dict[ProfileFrame, int] = {}
    rows: dict[tuple[int, int], int] = {}
    callers, places = array("i"), array("i")
    times, threads, stacks = array("q"), array("i"), array("i")
    ticks = [0] * len(names)
    for one in seen:
        row = OUTERMOST
        for frame in one.stack:
            number = frames.setdefault(frame, len(frames))
            key = row, number
            if key not in rows:
                rows[key] = len(callers)
                callers.append(row)
                places.append(number)
            row = rows[key]
        for _ in range(one.count):
            times.append(10 * MILLISECOND * ticks[one.thread])
            threads.append(one.thread)
            stacks.append(row)
            ticks[one.thread] += 1
    return Profile(
        process=ProcessInfo(pid=42, path=IMAGE.path, arch=Arch.ARM64),
        images=(IMAGE,),
        threads=tuple(
            SampledThread(
                info=ThreadInfo(
                    id=ThreadId(259 + number), index=1 + number, name=name, is_main=not number
                ),
                samples=ticks[number],
                stopped_ns=ticks[number] * MILLISECOND // 10,
                longest_stop_ns=MILLISECOND // 10,
            )
            for number, name in enumerate(names)
        ),
        frames=tuple(frames),
        stacks=StackTable(callers, places),
        samples=SampleTable(times, threads, stacks, array("q", [1]) * len(times)),
        run=SamplingRun(
            started_at_ns=1_700_000_000_000_000_000,
            duration_ns=max(1, 10 * MILLISECOND * max(ticks, default=0)),
            interval_ns=10 * MILLISECOND,
            ticks=max(ticks, default=0),
            lost=3,
            end=SamplingEnd.DURATION,
        ),
    )
