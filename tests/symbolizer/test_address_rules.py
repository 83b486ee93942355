"""The lookup address of each kind of address, checked on programs whose source lines are known."""

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import pytest

import machtrace as mt
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import RegionMemory
from machtrace.model.snapshot import ProcessInfo, Snapshot
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust
from machtrace.symbolizer.symbolicator import Symbolicator
from tests.support.compilers.debug_programs import DSYMUTIL, line_of, make_dsym
from tests.support.compilers.executables import compile_macho
from tests.support.emulated.run import EmulatedRun

LIVE_C = """\
#include <signal.h>
#include <unistd.h>

volatile int sink;

static void on_signal(int number) {
  write(1, "handled\\n", 8);
  for (;;)
    pause(); // PAUSE
}

__attribute__((noinline, noreturn)) void stay(void) { for (;;) sink++; } // STAY

__attribute__((noinline)) int last(int n) {
  sink = n;
  stay(); // LAST
}

__attribute__((noinline)) int other(int n) {
  return n + sink; // OTHER
}

static inline __attribute__((always_inline)) int inlined(int n) {
  sink = last(n); // INLINED
  return 7;
}

__attribute__((noinline)) int block(int n) {
  if (n)
    sink = inlined(n); // CALL
  sink = other(3); // AFTER
  return sink;
}

int main(int count, char **words) {
  signal(SIGUSR1, on_signal);
  write(1, "ready\\n", 6);
  return block(count); // MAIN
}
"""
"""``last`` ends with its call: what that would return to is another function. All of ``stay`` is on
one line: which of its instructions is next is up to the moment of the capture."""

EMULATED_C = """\
volatile int sink;

__attribute__((noinline)) void leaf(int n) {
  sink = n;
  sink = n + 1;
}

static inline __attribute__((always_inline)) void twice(int n) {
  leaf(n); // FIRST
  leaf(n + 1); // SECOND
}

__attribute__((noinline)) int middle(int n) {
  sink = 5;
  twice(n); // TWICE
  sink = 6;
  return sink;
}

int main(void) {
  int result = middle(1); // CALL
  result += sink;
  return result;
}
"""
LIVE = {
    mark: line_of(LIVE_C, mark)
    for mark in ("PAUSE", "STAY", "LAST", "OTHER", "INLINED", "CALL", "AFTER", "MAIN")
}
CHAIN = [
    ("last", LIVE["LAST"], ()),
    ("block", LIVE["CALL"], (("inlined", LIVE["INLINED"]),)),
    ("main", LIVE["MAIN"], ()),
]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs a Linux process")


def lines(frames):
    """Return names and lines of frames, with inlined calls in each."""
    return [
        (
            frame.symbol.name,
            frame.location.line,
            tuple((call.name, call.location.line) for call in frame.inlined),
        )
        for frame in frames
        if frame.symbol is not None and frame.location is not None
    ]


def own(stack):
    """Return the frames of the program itself, not of its libraries, from ``stay`` on."""
    return [frame for frame in stack.frames if frame.image and frame.image.name == "lines"]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program, compiled for this machine."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("lines")
    source, output = folder / "lines.c", folder / "lines"
    source.write_text(LIVE_C)
    subprocess.run(
        [compiler, "-g", "-O1", "-fno-optimize-sibling-calls", source, "-o", output], check=True
    )
    return output


@pytest.fixture
def process(program):
    """The running program, which is in ``stay`` or about to be."""
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "ready\n"
        yield running
        running.kill()


def stack_in_stay(process):
    """Return its stack once it is in ``stay``."""
    while True:
        snapshot = mt.snapshot(process.pid)
        (walked,) = mt.unwind(snapshot)
        stack = Symbolicator().symbolicate(walked)
        if stack.frames[0].symbol is not None and stack.frames[0].symbol.name == "stay":
            return snapshot, stack


def own_frames_on(process, line):
    """Return its own frames once the innermost is on ``line``: it prints before that."""
    while True:
        (stack,) = mt.backtraces(process.pid)
        frames = own(stack)
        if frames[0].location is not None and frames[0].location.line == line:
            return frames


@pytest.mark.live
@on_linux
def test_callers_are_on_the_lines_of_their_calls(process):
    """Return addresses are of the next line, of another block, or of another function."""
    _, stack = stack_in_stay(process)

    assert lines(own(stack))[:4] == [("stay", LIVE["STAY"], ()), *CHAIN]


@pytest.mark.live
@on_linux
def test_a_saved_core_has_the_same_lines(process, tmp_path):
    snapshot, stack = stack_in_stay(process)
    mt.save_snapshot(snapshot, tmp_path / "lines.core")
    (saved,) = mt.backtraces(tmp_path / "lines.core")

    assert lines(own(saved)) == lines(own(stack))


@pytest.mark.live
@on_linux
def test_a_frame_interrupted_by_a_signal_has_its_own_line(process):
    """The address above the trampoline is an instruction that had not run, not a return address."""
    stack_in_stay(process)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "handled\n"
    frames = own_frames_on(process, LIVE["PAUSE"])
    interrupted = next(frame for frame in frames if frame.symbol.name == "stay")
    assert interrupted.address.kind is AddressKind.PROGRAM_COUNTER
    assert lines(frames)[:5] == [
        ("on_signal", LIVE["PAUSE"], ()),
        ("stay", LIVE["STAY"], ()),
        *CHAIN,
    ]


@pytest.mark.live
@on_linux
def test_a_return_address_has_the_calls_line_and_a_pc_its_own(process):
    snapshot, stack = stack_in_stay(process)
    block = next(frame for frame in own(stack) if frame.symbol.name == "block").address.address
    symbolicator = Symbolicator()

    def line(address, kind):
        given = FrameAddress(Avma(address), FrameTrust.PREWALKED, kind)
        (only,) = lines([symbolicator.frame(given, snapshot)])
        return only

    call = ("block", LIVE["CALL"], (("inlined", LIVE["INLINED"]),))
    assert line(block, AddressKind.RETURN_ADDRESS) == call
    assert line(block - 1, AddressKind.ADJUSTED) == call
    for kind in (AddressKind.PROGRAM_COUNTER, AddressKind.ASYNC_RESUME, AddressKind.ADJUSTED):
        assert line(block, kind) != line(block, AddressKind.RETURN_ADDRESS)


@pytest.mark.live
@on_linux
def test_a_call_that_never_returns_is_not_named_after_the_next_function(process):
    """The address after the last call of ``last`` is the first of ``other``."""
    snapshot, stack = stack_in_stay(process)
    last = next(frame for frame in own(stack) if frame.symbol.name == "last").address
    at_itself = replace(last, kind=AddressKind.PROGRAM_COUNTER)

    named = Symbolicator().frame(at_itself, snapshot)

    assert last.kind is AddressKind.RETURN_ADDRESS
    assert named.symbol is None or named.symbol.name != "last"


@pytest.mark.emulated
@pytest.mark.peer
@pytest.mark.skipif(DSYMUTIL is None, reason="dsymutil is not installed")
@pytest.mark.parametrize("arch", [Arch.ARM64, Arch.X86_64])
def test_every_true_stack_of_a_macho_program_is_on_lines_of_calls(arch, tmp_path):
    """A run in the emulator records the true stack at every instruction."""
    source, output = tmp_path / "lines.c", tmp_path / "lines"
    source.write_text(EMULATED_C)
    compile_macho(
        [source], output, arch=arch, options=("-g", "-O1"), link_options=("-Wl,-e,_main",)
    )
    make_dsym(output)
    contents = MachOFileContents(output.read_bytes(), str(output))
    text = contents.image.text_segment
    image = BinaryImage(
        path=str(output),
        uuid=contents.image.uuid,
        arch=arch,
        format=ImageFormat.MACHO,
        load_address=Avma(text.vmaddr),
        header_svma=text.vmaddr,
        size=text.vmsize,
    )
    assert isinstance(image.uuid, UUID)
    snapshot = Snapshot(
        process=ProcessInfo(pid=None, path=str(output), arch=arch),
        threads=(),
        images=ImageList([image]),
        memory=RegionMemory(),
    )
    stacks = set()
    EmulatedRun(contents).run(lambda moment: stacks.add(moment.addresses), limit=10_000)

    symbolicator = Symbolicator()
    twice = line_of(EMULATED_C, "TWICE")
    calls = {
        ("leaf", "middle"): [
            (twice, (("twice", line_of(EMULATED_C, mark)),)) for mark in ("FIRST", "SECOND")
        ],
        ("middle", "main"): [(line_of(EMULATED_C, "CALL"), ())],
    }
    seen = set()
    for stack in stacks:
        kinds = [AddressKind.PROGRAM_COUNTER, *[AddressKind.RETURN_ADDRESS] * (len(stack) - 1)]
        frames = lines(
            symbolicator.frame(FrameAddress(Avma(address), FrameTrust.PREWALKED, kind), snapshot)
            for address, kind in zip(stack, kinds, strict=True)
            if address in image
        )
        for (callee, _, _), (caller, line, inlined) in pairwise(frames):
            assert (line, inlined) in calls[callee, caller]
            seen.add((line, inlined))
    assert seen == {place for places in calls.values() for place in places}
