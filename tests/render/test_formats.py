"""Stacks as other tools print them."""

import ctypes
import io
import json
from uuid import UUID

import pytest

from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.capture import Capture
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.snapshot import ProcessInfo, ThreadId, ThreadInfo
from machtrace.model.stack import AddressKind, Dispute, FrameAddress, FrameTrust, Stop, StopReason
from machtrace.model.symbol import CallStack, Certainty, Frame, FrameStatus, Symbol, unnamed
from machtrace.render import bs, json_document, lldb, nsthread, text

IMAGE = BinaryImage(
    path="/Applications/Demo.app/Demo",
    uuid=UUID("d5bd0e97-65e0-3dbd-9e18-2e8f1a6f3c11"),
    arch=Arch.ARM64,
    format=ImageFormat.MACHO,
    load_address=Avma(0x102060000),
    header_svma=Svma(0x100000000),
    size=0x10000,
)
SYMBOL = Symbol(
    name="-[ViewController viewDidLoad]",
    linkage_name="-[ViewController viewDidLoad]",
    offset=ImageOffset(0x7140),
    size=0x60,
    certainty=Certainty.EXACT,
)


def frame(address, *, image=IMAGE, symbol=SYMBOL, kind=AddressKind.RETURN_ADDRESS):
    """Return a frame, by default with a return address."""
    return Frame(
        address=FrameAddress(Avma(address), FrameTrust.COMPACT, kind),
        status=FrameStatus.SYMBOLICATED,
        image=image,
        symbol=symbol,
    )


NAMED = frame(0x10206718C)
NAMELESS = frame(0x102064000, symbol=None)
NOWHERE = frame(0xDEADBEEF, image=None, symbol=None)
STACK = CallStack(
    thread=ThreadInfo(id=ThreadId(259), index=1, name="main", queue="com.apple.main-thread"),
    frames=(NAMED, NAMELESS, NOWHERE),
    stop=Stop(StopReason.UNREADABLE, Avma(0x16F000000)),
    stopped_for_ns=18_400,
)
REPORT = Capture(
    process=ProcessInfo(pid=42, path=IMAGE.path, arch=Arch.ARM64),
    images=ImageList([IMAGE]),
    stacks=(STACK,),
)


def printf(form: bytes, *values) -> str:
    """Format by C's printf: the oracle for formats defined by a format string."""
    buffer = ctypes.create_string_buffer(4096)
    ctypes.CDLL(None).snprintf(buffer, len(buffer), form, *values)
    return buffer.value.decode()


@pytest.mark.parametrize(
    ("index", "call", "image", "symbol", "offset"),
    [
        (0, NAMED, b"Demo", b"-[ViewController viewDidLoad]", 0x10206718C - 0x102067140),
        (1, NAMELESS, b"Demo", b"Demo", 0x4000),
        (1234, NOWHERE, b"???", b"0x0", 0xDEADBEEF),
    ],
)
def test_nsthread_is_byte_for_byte_what_libc_prints(index, call, image, symbol, offset):
    """Oracle: Apple's format string in C's own printf."""
    expected = printf(
        b"%-4d%-35s 0x%016lx %s + %lu",
        ctypes.c_int(index),
        image,
        ctypes.c_ulong(call.address.address),
        symbol,
        ctypes.c_ulong(offset),
    )

    assert nsthread.line(index, call) == expected


def test_nsthread_leaves_names_mangled_as_apple_does():
    """Libc's ``dladdr`` drops one underscore, no more; other formats show the human name."""
    mangled = frame(
        0x10206718C,
        symbol=Symbol(
            name="Player::play(int)",
            linkage_name="__ZN6Player4playEi",
            offset=ImageOffset(0x7140),
            size=0x60,
            certainty=Certainty.EXACT,
        ),
    )

    assert nsthread.line(0, mangled).endswith(" _ZN6Player4playEi + 76")
    stack = CallStack(thread=STACK.thread, frames=(mangled,), stop=STACK.stop)
    assert "Demo`Player::play(int) + 76" in list(lldb.lines(stack, selected=True))[1]


def test_bs_equals_its_format_strings():
    """``%-30s  0x%08lx %s + %lu`` under ``Backtrace of Thread %u:``; bases where names lack."""
    named = printf(
        b"%-30s  0x%08lx %s + %lu",
        b"Demo",
        ctypes.c_ulong(0x10206718C),
        b"-[ViewController viewDidLoad]",
        ctypes.c_ulong(76),
    )
    nameless = printf(
        b"%-30s  0x%08lx %s + %lu",
        b"Demo",
        ctypes.c_ulong(0x102064000),
        printf(b"0x%lx", ctypes.c_ulong(IMAGE.load_address)).encode(),
        ctypes.c_ulong(0x4000),
    )
    nowhere = printf(
        b"%-30s  0x%08lx %s + %lu",
        printf(b"0x%016lx", ctypes.c_ulong(0)).encode(),
        ctypes.c_ulong(0xDEADBEEF),
        b"0x0",
        ctypes.c_ulong(0xDEADBEEF),
    )

    assert ["Backtrace of Thread 259:", named, nameless, nowhere] == list(bs.lines(STACK))


def test_lldb_prints_bt_all():
    """The selected thread and its first frame carry a star; offsets of 0 are not shown."""
    sink = io.StringIO()
    at_start = frame(0x102067140)
    two = (STACK, CallStack(thread=ThreadInfo(id=ThreadId(7), index=2), frames=(at_start,),
                            stop=Stop(StopReason.ROOT)))  # fmt: skip
    lldb.write(Capture(process=REPORT.process, images=REPORT.images, stacks=two), sink)

    assert sink.getvalue().splitlines() == [
        "* thread #1, name = 'main', queue = 'com.apple.main-thread'",
        "  * frame #0: 0x000000010206718c Demo`-[ViewController viewDidLoad] + 76",
        "    frame #1: 0x0000000102064000 Demo",
        "    frame #2: 0x00000000deadbeef",
        "  thread #2",
        "    frame #0: 0x0000000102067140 Demo`-[ViewController viewDidLoad]",
    ]


def test_an_unnamed_function_differs_from_a_named_one():
    """The format of lldb distinguishes them; Apple's and BSBacktraceLogger's do not."""
    nobody = unnamed(ImageOffset(0x3FF4), 0x20)
    without_name = frame(0x102064000, symbol=nobody)
    stack = CallStack(thread=STACK.thread, frames=(without_name,), stop=Stop(StopReason.ROOT))

    assert list(lldb.lines(stack, selected=False))[1].endswith(
        "Demo`___lldb_unnamed_symbol_100003ff4 + 12"
    )
    assert "unnamed_3ff4 + 12" in list(text.lines(stack, pointer_size=8))[1]
    assert nsthread.line(1, NAMELESS) == nsthread.line(1, without_name)
    nameless = CallStack(thread=STACK.thread, frames=(NAMELESS,), stop=stack.stop)
    assert list(bs.lines(nameless)) == list(bs.lines(stack))


def test_json_is_the_documented_schema():
    """Addresses are integers, and a reader finds every documented key."""
    sink = io.StringIO()
    json_document.write(REPORT, sink)
    read = json.loads(sink.getvalue())

    assert read["schema"] == 1
    (image,) = read["images"]
    assert image == {
        "uuid": "D5BD0E97-65E0-3DBD-9E18-2E8F1A6F3C11",
        "path": "/Applications/Demo.app/Demo",
        "arch": "arm64",
        "load_address": 0x102060000,
        "size": 0x10000,
    }
    (thread,) = read["threads"]
    assert (
        thread["id"],
        thread["name"],
        thread["queue"],
        thread["crashed"],
    ) == (259, "main", "com.apple.main-thread", False)
    assert thread["stop"] == {"reason": "unreadable", "at": 0x16F000000}
    assert thread["frames"][0] == {
        "index": 0,
        "address": 0x10206718C,
        "kind": "return",
        "trust": "compact",
        "disputed_by": [],
        "status": "symbolicated",
        "image": "Demo",
        "uuid": "D5BD0E97-65E0-3DBD-9E18-2E8F1A6F3C11",
        "offset": 0x718C,
        "symbol": "-[ViewController viewDidLoad]",
        "symbol_offset": 76,
        "certainty": "exact",
        "file": None,
        "line": None,
        "column": None,
        "inlined": [],
        "python": [],
    }
    assert (
        thread["frames"][2]["image"],
        thread["frames"][2]["symbol"],
        thread["frames"][2]["certainty"],
    ) == (None, None, "none")


def test_text_shows_each_frame_s_trust_and_the_stop_reason():
    """The text has everything that affects trust in a stack, and no colours by default."""
    sink = io.StringIO()
    text.write(REPORT, sink)
    written = sink.getvalue()

    assert "18.4 µs" in written
    assert "[compact]" in written
    assert "not captured at 0x16f000000" in written
    assert "\x1b" not in written


def test_a_disputed_frame_names_the_method_and_its_caller():
    """The text has it beside the method; the JSON as data."""
    disputes = (
        Dispute(FrameTrust.PROLOGUE, Avma(0x102064444)),
        Dispute(FrameTrust.CFI, None),
    )
    address = FrameAddress(
        NAMED.address.address, FrameTrust.COMPACT, AddressKind.RETURN_ADDRESS, disputes
    )
    disputed = Frame(address=address, status=FrameStatus.SYMBOLICATED, image=IMAGE, symbol=SYMBOL)
    stack = CallStack(thread=STACK.thread, frames=(disputed,), stop=STACK.stop)
    (line,) = (line for line in text.lines(stack, pointer_size=8) if "viewDidLoad" in line)
    assert line.endswith("[compact, but prologue finds 0x102064444, but cfi finds no caller]")

    report = Capture(process=REPORT.process, images=REPORT.images, stacks=(stack,))
    (thread,) = json_document.document(report)["threads"]
    assert thread["frames"][0]["disputed_by"] == [
        {"trust": "prologue", "address": 0x102064444},
        {"trust": "cfi", "address": None},
    ]


def test_text_folds_recursion():
    """Forty equal frames are two lines; the numbers of other frames are correct."""
    again = frame(0x1020671A0)
    stack = CallStack(
        thread=STACK.thread, frames=(NAMED, *[again] * 40, NAMELESS), stop=Stop(StopReason.ROOT)
    )
    written = list(text.lines(stack, pointer_size=8))

    assert [line.split()[0] for line in written[1:]] == ["0", "1", "2–40", "41"]
    assert written[3] == "2–40  the same frame 39 more times"


@pytest.mark.parametrize("form", [text, lldb])
def test_names_do_not_control_a_terminal(form):
    """A thread's name may have any characters: control characters are escaped."""
    named = ThreadInfo(id=ThreadId(1), index=1, name="\x1b[31mred\n\udcff")
    stack = CallStack(thread=named, frames=(NAMED,), stop=Stop(StopReason.ROOT))
    sink = io.StringIO()
    form.write(Capture(process=REPORT.process, images=REPORT.images, stacks=(stack,)), sink)

    assert r"\x1b[31mred\n\udcff" in sink.getvalue()
    assert "\x1b" not in sink.getvalue()
