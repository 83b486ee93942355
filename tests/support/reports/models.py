"""Reports put together by hand: for tests of what reads, groups and writes them.

Profiles put together by hand: for tests of what reads and writes them.
"""

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
    STATES,
    UNKNOWN,
    Profile,
    ProfileFrame,
    SampledThread,
    SampleTable,
    SamplingEnd,
    SamplingRun,
    StackTable,
    with_activity,
)
from machtrace.model.report import (
    Adjustment,
    JsonValue,
    Report,
    ReportedException,
    ReportedFrame,
    ReportedImage,
    ReportedProcess,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.model.snapshot import ProcessInfo, ThreadId, ThreadInfo, ThreadState
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

PROGRAM = "/private/var/containers/Bundle/Application/1/Demo.app/Demo"
IMAGES = (
    ReportedImage(
        name="Demo",
        path=PROGRAM,
        uuid=UUID("d5bd0e97-65e0-3dbd-9e18-2e8f1a6f3c11"),
        arch="arm64",
        load_address=Avma(0x1_0000_0000),
        size=0x10_0000,
    ),
    ReportedImage(
        name="libsystem_kernel.dylib",
        path="/usr/lib/system/libsystem_kernel.dylib",
        uuid=UUID("a5d3b725-78c3-3e19-a765-cceb22355093"),
        arch="arm64e",
        load_address=Avma(0x1_8000_0000),
        size=0x10_0000,
    ),
    ReportedImage(
        name="Kit",
        path="/var/containers/Bundle/Application/1/Demo.app/Frameworks/Kit.framework/Kit",
        uuid=UUID("3f3cbf47-8f40-3f3a-ae6d-bb9f4a4ad0fd"),
        arch="arm64",
        load_address=Avma(0x1_1000_0000),
        size=0x10_0000,
    ),
)
"""The app, the system, and a framework of the app's."""
_APP, _SYSTEM, _KIT = range(3)


def made_frame(
    name: str,
    *,
    offset: int = 0x1000,
    line: int | None = None,
    is_inline: bool = False,
    details: dict[str, JsonValue] | None = None,
) -> ReportedFrame:
    """Return a frame; ``kit:`` and ``system:`` before the name say where, else it is the app's.

    An empty name is none.
    """
    where, colon, rest = name.partition(":")
    image = {"kit": _KIT, "system": _SYSTEM}.get(where if colon else "", _APP)
    known = rest if image != _APP else name
    return ReportedFrame(
        Avma((IMAGES[image].load_address or 0) + offset),
        image,
        ImageOffset(offset),
        Adjustment.RETURN,
        ReportedSymbol(known, 8) if known else None,
        None if line is None else SourceLocation("/src/demo.c", line),
        is_inline=is_inline,
        details=details or {},
    )


def made_thread(
    index: int,
    names: Sequence[str],
    *,
    crashed: bool = False,
    queue: str | None = None,
    details: dict[str, JsonValue] | None = None,
) -> ReportedThread:
    """Return a thread with frames of these names, innermost first; its id is 256 and its number."""
    return ReportedThread(
        index=index,
        id=0x100 + index,
        queue=queue,
        crashed=crashed,
        frames=tuple(made_frame(name) for name in names),
        details=details or {},
    )


def made_tree(
    nodes: Sequence[tuple[int | None, int, str]],
    *,
    thread: int | None = None,
    queue: str | None = None,
    notes: dict[int, str] | None = None,
) -> SampledTree:
    """A tree of rows (parent, samples, name); ``notes`` are said of nodes by their numbers."""
    said = notes or {}
    return SampledTree(
        nodes=tuple(
            SampledNode(
                parent,
                samples,
                made_frame(name, details={"samples": said[at]} if at in said else None),
            )
            for at, (parent, samples, name) in enumerate(nodes)
        ),
        thread=thread,
        queue=queue,
    )


def made_report(
    *threads: ReportedThread,
    trees: Sequence[SampledTree] = (),
    exception: str | None = "EXC_CRASH",
    version: str = "1.0",
) -> Report:
    """Return a report of these stacks."""
    return Report(
        kind=ReportKind.APPLE_IPS,
        process=ReportedProcess(name="Demo", pid=42, path=PROGRAM, version=version),
        exception=None if exception is None else ReportedException(type=exception),
        threads=threads,
        trees=tuple(trees),
        images=IMAGES,
    )


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
    state: ThreadState | None = None
    """Of each."""
    cpu_ns: int = UNKNOWN
    """Of each."""


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
    """Return a frame in :data:`IMAGE`.

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
    """Return a profile of these samples, a tick each 10 milliseconds for each thread on its own.

    Args:
        seen: in the order of time.
        names: of the threads, by their number; the first is the main thread.
    """
    frames: dict[ProfileFrame, int] = {}
    rows: dict[tuple[int, int], int] = {}
    callers, places = array("i"), array("i")
    times, threads, stacks = array("q"), array("i"), array("i")
    states, cpu_ns = array("b"), array("q")
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
            states.append(UNKNOWN if one.state is None else STATES.index(one.state))
            cpu_ns.append(one.cpu_ns)
            ticks[one.thread] += 1
    weights = array("q", [1]) * len(times)
    samples = SampleTable(times, threads, stacks, weights, states, cpu_ns)
    return Profile(
        process=ProcessInfo(pid=42, path=IMAGE.path, arch=Arch.ARM64),
        images=(IMAGE,),
        threads=with_activity(
            [
                SampledThread(
                    info=ThreadInfo(
                        id=ThreadId(259 + number), index=1 + number, name=name, is_main=not number
                    ),
                    samples=ticks[number],
                    stopped_ns=ticks[number] * MILLISECOND // 10,
                    longest_stop_ns=MILLISECOND // 10,
                )
                for number, name in enumerate(names)
            ],
            samples,
        ),
        frames=tuple(frames),
        stacks=StackTable(callers, places),
        samples=samples,
        run=SamplingRun(
            started_at_ns=1_700_000_000_000_000_000,
            duration_ns=max(1, 10 * MILLISECOND * max(ticks, default=0)),
            interval_ns=10 * MILLISECOND,
            ticks=max(ticks, default=0),
            lost=3,
            end=SamplingEnd.DURATION,
        ),
    )
