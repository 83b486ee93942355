"""Captures and profiles of any content, for tests of what writes and reads them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from machtrace.errors import MachtraceError
from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.capture import Capture
from machtrace.model.cause import linux_cause, mach_cause
from machtrace.model.image import BinaryImage, BuildId, ImageFormat, ImageList
from machtrace.model.profile import UNKNOWN, MissingFrames
from machtrace.model.snapshot import Problem, ProcessInfo, ThreadId, ThreadInfo, ThreadState
from machtrace.model.stack import (
    AddressKind,
    Dispute,
    FrameAddress,
    FrameTrust,
    Gap,
    Stop,
    StopReason,
)
from machtrace.model.symbol import (
    CallStack,
    Certainty,
    Frame,
    FrameChain,
    FrameStatus,
    InlineFrame,
    PythonFrame,
    SourceLocation,
    Symbol,
    unnamed,
)
from tests.support.reports.models import Seen, profile

NAMES = (
    *("main", "-[Foo bar:baz:]", "a::operator+(int, b) const", "f<int, g<1> >(h [2])"),
    *("start + 4", "name at night", "[unknown]", "?", "run  at x", "größe"),
)
PATHS = ("/src/read.c", "/src/kit/mod.rs", "kit.swift")
PYTHON_PATHS = ("/usr/lib/python3.11/json/__init__.py", "/app/job.py")
IMAGES = tuple(
    BinaryImage(
        path=path,
        uuid=BuildId(bytes.fromhex("a7516ae81afc8457cbb59039c47cb6428c978064")[number:]),
        arch=Arch.X86_64,
        format=ImageFormat.ELF,
        load_address=Avma((number + 1) << 32),
        header_svma=Svma(0),
        size=0x10000,
    )
    for number, path in enumerate(
        (
            "/usr/bin/app",
            "/opt/My App (2)",
            "/lib/libsomething-with-a-very-long-name.so.1.2.3",
        )
    )
)
_LOCATIONS = st.builds(SourceLocation, st.sampled_from(PATHS), st.none() | st.integers(1, 99_999))
_CALLS = st.builds(InlineFrame, st.sampled_from(NAMES), st.none() | _LOCATIONS)
_LINES = st.builds(SourceLocation, st.sampled_from(PATHS), st.integers(1, 999))
_CALLS_WITH_LINES = st.builds(InlineFrame, st.sampled_from(NAMES), st.none() | _LINES)
_PYTHON = st.builds(
    PythonFrame,
    st.sampled_from(("work", "A.run.<locals>.f")),
    st.builds(SourceLocation, st.sampled_from(PYTHON_PATHS), st.integers(1, 999)),
)
_METHODS = st.sampled_from([one for one in FrameTrust if one is not FrameTrust.CONTEXT])
_ADDRESSES = st.integers(0x1000, 0xFFFF_FFFF_FFF).map(Avma)
_DISPUTES = st.builds(Dispute, _METHODS, st.none() | _ADDRESSES)


@st.composite
def frames(draw: st.DrawFn, *, is_first: bool = False, has_lines: bool = False) -> Frame:
    """Return a frame: in an image or none, named or not, with what is inlined and interpreted."""
    image = draw(st.none() | st.sampled_from(IMAGES))
    start = draw(st.integers(0x100, 0x8000))
    offset = start + draw(st.integers(1, 0x400))
    address = Avma(offset if image is None else image.load_address + offset)
    symbol, status = None, FrameStatus.UNKNOWN_IMAGE
    if image is not None:
        certainty = draw(st.sampled_from(Certainty))
        status = FrameStatus.SYMBOLICATED
        symbol = Symbol(
            name=draw(st.sampled_from(NAMES)),
            linkage_name="",
            offset=ImageOffset(start),
            size=None,
            certainty=certainty,
        )
        if certainty is Certainty.NONE:
            status = draw(st.sampled_from((FrameStatus.MISSING_SYMBOL, FrameStatus.MISSING_FILE)))
            symbol = draw(st.none() | st.just(unnamed(ImageOffset(start), None)))
    trust, kind = FrameTrust.CONTEXT, AddressKind.PROGRAM_COUNTER
    if not is_first:
        trust = draw(_METHODS)
        kind = draw(st.sampled_from((AddressKind.PROGRAM_COUNTER, AddressKind.RETURN_ADDRESS)))
        if trust is FrameTrust.ASYNC:
            kind = AddressKind.ASYNC_RESUME
    disputes = () if is_first else tuple(draw(st.lists(_DISPUTES, max_size=2)))
    return Frame(
        address=FrameAddress(address, trust, kind, disputes),
        status=status,
        image=image,
        symbol=symbol,
        location=draw(st.none() | (_LINES if has_lines else _LOCATIONS)) if symbol else None,
        inlined=tuple(draw(st.lists(_CALLS_WITH_LINES if has_lines else _CALLS, max_size=2)))
        if symbol
        else (),
        python=tuple(draw(st.lists(_PYTHON, max_size=2)) * draw(st.sampled_from((1, 1, 3)))),
    )


_STOPS = st.sampled_from(StopReason).flatmap(
    lambda reason: st.builds(
        Stop, st.just(reason), st.none() if reason is StopReason.ROOT else st.none() | _ADDRESSES
    )
)


@st.composite
def chains(draw: st.DrawFn, *, has_first: bool = True, has_lines: bool = False) -> dict[str, Any]:
    """Return the frames of a stack with recursion, its gap, and why it ends."""
    first = [draw(frames(is_first=True, has_lines=has_lines))] if has_first else []
    frame = frames(has_lines=has_lines)
    others = draw(st.lists(st.tuples(frame, st.sampled_from((1, 1, 1, 3, 6))), max_size=4))
    every = (*first, *(frame for frame, count in others for _ in range(count)))
    gap = None
    if len(every) > 2 and draw(st.booleans()):
        gap = Gap(draw(st.integers(1, len(every) - 1)), draw(st.sampled_from((1, 99_494))))
    return {"frames": every, "stop": draw(_STOPS), "gap": gap}


_CAUSES = st.sampled_from(
    (
        None,
        linux_cause(11, 1, 0x10),
        linux_cause(11, 0x80),
        linux_cause(6, -6, None, 4711, 1000),
        linux_cause(19),
        linux_cause(40, 1),
        mach_cause(1, (1, 0x20), Arch.ARM64),
        mach_cause(6, (1, 0), Arch.ARM64),
        mach_cause(5, (), Arch.X86_64),
    )
)


@st.composite
def captures(draw: st.DrawFn, *, has_lines: bool = False) -> Capture:
    """Return a capture of a few threads; ``has_lines``: locations have them."""
    stacks = []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        crashed = number == 1 and draw(st.booleans())
        remainder = None
        if draw(st.booleans()):
            remainder = FrameChain(**draw(chains(has_first=False)))
        registers = (("rip", 0x10010), ("rsp", 0x7FFF_0000_0000), ("cr2", 8)) if crashed else ()
        stacks.append(
            CallStack(
                thread=ThreadInfo(
                    id=ThreadId(1000 + number),
                    index=number,
                    name=draw(st.sampled_from((None, "worker", "a  id 5  crashed", "“q”"))),
                    queue=draw(st.sampled_from((None, "com.apple.main-thread"))),
                    crashed=crashed,
                    cause=draw(_CAUSES),
                ),
                stopped_for_ns=draw(st.sampled_from((None, 37_500, 1_700_000))),
                physical_remainder=remainder,
                registers=registers,
                overflowed_stack=draw(st.sampled_from((None, Avma(0x7000)))),
                **draw(chains(has_lines=has_lines)),
            )
        )
    return Capture(
        process=ProcessInfo(
            pid=draw(st.sampled_from((None, 42))),
            path=draw(st.sampled_from((IMAGES[0].path, ""))),
            arch=Arch.X86_64,
        ),
        images=ImageList(IMAGES),
        stacks=tuple(stacks),
        problems=(Problem(thread=None, error=MachtraceError("the file is damaged")),),
    )


_PROFILE_FRAMES = st.sampled_from(MissingFrames) | frames()


@st.composite
def profiles(draw: st.DrawFn) -> Any:
    """Return a profile of two threads."""
    stack = st.lists(_PROFILE_FRAMES, max_size=4)
    known = draw(st.lists(stack, min_size=1, max_size=4))
    states: st.SearchStrategy[ThreadState | None] = st.none()
    times = st.just(UNKNOWN)
    if draw(st.booleans()):
        states, times = st.sampled_from([None, *ThreadState]), st.integers(UNKNOWN, 1 << 40)
    seen = draw(
        st.lists(
            st.builds(
                Seen, st.integers(0, 1), st.sampled_from(known), st.integers(1, 9), states, times
            ),
            max_size=6,
        )
    )
    return profile(seen, names=("main", None))
