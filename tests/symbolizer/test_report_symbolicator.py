"""Source lines of reports of every kind, over one program whose lines are known."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.report import NameSource
from machtrace.render.pprof import Message
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.writers import write_reports
from machtrace.symbolizer.report_names import ReportNames
from machtrace.symbolizer.report_symbolicator import symbolicate_reports
from tests.support.compilers.debug_programs import DSYMUTIL, line_of, make_dsym
from tests.support.compilers.executables import compile_macho

pytestmark = pytest.mark.peer

SOURCE = """\
volatile int sink;
#define ALONE __attribute__((noinline))
#define INLINED static inline __attribute__((always_inline))
__attribute__((noinline, noreturn)) void stop(int n) { for (;;) sink = n; } // STOP
INLINED void leaf(int n) {
  stop(n + 1); // LEAF
}
INLINED void middle(int n) {
  sink = 3;
  leaf(n); // MIDDLE
}
ALONE void outer(int n) {
  sink = n;
  middle(n); // OUTER
}
ALONE int after(int n) {
  return n * 3; // AFTER
}
int main(int count, char **words) {
  sink = after(count);
  outer(count); // MAIN
  return 0;
}
int swift_one(void) __asm__("_$s3App4ViewC4loadyyF");
int swift_one(void) { return 1; } // SWIFT
"""
"""``outer`` ends with the call of ``stop``: where that returns to is in another function."""
LINES = {mark: line_of(SOURCE, mark) for mark in ("STOP", "LEAF", "MIDDLE", "OUTER", "MAIN")}
BASE = 0x1_0456_0000
STACK = [
    ("stop", LINES["STOP"], False),
    ("leaf", LINES["LEAF"], True),
    ("middle", LINES["MIDDLE"], True),
    ("outer", LINES["OUTER"], False),
    ("main", LINES["MAIN"], False),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program, its dSYM, the offset of ``stop`` and the calls' return addresses."""
    if DSYMUTIL is None:
        pytest.skip("dsymutil is not installed; it makes the dSYM that is read here")
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the program that is read here")
    folder = tmp_path_factory.mktemp("lines")
    (folder / "lines.c").write_text(SOURCE)
    path = compile_macho([folder / "lines.c"], folder / "lines", options=("-O1", "-g"))
    dsym = make_dsym(path)
    contents = MachOFileContents(path.read_bytes(), str(path))
    symbols = parse_symbols(contents)
    wanted = {"_stop", "_after", "_outer", "_$s3App4ViewC4loadyyF"}
    rows = zip(symbols.names(), symbols.n_value.tolist(), symbols.is_code.tolist(), strict=True)
    starts = {name: value for name, value, is_code in rows if is_code and name in wanted}
    header = contents.image.text_segment.vmaddr
    text = contents.image.section("__TEXT", "__text")
    data = contents.read_svma(text.address, text.size)

    def after_call(of):
        """Return the return address of the only ``bl`` to a function."""
        addresses = []
        for at in range(0, text.size, 4):
            word = int.from_bytes(data[at : at + 4], "little")
            distance = ((word & 0x3FF_FFFF) ^ 0x200_0000) - 0x200_0000
            if word >> 26 == 0b100101 and text.address + at + 4 * distance == starts[of]:
                addresses.append(text.address + at + 4 - header)
        (only,) = addresses
        return only

    return SimpleNamespace(
        path=path,
        dsym=dsym,
        uuid=contents.image.uuid,
        size=contents.image.text_segment.vmsize,
        header=header,
        after=starts["_after"] - header,
        swift=starts["_$s3App4ViewC4loadyyF"] - header,
        offsets=(starts["_stop"] - header, after_call("_stop"), after_call("_outer")),
    )


def ips(program):
    """Write Apple's JSON."""
    frames = [{"imageOffset": offset, "imageIndex": 0} for offset in program.offsets]
    image = {"source": "P", "arch": "arm64", "base": BASE, "size": program.size, "name": "lines"}
    image |= {"uuid": str(program.uuid), "path": "/x/lines"}
    body = {"procName": "lines", "pid": 7, "faultingThread": 0, "usedImages": [image]}
    body["threads"] = [{"id": 1, "triggered": True, "frames": frames}]
    return (
        json.dumps({"bug_type": "309", "os_version": "iPhone OS 18.3 (22D63)"})
        + "\n"
        + json.dumps(body)
    )


def crash(program):
    """Write Apple's text."""
    frames = "\n".join(
        f"{number:<4}lines                         \t{BASE + offset:#18x} {BASE:#x} + {offset}"
        for number, offset in enumerate(program.offsets)
    )
    return (
        "Incident Identifier: 11111111-2222-3333-4444-555555555555\n"
        "Process:             lines [7]\nCode Type:           ARM-64 (Native)\n"
        "Report Version:      104\n\nTriggered by Thread:  0\n\n"
        f"Thread 0 Crashed:\n{frames}\n\nBinary Images:\n"
        f"{BASE:#18x} - {BASE + program.size - 1:#18x} lines arm64  "
        f"<{program.uuid.hex}> /x/lines\n\nEOF\n"
    )


def _nested(one, offsets):
    nested = None
    for offset in reversed(offsets):
        frame = {"binaryUUID": str(one.uuid).upper(), "binaryName": "lines", "sampleCount": 7}
        frame |= {"offsetIntoBinaryTextSegment": offset, "address": BASE + offset}
        if nested is not None:
            frame["subFrames"] = [nested]
        nested = frame
    return nested


def _metrickit(key, root):
    stacks = [{"threadAttributed": True, "callStackRootFrames": [root]}]
    tree = {"callStackPerThread": key == "crashDiagnostics", "callStacks": stacks}
    meta = {"osVersion": "iPhone OS 18.3 (22D63)"}
    return json.dumps(
        {key: [{"version": "1.0.0", "callStackTree": tree, "diagnosticMetaData": meta}]}
    )


def metrickit(one):
    """Write a crash of MetricKit: the root is the innermost frame."""
    return _metrickit("crashDiagnostics", _nested(one, one.offsets))


def metrickit_hang(one):
    """Write a hang's tree: the root is the outermost frame; return addresses are less one."""
    innermost, *others = one.offsets
    return _metrickit("hangDiagnostics", _nested(one, [*(x - 1 for x in others[::-1]), innermost]))


def kscrash(program):
    """Write KSCrash's JSON."""
    image = {"image_addr": BASE, "image_size": program.size, "name": "/x/lines"}
    image |= {"uuid": str(program.uuid).upper(), "cpu_type": 0x0100000C, "cpu_subtype": 0}
    frames = [
        {"instruction_addr": BASE + offset, "object_addr": BASE, "object_name": "lines"}
        for offset in program.offsets
    ]
    thread = {"index": 0, "crashed": True, "backtrace": {"contents": frames, "skipped": 0}}
    error = {"type": "signal", "signal": {"name": "SIGSEGV", "signal": 11}}
    return json.dumps(
        {
            "report": {"id": "A", "version": "3.2.0"},
            "binary_images": [image],
            "system": {"process_name": "lines", "cpu_arch": "arm64"},
            "crash": {"error": error, "threads": [thread]},
        }
    )


class UuidBytes(Message):
    """A field of 16 bytes, where other messages have a message."""

    def __init__(self, uuid):
        super().__init__()
        self.uuid = uuid

    def __bytes__(self):
        return self.uuid.bytes


def plcrash(program):
    """Write PLCrashReporter's messages."""
    report, system, thread, image, code = (Message() for _ in range(5))
    system.number(1, 1)
    thread.number(3, 1)
    for offset in program.offsets:
        frame = Message()
        frame.number(3, BASE + offset)
        thread.message(2, frame)
    code.number(1, 1)
    code.number(2, 0x0100000C)
    image.number(1, BASE)
    image.number(2, program.size)
    image.text(3, "/x/lines")
    image.message(4, UuidBytes(program.uuid))
    image.message(5, code)
    for number, part in ((1, system), (3, thread), (4, image)):
        report.message(number, part)
    return b"plcrash\x01" + bytes(report)


def sample(program):
    """Write the text of ``sample``: the outermost frame first."""
    lines = "\n".join(
        f"    {'  ' * depth}100 ???  (in lines)  load address {BASE:#x} + {offset:#x}"
        f"  [{BASE + offset:#x}]"
        for depth, offset in enumerate(program.offsets[::-1], 1)
    )
    return (
        "Analysis of sampling lines (pid 7) every 1 millisecond\nProcess:         lines [7]\n"
        f"Path:            /x/lines\nLoad Address:    {BASE:#x}\nReport Version:  7\n----\n\n"
        f"Call graph:\n    100 Thread_7\n{lines}\n\nBinary Images:\n"
        f"{BASE:#18x} - {BASE + program.size - 1:#18x} +lines (1.2 - 34)"
        f" <{str(program.uuid).upper()}> /x/lines\n"
    )


def spindump(program):
    """Write the text of spindump: the outermost frame first."""
    lines = "\n".join(
        f"{'  ' * depth}49  ??? (lines + {offset}) [{BASE + offset:#x}] 1-49"
        for depth, offset in enumerate(program.offsets[::-1], 1)
    )
    return (
        "Date/Time:        2026-02-03 04:05:06.789 +0100\nReport Version:   60\n"
        "Command:          lines\nPID:              7\nEvent:            hang\n"
        "Steps:            49 (100ms sampling interval)\n\nProcess:          lines [7]\n"
        f"UUID:             {str(program.uuid).upper()}\nPath:             /x/lines\n\n"
        f"  Thread 0x7    49 samples (1-49)    priority 47\n{lines}\n\n  Binary Images:\n"
        f"  {BASE:#18x} - {BASE + program.size - 1:#18x}  lines (1)"
        f" <{str(program.uuid).upper()}> /x/lines\n"
    )


THREADS = [ips, crash, metrickit, kscrash, plcrash]
TREES = [metrickit_hang, sample, spindump]


def named(made, search):
    """Return the symbolicated report."""
    data = made if isinstance(made, bytes) else made.encode()
    reports = read_source(ReportSource("report", data)).reports
    return symbolicate_reports(reports, ReportNames([search]))


def plain(frames):
    """Return functions, lines, and whether they are inlined."""
    return [
        (
            frame.symbol and frame.symbol.name,
            frame.location and frame.location.line,
            frame.is_inline,
        )
        for frame in frames
    ]


def test_the_program_has_a_call_at_the_end_of_a_function(program):
    """Without it the tests of this file are weaker."""
    assert program.offsets[1] == program.after


@pytest.mark.parametrize("make", THREADS, ids=lambda make: make.__name__)
def test_threads_have_their_true_lines(program, make):
    """With inlined calls; the first frame has its own line, the others have the lines of calls."""
    result = named(make(program), program.dsym)
    (report,) = result.reports

    (thread,) = report.threads
    assert plain(thread.frames) == STACK
    assert [result.frames, result.named, result.contradicted] == [3, 3, 0]
    assert {one.location.path.rpartition("/")[2] for one in thread.frames} == {"lines.c"}
    assert {frame.symbol.source for frame in thread.frames} == {NameSource.DEBUG_INFORMATION}
    assert [frame.symbol.offset for frame in thread.frames[:3]] == [0, None, None]


@pytest.mark.parametrize("make", TREES, ids=lambda make: make.__name__)
def test_trees_have_their_true_lines(program, make):
    """Inlined calls are below the function that contains them; each with its count."""
    (report,) = named(make(program), program.dsym).reports
    (tree,) = report.trees

    assert plain(node.frame for node in tree.nodes) == STACK[::-1]
    assert [one.parent for one in tree.nodes] == [None, 0, 1, 2, 3]
    assert len({one.samples for one in tree.nodes}) == 1


def test_lines_with_uuids_have_their_true_lines(program):
    """``callStackSymbols`` of a program without symbols; all are return addresses."""
    lines = "\n".join(
        f"{number}   lines  {BASE + offset:#018x} {str(program.uuid).upper()} + {offset}"
        for number, offset in enumerate(program.offsets[1:])
    )
    (report,) = named(lines, program.dsym).reports

    assert plain(report.threads[0].frames) == STACK[1:]


@pytest.mark.parametrize("make", [*THREADS, *TREES], ids=lambda make: make.__name__)
def test_lines_equal_those_of_llvm_symbolizer(program, make):
    """It gets each frame's address, moved into the call for a return address."""
    peer = shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer")
    if peer is None:
        pytest.skip("llvm-symbolizer is not installed")
    stop, *calls = program.offsets
    asked = "".join(
        f"{program.header + offset:#x}\n" for offset in (stop, *(call - 1 for call in calls))
    )
    command = [peer, f"--obj={program.dsym}", "--output-style=JSON", "--inlines"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    theirs = [
        (call["FunctionName"].removeprefix("_"), call["Line"])
        for line in done.stdout.splitlines()
        for call in json.loads(line)["Symbol"]
    ]
    (report,) = named(make(program), program.dsym).reports
    frames = [node.frame for tree in report.trees for node in tree.nodes][::-1]
    frames += [frame for thread in report.threads for frame in thread.frames]

    assert [(name, line) for name, line, _ in plain(frames)] == theirs


def test_names_of_swift_have_apples_form(program):
    """Without modules and results; the report's own full name is the same function."""
    one = SimpleNamespace(**vars(program) | {"offsets": (program.swift,)})
    text = crash(one).replace(f"{BASE:#x} + {program.swift}", "$s3App4ViewC4loadyyF + 0")
    result = named(text, program.dsym)

    line = line_of(SOURCE, "SWIFT")
    assert plain(result.reports[0].threads[0].frames) == [("View.load()", line, False)]
    assert result.contradicted == 0


@pytest.mark.parametrize("name", ["apple", "ips", "json", "kscrash", "plcrash", "lldb", "html"])
def test_every_format_writes_the_functions_and_lines_in_order(program, name):
    reports = named(ips(program), program.dsym).reports
    written = write_reports(reports, name).decode()

    if name == "ips":
        (again,) = read_source(ReportSource("again", written.encode())).reports
        assert plain(again.threads[0].frames) == STACK
    if name in ("apple", "lldb"):  # the others have no lines
        places = [f"lines.c:{line}" for _, line, _ in STACK]
        assert re.findall(r"lines\.c:\d+", written) == places
    assert [one for one, _, _ in STACK if one not in written] == []


def test_the_reports_names_are_unchanged_without_a_file(program, tmp_path):
    text = crash(program).replace(f"{BASE:#x} + {program.offsets[2]}", "wrong + 5 (a.m:7)")
    before = read_source(ReportSource("report", text.encode())).reports
    result = named(text, tmp_path)

    assert result.reports == before
    assert [(program.uuid, 3)] == [
        (missing.image.uuid, missing.frames) for missing in result.missing
    ]
    assert plain(result.reports[0].threads[0].frames)[-1] == ("wrong", 7, False)


def test_a_wrong_name_is_replaced_recorded_and_counted(program):
    """The details have the report's name; an added underscore is not a contradiction."""
    text = crash(program)
    text = text.replace(f"{BASE:#x} + {program.offsets[2]}", "GCC_except_table7 + 5")
    text = text.replace(f"{BASE:#x} + {program.offsets[0]}", "_stop + 0")
    result = named(text, program.dsym)
    (report,) = result.reports

    assert plain(report.threads[0].frames) == STACK
    assert report.threads[0].frames[-1].details["reported symbol"] == "GCC_except_table7 + 5"
    assert "reported symbol" not in report.threads[0].frames[0].details
    assert result.contradicted == 1
    assert report.warnings[-1] == "1 frame had wrong names in the report"


@pytest.mark.parametrize("inlined", [1, 2, 3])
def test_inlined_calls_of_the_report_are_not_lost(program, inlined):
    """Files replace those that they know; further ones are retained, with their lines."""
    head, body = (json.loads(one) for one in ips(program).split("\n"))
    frames = body["threads"][0]["frames"]
    theirs = [
        frames[1]
        | {"symbol": f"reported{n}", "inline": True, "sourceFile": "r.c", "sourceLine": 90 + n}
        for n in range(inlined)
    ]
    frames[1:1] = theirs
    (report,) = named(json.dumps(head) + "\n" + json.dumps(body), program.dsym).reports

    kept = [(f"reported{n}", 90 + n, True) for n in range(inlined)]
    expected = STACK if inlined < 3 else [STACK[0], *kept, *STACK[3:]]
    assert plain(report.threads[0].frames) == expected


def test_names_do_not_need_the_debug_file(program, tmp_path):
    """The program's own symbols name its functions."""
    shutil.copy(program.path, tmp_path / "other-name")
    (report,) = named(ips(program), tmp_path / "other-name").reports

    names = [frame.symbol.name for frame in report.threads[0].frames if not frame.is_inline]
    assert names == ["stop", "outer", "main"]


def test_reports_are_read_from_archives(program, tmp_path):
    from machtrace.reports.inputs import report_inputs

    (tmp_path / "x.ips.gz").write_bytes(gzip.compress(ips(program).encode()))
    (one,) = report_inputs(tmp_path / "x.ips.gz")
    (report,) = named(one.source.data, program.dsym).reports

    assert plain(report.threads[0].frames) == STACK
