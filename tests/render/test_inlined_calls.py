"""Source lines and inlined calls as each format writes them."""

import io
import json
import re
import shutil
import subprocess
import sys

import pytest

import machtrace as mt
from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.capture import Capture
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.snapshot import ProcessInfo, ThreadId, ThreadInfo
from machtrace.model.stack import AddressKind, FrameAddress, FrameTrust, Gap, Stop, StopReason
from machtrace.model.symbol import (
    CallStack,
    Certainty,
    Frame,
    FrameStatus,
    InlineFrame,
    SourceLocation,
    Symbol,
)
from machtrace.render import json_document, lldb, text
from machtrace.symbolizer.symbolicator import Symbolicator

LLDB = next((name for name in ("lldb-19", "lldb") if shutil.which(name)), None)
IMAGE = BinaryImage(
    path="/bin/demo",
    uuid=None,
    arch=Arch.ARM64,
    format=ImageFormat.MACHO,
    load_address=Avma(0x1000),
    header_svma=Svma(0),
    size=0x1000,
)
SYMBOL = Symbol(
    name="outer",
    linkage_name="_outer",
    offset=ImageOffset(0x100),
    size=0x20,
    certainty=Certainty.EXACT,
)
FRAME = Frame(
    address=FrameAddress(Avma(0x1108), FrameTrust.CONTEXT, AddressKind.PROGRAM_COUNTER),
    status=FrameStatus.SYMBOLICATED,
    image=IMAGE,
    symbol=SYMBOL,
    location=SourceLocation("/src/demo.c", 12, 3),
    inlined=(
        InlineFrame("leaf", SourceLocation("/src/leaf.h", 5)),
        InlineFrame("middle", SourceLocation("/src/demo.c", None)),
        InlineFrame("", None),
    ),
)
PLAIN = Frame(
    address=FrameAddress(Avma(0x1200), FrameTrust.CFI, AddressKind.RETURN_ADDRESS),
    status=FrameStatus.MISSING_SYMBOL,
    image=IMAGE,
)


def report_of(*frames, gap=None):
    """Return a capture of one thread with these frames."""
    stack = CallStack(
        thread=ThreadInfo(id=ThreadId(1), index=1),
        frames=frames,
        stop=Stop(StopReason.ROOT),
        gap=gap,
    )
    process = ProcessInfo(pid=1, path=IMAGE.path, arch=Arch.ARM64)
    return Capture(process=process, images=ImageList([IMAGE]), stacks=(stack,))


def written(form, report):
    """Return the text in a format."""
    sink = io.StringIO()
    form.write(report, sink)
    return sink.getvalue()


def test_lldb_has_a_frame_for_each_inlined_call():
    """They are numbered like others; a column is shown if known."""
    lines = written(lldb, report_of(FRAME, PLAIN)).splitlines()[1:]

    assert lines == [
        "  * frame #0: 0x0000000000001108 demo`outer [inlined] leaf at leaf.h:5",
        "    frame #1: 0x0000000000001108 demo`outer [inlined] middle at demo.c",
        "    frame #2: 0x0000000000001108 demo`outer [inlined] ?",
        "    frame #3: 0x0000000000001108 demo`outer at demo.c:12:3",
        "    frame #4: 0x0000000000001200 demo",
    ]


def test_lldbs_numbers_go_on_behind_a_gap():
    """The inlined calls in omitted frames are unknown."""
    report = report_of(FRAME, PLAIN, gap=Gap(after=1, count=10))

    assert "    frame #14: 0x0000000000001200 demo" in written(lldb, report).splitlines()


def test_text_shows_them_above_the_frame_that_they_are_in():
    """They have the number of the machine's frame."""
    lines = written(text, report_of(FRAME)).splitlines()[3:]

    assert [line[:4].strip() for line in lines] == ["0"] * 4
    assert [line.partition("0x0000000000001108  ")[2] for line in lines] == [
        "leaf  at leaf.h:5  [inlined]",
        "middle  at demo.c  [inlined]",
        "?  [inlined]",
        "outer + 8  at demo.c:12",
    ]


def test_json_has_whole_paths():
    """Each machine frame has one entry, with its inlined calls, innermost first."""
    document = json.loads(written(json_document, report_of(FRAME)))
    (frame,) = document["threads"][0]["frames"]

    assert (frame["file"], frame["line"], frame["column"]) == ("/src/demo.c", 12, 3)
    assert frame["inlined"] == [
        {"symbol": "leaf", "file": "/src/leaf.h", "line": 5},
        {"symbol": "middle", "file": "/src/demo.c", "line": None},
        {"symbol": "", "file": None, "line": None},
    ]


SOURCE = """\
#include <unistd.h>
volatile int sink;
static inline __attribute__((always_inline)) void inner(int n) {
  sink = n;
  pause();
  sink = 0;
}
static inline __attribute__((always_inline)) void middle(int n) {
  sink = n;
  inner(n + 1);
  sink = 1;
}
__attribute__((noinline)) int outer(int n) {
  middle(n);
  return sink;
}
int main(int count, char **words) {
  write(1, "ready\\n", 6);
  int result = outer(count);
  return result + sink;
}
"""
OWN = re.compile(r"0x[0-9a-f]+ program`([^_].*)")
ARGUMENTS = re.compile(r"\([^)]*\)")
COLUMN = re.compile(r"(:\d+):\d+$")


@pytest.mark.live
@pytest.mark.skipif(LLDB is None, reason="lldb is not installed")
@pytest.mark.skipif(sys.platform != "linux", reason="inspects a Linux process")
def test_lldb_prints_the_same_frames(tmp_path):
    """The program's own functions: names, `[inlined]`, files and lines.

    lldb also prints arguments and columns, and inlined calls at the start of a line's code.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, program, core = (tmp_path / name for name in ("a.c", "program", "a.core"))
    source.write_text(SOURCE)
    subprocess.run([compiler, "-g", "-O1", source, "-o", program], check=True)
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        while "S" not in (tmp_path / "/proc" / str(process.pid) / "stat").read_text():
            pass
        snapshot = mt.snapshot(process.pid)
        mt.save_snapshot(snapshot, core)
        process.kill()
    symbolicator = Symbolicator()
    (stack,) = (symbolicator.symbolicate(walked) for walked in mt.unwind(snapshot))
    printed = subprocess.run(
        [LLDB, "--no-lldbinit", "--batch", "--core", core, program, "-o", "bt"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout

    def own(lines):
        names = [match[1] for line in lines if (match := OWN.search(line))]
        return [COLUMN.sub(r"\1", ARGUMENTS.sub("", name)) for name in names]

    ours = own(lldb.lines(stack, selected=True))
    assert ours[:3] == [
        "outer [inlined] inner at a.c:5",
        "outer [inlined] middle at a.c:10",
        "outer at a.c:14",
    ]
    assert ours == own(printed.splitlines())
