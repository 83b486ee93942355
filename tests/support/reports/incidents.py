"""An incident of each kind, with stacks, as a watcher builds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.capture import Capture
from machtrace.model.image import BinaryImage, BuildId, ImageFormat, ImageList
from machtrace.model.incident.facts import (
    AppliedRule,
    Culprit,
    HostLoad,
    IncidentKind,
    LockOwner,
    SeriesPoint,
    TimedStack,
    TimeRange,
    Verdict,
    VerdictCertainty,
    WaitsFor,
    WatchedThread,
    WatcherCost,
    WatchIncident,
)
from machtrace.model.snapshot import ProcessInfo, ThreadId, ThreadInfo
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust, Stop, StopReason
from machtrace.model.symbol import (
    CallStack,
    Certainty,
    Frame,
    FrameStatus,
    PythonFrame,
    SourceLocation,
    Symbol,
)

PID, WORKER = 4711, 4712
SECOND, MILLISECOND = 1_000_000_000, 1_000_000
SEEN = 90_000 * SECOND
APP = BinaryImage(
    path="/srv/app/server",
    uuid=BuildId(bytes.fromhex("0123456789abcdef0123456789abcdef01234567")),
    arch=Arch.X86_64,
    format=ImageFormat.ELF,
    load_address=Avma(0x5500_0000_0000),
    header_svma=Svma(0),
    size=0x10_0000,
)
LIBC = replace(
    APP,
    path="/usr/lib/libc.so.6",
    uuid=BuildId(bytes.fromhex("fedcba9876543210fedcba9876543210fedcba98")),
    load_address=Avma(0x7F00_0000_0000),
)
_OFFSETS = {
    "main": 0x1000,
    "serve": 0x2000,
    "handle": 0x3000,
    "parse": 0x4000,
    "lex": 0x5000,
    "__futex_wait": 0x9000,
    "clock_nanosleep": 0xA000,
}
OF_LIBC = frozenset({"__futex_wait", "clock_nanosleep"})


def frame(name: str, *, is_first: bool = False) -> Frame:
    """Return a frame of a function."""
    image = LIBC if name in OF_LIBC else APP
    offset = _OFFSETS[name]
    kind = AddressKind.PROGRAM_COUNTER if is_first else AddressKind.RETURN_ADDRESS
    trust = FrameTrust.CONTEXT if is_first else FrameTrust.CFI
    return Frame(
        address=FrameAddress(Avma(image.load_address + offset + 0x24), trust, kind),
        status=FrameStatus.SYMBOLICATED,
        image=image,
        symbol=Symbol(
            name=name,
            linkage_name=name,
            offset=ImageOffset(offset),
            size=0x100,
            certainty=Certainty.EXACT,
        ),
        location=None if image is LIBC else SourceLocation(f"/src/{name}.c", 41),
    )


def python_frame(name: str, path: str, line: int) -> Frame:
    """Return an interpreter's frame that runs a Python function."""
    function = PythonFrame(name, SourceLocation(path, line))
    return replace(frame("serve"), python=(function,))


def stack(names: Sequence[str], thread: int = PID) -> CallStack:
    """Return a thread's stack, innermost first."""
    is_main = thread == PID
    return CallStack(
        thread=ThreadInfo(
            id=ThreadId(thread),
            index=thread - PID + 1,
            name="server" if is_main else "worker",
            is_main=is_main,
        ),
        frames=tuple(frame(name, is_first=not at) for at, name in enumerate(names)),
        stop=Stop(StopReason.ROOT),
    )


BLOCKED = ("__futex_wait", "handle", "serve", "main")
CAPTURE = Capture(
    process=ProcessInfo(pid=PID, path=APP.path, arch=Arch.X86_64),
    images=ImageList([APP, LIBC]),
    stacks=(stack(BLOCKED), stack(("clock_nanosleep", "main"), WORKER)),
)
SERIES = tuple(
    SeriesPoint(
        at_ns=SEEN - (59 - second) * SECOND,
        cpu_share=None if second == 7 else (0.02 if second < 58 else 0.0),
        resident=(100 + second) << 20,
        state="idle" if second < 58 else "blocked",
    )
    for second in range(60)
)

HANG = WatchIncident(
    id="4711-1",
    kind=IncidentKind.HANG,
    certainty=VerdictCertainty.CERTAIN,
    began=TimeRange(SEEN - 270 * MILLISECOND, SEEN - 250 * MILLISECOND),
    seen_ns=SEEN,
    seen_wall_ns=1_795_408_212_340_000_000,
    pid=PID,
    verdict=Verdict.BLOCKED,
    threshold="250ms",
    thread=WatchedThread(PID, "server", is_main=True),
    duration_ns=260 * MILLISECOND,
    evidence={"voluntary_switches": 0, "involuntary_switches": 0, "run_ns": 0, "same_call": True},
    culprit=Culprit("handle", "server", "/src/handle.c", 41, 0.98),
    waits_for=WaitsFor("mutex", Avma(0x5500_0020_0040), LockOwner(PID, WORKER, recorded=True)),
    stacks=tuple(
        TimedStack(SEEN - 100 * MILLISECOND + at * 40 * MILLISECOND, weight * MILLISECOND, taken)
        for at, (weight, taken) in enumerate(
            ((160, stack(BLOCKED)), (40, stack(("parse", "serve", "main"))), (40, stack(BLOCKED)))
        )
    ),
    representative=0,
    capture=CAPTURE,
    host=HostLoad(2, 1.25, 3.0, 0.0, None),
    series=SERIES,
    cost=WatcherCost(
        polls=4_500,
        late_polls=2,
        latest_ns=31 * MILLISECOND,
        cpu_ns=13 * MILLISECOND,
        stops=0,
        stopped_ns=0,
    ),
    rules=(AppliedRule("launch-grace", "the first 5 s after the start do not count"),),
    missing=("the registers of thread 4712: it exited",),
)
ENDED = replace(
    HANG,
    ended=TimeRange(SEEN + 2_940 * MILLISECOND, SEEN + 2_960 * MILLISECOND),
    duration_ns=3_210 * MILLISECOND,
)
DEADLOCK = replace(
    HANG,
    kind=IncidentKind.DEADLOCK,
    verdict=None,
    cycle=(WatchedThread(PID, "server", is_main=True), WatchedThread(WORKER, "worker")),
    stacks=(),
    representative=None,
    culprit=None,
)
MEMORY = replace(
    HANG,
    kind=IncidentKind.MEMORY,
    verdict=None,
    threshold="+100MiB/1s",
    waits_for=None,
    capture=None,
    evidence={"resident_bytes": 400 << 20, "jump_bytes": 300 << 20, "wall_ns": SECOND},
)
EVERY_KIND = {"hang": HANG, "ended": ENDED, "deadlock": DEADLOCK, "memory": MEMORY}
