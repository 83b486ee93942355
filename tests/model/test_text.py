"""Stacks, snapshots, profiles and reports as text: str() for people, repr() in one short line."""

from __future__ import annotations

from array import array
from dataclasses import replace
from uuid import UUID

import pytest

from machtrace.errors import MachtraceError
from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.capture import Capture
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion
from machtrace.model.profile import (
    MissingFrames,
    Profile,
    SampledThread,
    SampleTable,
    SamplingEnd,
    SamplingRun,
    StackTable,
)
from machtrace.model.registers import RegisterSet
from machtrace.model.report import (
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
from machtrace.model.snapshot import (
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.model.stack import (
    AddressChain,
    AddressKind,
    Backtrace,
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
)
from machtrace.model.text import COLOUR, FrameText, Row, chain_lines

IMAGE = BinaryImage(
    path="/usr/lib/libdemo.so",
    uuid=UUID(int=0xD5BD0E97),
    arch=Arch.ARM64,
    format=ImageFormat.MACHO,
    load_address=Avma(0x1_0200_0000),
    header_svma=Svma(0),
    size=0x10000,
)
THREAD = ThreadInfo(id=ThreadId(259), index=1, name="ma\x1bin", queue="com.example.q")
PROCESS = ProcessInfo(pid=42, path="/bin/demo", arch=Arch.ARM64)
SYMBOL = Symbol(
    name="work(int)",
    linkage_name="_Z4worki",
    offset=ImageOffset(0x100),
    size=0x40,
    certainty=Certainty.EXPORT,
)
PC = FrameAddress(Avma(0x1_0200_0104), FrameTrust.CONTEXT, AddressKind.PROGRAM_COUNTER)
CALLER = FrameAddress(
    Avma(0x1_0200_0208),
    FrameTrust.FRAME_POINTER,
    AddressKind.RETURN_ADDRESS,
    (Dispute(FrameTrust.CFI, None),),
)
NOWHERE = FrameAddress(Avma(0x10), FrameTrust.SCAN, AddressKind.RETURN_ADDRESS)
NAMED = Frame(
    address=PC,
    status=FrameStatus.SYMBOLICATED,
    image=IMAGE,
    symbol=SYMBOL,
    location=SourceLocation("/src/demo/work.cpp", 7, 3),
    inlined=(InlineFrame("helper", SourceLocation("/src/demo/__init__.py", 3)),),
    python=(PythonFrame("main", SourceLocation("/app/main.py", 9)),),
)
NAMELESS = Frame(address=CALLER, status=FrameStatus.MISSING_SYMBOL, image=IMAGE)
STACK = CallStack(
    thread=THREAD,
    frames=(NAMED, NAMELESS),
    stop=Stop(StopReason.UNREADABLE, Avma(0x16F000000)),
    stopped_for_ns=18_400,
)
SNAPSHOT = Snapshot(
    process=PROCESS,
    threads=(
        ThreadSnapshot(
            info=THREAD,
            registers=RegisterSet.of(Arch.ARM64, pc=0, sp=0),
            stack=MemoryRegion(Avma(0x16F000000), bytes(2048)),
            stopped_for_ns=2_000_000,
        ),
    ),
    images=ImageList([IMAGE]),
    problems=(Problem(thread=ThreadId(7), error=MachtraceError("unreadable")),),
)
BACKTRACE = Backtrace(
    addresses=(PC, CALLER, NOWHERE),
    stop=Stop(StopReason.ROOT),
    thread=SNAPSHOT.threads[0],
    snapshot=SNAPSHOT,
)
PROFILE = Profile(
    process=PROCESS,
    images=(IMAGE,),
    threads=(SampledThread(info=THREAD, samples=4, stopped_ns=None, longest_stop_ns=None),),
    frames=(NAMED, NAMELESS, MissingFrames.LEFT_OUT),
    stacks=StackTable(array("i", [-1, 0, 1]), array("i", [1, 0, 2])),
    samples=SampleTable(
        array("q", [0, 1]), array("i", [0, 0]), array("i", [1, 0]), array("i", [3, 1])
    ),
    run=SamplingRun(
        started_at_ns=0,
        duration_ns=2_000_000_000,
        interval_ns=10_000_000,
        ticks=4,
        lost=1,
        end=SamplingEnd.DURATION,
    ),
)
REPORT = Report(
    kind=ReportKind.APPLE_CRASH,
    process=ReportedProcess(name="Demo", pid=9, version="1.2"),
    exception=ReportedException(type="EXC_CRASH", signal="SIGABRT"),
    threads=(
        ReportedThread(
            index=0,
            name="main",
            crashed=True,
            frames=(
                ReportedFrame(Avma(0x1000), 0, ImageOffset(0), symbol=ReportedSymbol("f", 4)),
                ReportedFrame(Avma(0x1020), 0, ImageOffset(0x20)),
                ReportedFrame(None, None, None),
            ),
        ),
    ),
    trees=(SampledTree(nodes=(SampledNode(None, 3, ReportedFrame(None, None, None)),), count=3),),
    images=(ReportedImage(name="Demo"),),
)


def test_a_call_stack_is_what_the_command_prints():
    assert str(STACK).splitlines() == [
        r"Thread 1  “ma\x1bin”  id 259  queue com.example.q  stopped for 18.4 µs",
        "   0  libdemo.so  0x0000000102000104  helper  at demo/__init__.py:3  [inlined]",
        "   0  Python                          main  at main.py:9",
        "   0  libdemo.so  0x0000000102000104  work(int) + 4  at work.cpp:7  [export]",
        (
            "   1  libdemo.so  0x0000000102000208  ? (image + 0x208)"
            "  [frame pointer, but cfi finds no caller]"
        ),
        "     incomplete: the next frame's memory was not captured at 0x16f000000",
    ]


def test_a_backtrace_has_images_and_offsets():
    assert str(BACKTRACE).splitlines()[1:] == [
        "   0  libdemo.so  0x0000000102000104  ? (image + 0x104)",
        (
            "   1  libdemo.so  0x0000000102000208  ? (image + 0x208)"
            "  [frame pointer, but cfi finds no caller]"
        ),
        "   2  ???         0x0000000000000010  ?  [scan]",
    ]


def test_machine_frames_of_a_task_come_last():
    rest = FrameChain(frames=(NAMELESS,), stop=Stop(StopReason.ROOT))
    lines = str(replace(STACK, physical_remainder=rest)).splitlines()
    assert lines[-2] == "     the machine frames that ran it:"
    chain = AddressChain(addresses=(NOWHERE,), stop=Stop(StopReason.ROOT))
    lines = str(replace(BACKTRACE, physical_remainder=chain)).splitlines()
    assert lines[-2:] == [
        "     the machine frames that ran it:",
        "   0  ???  0x00000010  ?  [scan]",
    ]


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (Gap(after=1, count=1200), ["0", "…", "1201"]),
        (Gap(after=2, count=1), ["0", "1", "…"]),
    ],
)
def test_frames_after_a_gap_keep_their_numbers(gap: Gap, expected: list[str]):
    chain = AddressChain(addresses=(PC, CALLER), stop=Stop(StopReason.ROOT), gap=gap)
    assert [line.split()[0] for line in str(chain).splitlines()] == expected
    assert chain.depth == 2 + gap.count


def test_details_follow_their_frames_and_prevent_folding():
    frame = FrameText((Row("a", 16, "f"),), "same")
    folded = list(chain_lines([(0, [frame] * 5)]))
    detailed = list(chain_lines([(0, [frame] * 5)], details=[("why",)] * 5, style=COLOUR))
    assert len(folded) == 2
    assert detailed[1::2] == ["\x1b[2mwhy\x1b[0m"] * 5


def test_a_frame_is_its_own_lines():
    assert str(NAMED).splitlines()[-1] == (
        "libdemo.so  0x0000000102000104  work(int) + 4  at work.cpp:7  [export]"
    )
    assert str(NAMED.location) == "/src/demo/work.cpp:7:3"
    assert str(SYMBOL) == "work(int)"


def test_a_capture_has_the_process_and_all_stacks():
    capture = Capture(process=PROCESS, images=SNAPSHOT.images, stacks=(STACK, STACK))
    heading, *stacks = str(capture).split("\n\n")
    assert heading == "demo [42]  arm64  2 threads  1 image"
    assert stacks == [str(STACK), str(STACK)]


def test_a_snapshot_lists_threads_and_problems():
    assert str(SNAPSHOT).splitlines() == [
        "demo [42]  arm64  1 thread, 1 image, 1 problem",
        (
            r"  Thread 1  “ma\x1bin”  id 259  queue com.example.q  stopped for 2.0 ms"
            "  2,048 bytes of stack"
        ),
        "  thread 7: unreadable",
    ]


def test_a_profile_counts_samples_by_innermost_function():
    assert str(PROFILE).splitlines() == [
        "demo [42]  arm64  4 ticks in 2.0 s, 1 lost",
        "",
        r"Thread 1  “ma\x1bin”  id 259  queue com.example.q  4 samples",
        "",
        "Samples by innermost function:",
        "       3   75.0%  libdemo.so  work(int)",
        "       1   25.0%  libdemo.so  ? (image + 0x208)",
    ]


def test_a_report_has_its_cause_and_its_threads():
    assert str(REPORT).splitlines() == [
        "Report: crash",
        "Exception: EXC_CRASH  SIGABRT",
        "Process: Demo [9]  1.2",
        "",
        "Thread 0  “main”  crashed",
        "   0  Demo  0x00001000  f + 4",
        "   1  Demo  0x00001020  ? (image + 0x20)",
        "   2  ???               ?",
        "",
        "Sampled stacks  1 frame  3 samples",
    ]


def test_images_are_listed_as_in_apple_s_reports():
    assert str(SNAPSHOT.images) == (
        "0x102000000 - 0x10200ffff  libdemo.so  arm64"
        "  <00000000-0000-0000-0000-0000D5BD0E97>  /usr/lib/libdemo.so"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            STACK,
            (
                r"<CallStack of thread 1, ma\x1bin [259]: 2 frames, incomplete: "
                "the next frame's memory was not captured at 0x16f000000>"
            ),
        ),
        (BACKTRACE, r"<Backtrace of thread 1, ma\x1bin [259]: 3 frames, complete>"),
        (FrameChain(frames=(), stop=STACK.stop), None),
        (NAMED, "<Frame 0x102000104 work(int) + 4 in libdemo.so>"),
        (CALLER, "<FrameAddress 0x102000208 return by fp>"),
        (SNAPSHOT, "<Snapshot of demo 42 (arm64): 1 thread, 1 image, 1 problem>"),
        (
            SNAPSHOT.threads[0],
            r"<ThreadSnapshot of thread 1, ma\x1bin [259]: 2,048 bytes of stack>",
        ),
        (SNAPSHOT.images, "<ImageList: 1 image>"),
        (IMAGE, None),
        (PROFILE, "<Profile of demo [42], arm64: 1 thread, 4 ticks in 2.0 s, 1 lost>"),
        (PROFILE.stacks, "<StackTable: 3 rows>"),
        (REPORT, "<Report of Demo [9] 1.2: 1 thread, 1 tree, 1 image>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_repr_is_one_short_line(value: object, expected: str | None):
    assert "\n" not in repr(value)
    assert len(repr(value)) < 140
    if expected is not None:
        assert repr(value) == expected
