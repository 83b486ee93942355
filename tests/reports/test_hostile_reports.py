"""Adversarial reports: time, memory and output grow linearly with the input.

The interpreter's steps are counted, for an input and for one twice as large: lines, and at four
entry points instructions. Patterns and copies are no steps; they get inputs of a megabyte, which
would take minutes in quadratic time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from types import FrameType
from typing import Any

import pytest

from machtrace.errors import ArgumentError, FormatError
from machtrace.model.report import (
    Adjustment,
    Report,
    ReportedFrame,
    ReportedRegister,
    ReportedRegisters,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
    SampledNode,
    SampledTree,
)
from machtrace.render import folded
from machtrace.render.call_tree import MAX_DEPTH, bounded
from machtrace.reports.crash.registers import register_lines
from machtrace.reports.image_lists import listed_images
from machtrace.reports.ips import documents
from machtrace.reports.json_writer import dumps, indented
from machtrace.reports.lenient_json import _TOKEN, JsonDocument, read_json
from machtrace.reports.machtrace_json import reports_json
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.profiles import profile_of
from machtrace.reports.writers import FORMATS, write_reports

_HEADER = '{"bug_type":"309","incident_id":"1","app_name":"a"}\n'
_CRASH = "Process: a [1]\nException Type: X\n"
_FRAME = '{"imageOffset":1,"imageIndex":0}'
_EVERY_INSTRUCTION = frozenset({"levels of recursion", "images in one another"})


def _read(text: str) -> tuple[Report, ...]:
    return read_source(ReportSource("test", text.encode())).reports


def _steps(action: Callable[[], object], *, shape: str = "") -> int:
    """Count the lines that run, each time; of the shapes in _EVERY_INSTRUCTION instructions."""
    count = 0
    counted = "opcode" if shape in _EVERY_INSTRUCTION else "line"

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = counted == "opcode", counted == "line"
        count += event == counted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def _listed(item: str, count: int) -> str:
    return ",".join(item.replace("%d", str(index)) for index in range(count))


def _ips(threads: str, more: str = "") -> str:
    images = '"usedImages":[{"base":4096,"size":4096}]'
    return f'{_HEADER}{{{images},"threads":[{threads}]{more}}}'


def _recursion(count: int) -> str:
    key = '"keyFrame":{"imageIndex":0,"imageOffset":1}'
    gaps = ",".join(
        f'{{"hottestElided":{at},"coldestElided":{at},"depth":999,{key}}}'
        for at in range(1, 2 * count, 2)
    )
    return _ips(f'{{"recursionInfoArray":[{gaps}],"frames":[{_listed(_FRAME, count)}]}}')


def _image_line(start: int, end: int) -> str:
    return f"{start:#x} - {end:#x} App arm64  <82d13d98219e3040b62a07a297007a7c> /App\n"


SHAPES: dict[str, Callable[[int], str]] = {
    "threads without frames": lambda count: _ips(_listed("{}", count)),
    "threads of one frame": lambda count: _ips(
        _listed('{"frames":[{"imageOffset":%d,"imageIndex":0}]}', count)
    ),
    "what is no thread": lambda count: _ips(_listed("0", count)),
    "levels of recursion": _recursion,
    "files joined": lambda count: (_HEADER + '{"threads":[],"usedImages":[a]}\n') * count,
    "processes": lambda count: (
        f'{_HEADER}{{"processByPid":{{'
        + _listed('"%d":{"threadById":{"1":{"userFrames":[[%d,1]]}}}', count)
        + '},"binaryImages":['
        + _listed('["82d13d98-219e-3040-b62a-07a297007a7c",%d,"P"]', count)
        + "]}"
    ),
    "diagnostics": lambda count: (
        f"{{{_listed(chr(34) + 'k%d' + chr(34) + ':0', count)},"
        f'"crashDiagnostics":[{_listed("{}", count)}]}}'
    ),
    "logs of a product": lambda count: (
        f'{{"productData":[{{{_listed(chr(34) + "k%d" + chr(34) + ":0", count)},'
        f'"diagnosticLogs":[{_listed("{}", count)}]}}]}}'
    ),
    "what is no stack": lambda count: f'{{"callStacks":[{_listed("0", count)}]}}',
    "a tree that is deep": lambda count: (
        '{"callStacks":[{"callStackRootFrames":['
        + '{"binaryName":"a","subFrames":[' * count
        + "]}" * count
        + "]}]}"
    ),
    "keys again and again": lambda count: _ips("", ',"a":1' * count + ',"b":'),
    "numbers of one thread": lambda count: _CRASH + "Thread 0:\n\n" * count,
    "headings of images": lambda count: _CRASH + "Binary Images:\n" * count,
    "images in one another": lambda count: (
        _CRASH
        + "Thread 0:\n"
        + "".join(f"{at} App 0x{0x1000 + 16 * at:x} f + 1\n" for at in range(count))
        + "\nBinary Images:\n"
        + "".join(_image_line(0x1000 + 16 * at, 0xFFFFFFFFFF - 16 * at) for at in range(count))
    ),
    "texts joined": lambda count: _CRASH + "Binary Images:\nProcess: x\n" * count,
    "threads of samples": lambda count: (
        "Analysis of sampling a (pid 1) every 1 millisecond\n\nCall graph:\n"
        + "".join(f"    1 Thread_{at}\n      1 f  (in a{at}) + 1  [0x1]\n" for at in range(count))
    ),
    "blocks of processes": lambda count: (
        "Date/Time: 2020\nEvent: cpu usage\nSteps: 3\n\n"
        + "".join(f"Process: a{at} [{at}]\n  Thread 0x1   1 sample (1)\n\n" for at in range(count))
    ),
    "stacks of symbols": lambda count: "".join(
        f"{at % 5}   App{at}   0x0000000100000000 main + 1\n" for at in range(count)
    ),
    "threads of lldb": lambda count: "  frame #0: 0x1 a`f\n" * count,
}
_COUNT = 50
_MAX_RATIO = 2.7
"""How many times as much may be done with twice as much: square growth is by four."""


@pytest.mark.parametrize("shape", SHAPES)
def test_reading_takes_as_many_steps_as_there_is_to_read(shape: str) -> None:
    """Twice as much takes about twice as long."""
    small, large = SHAPES[shape](_COUNT), SHAPES[shape](2 * _COUNT)
    _read(small)  # what is made once is made
    assert _steps(lambda: _read(large), shape=shape) < _MAX_RATIO * _steps(
        lambda: _read(small), shape=shape
    )


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        *product(["threads of one frame", "threads of samples"], FORMATS),
        *product(["diagnostics", "processes"], ["json", "html", "folded"]),
        ("levels of recursion", "apple"),
        ("threads without frames", "html"),
        ("a tree that is deep", "html"),
    ],
)
def test_writing_takes_as_many_steps_as_was_read(shape: str, name: str) -> None:
    """In every format; and the files are about twice as long."""
    small, large = _read(SHAPES[shape](_COUNT)), _read(SHAPES[shape](2 * _COUNT))

    def write(reports: tuple[Report, ...]) -> int:
        try:
            return sum(len(write_reports([report], name)) for report in reports)
        except ArgumentError:  # formats of one moment have nothing of samples
            return 0

    size = write(small)
    assert write(large) <= _MAX_RATIO * size
    assert _steps(lambda: write(large), shape=shape) < _MAX_RATIO * _steps(
        lambda: write(small), shape=shape
    )


def test_a_page_of_many_reports_takes_as_many_steps_as_there_are() -> None:
    """Its overview takes no more either."""
    shape = SHAPES["diagnostics"]
    small, large = _read(shape(_COUNT)), _read(shape(2 * _COUNT))
    assert _steps(lambda: write_reports(large, "html")) < _MAX_RATIO * _steps(
        lambda: write_reports(small, "html")
    )


def test_small_values_of_a_payload_are_with_each_diagnostic() -> None:
    """Where it is much, and there are many, the first has it, and nothing is lost."""
    payload = {"timeStampBegin": "2024-01-01", "crashDiagnostics": [{}, {}, {}]}
    assert all("payload" in report.details for report in _read(json.dumps(payload)))
    much = payload | {"more": "x" * 50_000}
    first, *others = _read(json.dumps(much))
    assert first.details["payload"] == {"timeStampBegin": "2024-01-01", "more": "x" * 50_000}
    assert not any("payload" in report.details for report in others)


def test_small_values_of_a_product_are_with_each_log() -> None:
    """The same of the logs that App Store Connect has."""
    product_data = {"signatureID": "1", "diagnosticLogs": [{}, {}]}
    reports = _read(json.dumps({"productData": [product_data]}))
    assert [report.details["product"] for report in reports] == [{"signatureID": "1"}] * 2
    much = product_data | {"more": "x" * 50_000}
    first, second = _read(json.dumps({"productData": [much]}))
    assert "product" in first.details
    assert "product" not in second.details


def test_every_warning_of_a_diagnostic_appears_once() -> None:
    """There can be as many as there are stacks."""
    (report,) = _read('{"callStacks":[0,0,0]}')
    numbers = [f"callStacks[{number}] is not an object; stored as is" for number in range(3)]
    assert list(report.warnings) == numbers


def test_tokens_begin_wherever_something_else_than_space_is_left() -> None:
    """Thus nobody has to search for them, which takes the square of the spaces before none."""
    for letters in product(' \n\x0b\xa0a"\\[:1', repeat=4):
        text = "".join(letters)
        assert (_TOKEN.match(text) is None) == text.isspace()


def test_a_megabyte_of_space_is_read() -> None:
    """In a list that ends in what JSON calls no space."""
    (report,) = _read(f'{{"threads":[],"usedImages":[{" " * (1 << 20)}\x0b]}}')
    assert report.kind is ReportKind.APPLE_IPS


@pytest.mark.parametrize(
    "line",
    [
        "0" + " " * 8000 + "a" * 8000 + "\tX",
        "0" + " a" * 8000 + "\tX",
        "0 a" + " 0x1" * 4000,
    ],
)
def test_lines_of_a_crash_that_nearly_are_frames(line: str) -> None:
    """A megabyte of them is read and stored."""
    (report,) = _read(f"{_CRASH}Thread 0:\n" + f"{line}\n" * 64)
    stored = report.threads[0].details.get("lines")
    assert len(report.threads[0].frames) + (len(stored) if isinstance(stored, list) else 0) == 64


@pytest.mark.parametrize(
    "line",
    [
        "0 a " + "0x12345678 " * 85 + "b" + " " * 11000 + "c",
        "0 a " + "0x12345678 " * 85 + "b" + " + 1" * 2800 + " c",
        "0 a" + " b" * 500 + " " * 15000 + "c",
    ],
)
def test_lines_that_nearly_are_of_stack_symbols(line: str) -> None:
    """A megabyte of them is read, and stored with the thread that follows."""
    text = "0   App   0x0000000100000000 main + 1\n" + f"{line}\n" * 64
    (report,) = _read(text)
    assert len(report.threads[0].frames) == 1
    assert report.details["lines"] == [line] * 64


@pytest.mark.parametrize("names", [" at b:" * 2600, " at :1:1" * 2000 + "x", " + 1" * 4000 + "x"])
def test_lines_of_lldb_that_nearly_have_places(names: str) -> None:
    """A megabyte of them is read: all of it is a name."""
    line = f"  frame #0: 0x1 a`f{names}"
    (report,) = _read(f"{line}\n" * 64)
    frame = report.threads[0].frames[0]
    assert frame.symbol == ReportedSymbol(f"f{names.rstrip()}", None)
    assert frame.location is None


@pytest.mark.parametrize(
    ("text", "name", "file", "line", "column"),
    [
        ("f at b.c:1", "f", "b.c", 1, None),
        ("f at b.c:1:2", "f", "b.c", 1, 2),
        ("f at 2 at b.c:1:2", "f at 2", "b.c", 1, 2),
        ("f at b.c:1:2:3", "f", "b.c:1", 2, 3),
        ("f at my file.c:7", "f", "my file.c", 7, None),
        ("f at b.c:0:0", "f", "b.c", None, None),
    ],
)
def test_places_are_behind_the_last_at(
    text: str, name: str, file: str, line: int | None, column: int | None
) -> None:
    """Files have spaces and colons, functions have words."""
    (report,) = _read(f"  frame #0: 0x1 a`{text}\n")
    (frame,) = report.threads[0].frames
    assert frame.symbol is not None
    assert frame.location is not None
    assert frame.symbol.name == name
    assert (frame.location.path, frame.location.line, frame.location.column) == (file, line, column)


def test_images_are_found_in_long_lines() -> None:
    """Addresses may precede them."""
    identifier = "<82d13d98-219e-3040-b62a-07a297007a7c>"
    begun = "0x1000 - 0x1fff " * 500
    text = f"{begun}<no>\n" * 128 + f"0x1 - 0x2 x <no> 0x1000 - 0x1fff App arm64 {identifier} /App"
    (image,) = listed_images(text, "test")
    assert (image.name, image.arch, image.load_address, image.size) == ("App", "arm64", 4096, 4096)


def test_many_registers_that_no_row_has() -> None:
    """A row has four, or one with a description."""
    registers = [ReportedRegister("a", number) for number in range(100_000)]
    registers[1] = registers[1]._replace(description="said")
    lines = list(register_lines(ReportedRegisters(registers=tuple(registers))))
    assert lines[0].endswith("0x00000001 said")
    assert lines[1].count("a: ") == 4
    assert sum(line.count("a: ") for line in lines) == len(registers)


def test_levels_of_recursion_appear_once_for_a_function() -> None:
    """However many parts of it were left out, each of which has its line."""
    text = write_reports(_read(_recursion(50)), "apple").decode()
    assert text.count("RECURSION LEVEL ") == 50
    assert text.count("ELIDED 949 LEVELS OF RECURSION THROUGH ") == 50


def test_python_s_reader_is_not_retried_forever_on_a_broken_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counts all preceding lines to report an error in the last one."""
    starts: list[int] = []

    def counted(text: str, start: int, source: str) -> JsonDocument:
        starts.append(start)
        return read_json(text, start, source)

    monkeypatch.setattr(documents, "read_json", counted)
    reports = _read((_HEADER + '{"threads":[],"usedImages":[a]}\n') * 200)
    assert len(reports) == 200
    assert all(report.images or report.warnings for report in reports)
    assert len(starts) < 50


_read_once = lru_cache(_read)
DEEP = '{"subFrames":[' * 20_000
_CLOSED = DEEP + "]}" * 20_000


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        f'{_HEADER}{{"threads":[],"usedImages":[],"x":{DEEP}',
        f'{_HEADER}{{"usedImages":[],"threads":[{{"triggered":true,"threadState":{{"lines":[{DEEP}',
        f'{_HEADER}{{"threads":[],"usedImages":[],"buildInfo":{{"ProjectName":{DEEP}',
        f'{{"report":{{}},"crash":{{"threads":[{{"crashed":true,"notable_addresses":{DEEP}',
        f'{{"callStacks":[{{"callStackRootFrames":[{{"x":{DEEP}',
        f'{_HEADER}{{"threads":[],"usedImages":[],"extMods":{{"caller":{{"task_for_pid":{DEEP}',
        f'{_HEADER}{{"largestProcess":{_CLOSED},"processes":[{{"name":{_CLOSED}}}]}}',
    ],
)
def test_details_as_deep_as_stacks_are_written(text: str, name: str) -> None:
    """Readers keep what they do not know, and no writer recurs into it."""
    for report in _read_once(text):
        try:
            written = write_reports([report], name)
        except ArgumentError:
            continue
        assert len(written) < 4 * len(text) + 100_000


def test_deep_values_are_written_like_shallow_ones() -> None:
    """The form is the same, so that it is read again."""
    inner: Any = [1, "é\ud800", None, True, {"a": [], "b": {}}]
    value: Any = {"k": inner, "l": [inner, inner]}
    for ensure_ascii in (True, False):
        usual = json.dumps(value, ensure_ascii=ensure_ascii)
        deep: Any = value
        for _ in range(5000):
            deep = [deep]
        assert dumps(deep, ensure_ascii=ensure_ascii) == "[" * 5000 + usual + "]" * 5000
    assert indented(value, 1) == json.dumps(value, indent=1, ensure_ascii=False)


def test_deep_values_are_not_indented() -> None:
    """Thousands of entries would each follow hundreds of spaces."""
    value: Any = ["x"] * 1000
    for _ in range(500):
        value = [value]
    assert len(indented(value, 4)) < 10_000


def _deep_tree(depth: int) -> Report:
    nodes = tuple(
        SampledNode(
            at - 1 if at else None,
            depth - at,
            ReportedFrame(None, None, None, Adjustment.RETURN, ReportedSymbol(f"f{at}", None)),
        )
        for at in range(depth)
    )
    return Report(kind=ReportKind.SAMPLE, trees=(SampledTree(nodes=nodes),))


def test_stacks_that_end_at_every_level_of_a_deep_tree() -> None:
    """Formats that write each of them out write as much of each as their number allows."""
    size = len(write_reports([_deep_tree(5000)], "folded"))
    assert len(write_reports([_deep_tree(10_000)], "folded")) < _MAX_RATIO * size


def test_deep_stacks_are_cut_only_where_they_are_too_many() -> None:
    """And none of their samples is lost."""
    profile = profile_of(_deep_tree(2 * MAX_DEPTH))
    assert bounded(profile) is profile
    cut = bounded(profile, room=10_000)
    assert sum(cut.samples.weights) == sum(profile.samples.weights)
    assert max(len(list(cut.stacks.frames_of(row))) for row in cut.samples.stacks) == MAX_DEPTH


def test_deep_values_in_other_fields_are_an_error() -> None:
    """Which shows what is there, as far as it can be shown."""
    for text in (f'{{"report_schema":{DEEP}', f'{{"report_schema":1,"reports":[{DEEP}'):
        with pytest.raises(FormatError, match=r"schema|report 1"):
            _read(text)


def test_one_crashed_thread_leaves_the_others_folded() -> None:
    """Threads are open where there are few and none is the one."""
    threads = tuple(ReportedThread(index=index) for index in range(2))
    page = write_reports([Report(kind=ReportKind.LLDB, threads=threads)], "html").decode()
    assert page.count('class="thread" open') == 2
    crashed = (*threads, ReportedThread(index=2, crashed=True))
    page = write_reports([Report(kind=ReportKind.LLDB, threads=crashed)], "html").decode()
    assert page.count('class="thread" open') == 0
    assert page.count('class="thread crashed" open') == 1


def test_our_own_json_of_many_reports_is_as_long_as_they_are() -> None:
    """The payload has a hundred keys and as many diagnostics."""
    small, large = (_read(SHAPES["diagnostics"](count)) for count in (1000, 2000))
    assert len(reports_json(large)) < _MAX_RATIO * len(reports_json(small))


@pytest.mark.parametrize(
    "name", ["kscrash", "plcrash", "nsthread", "bs", "lldb", "sample", "folded", "html"]
)
def test_the_name_of_an_image_is_not_written_again_and_again(name: str) -> None:
    """It may be as long as all of its frames, and each frame's line has it."""
    text = (
        f'{_HEADER}{{"usedImages":[{{"base":4096,"size":4096,"name":"{"x" * 200_000}"}}],'
        f'"threads":[{{"frames":[{_listed(_FRAME, 1000)}]}}]}}'
    )
    assert len(write_reports(_read(text), name)) < 1000 * 10_000


def test_long_names_are_cut_where_folded_stacks_have_them_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All stacks are there nevertheless, and how often they were seen."""
    long = "y" * 500
    nodes = tuple(
        SampledNode(
            at - 1 if at else None,
            20 - at,
            ReportedFrame(None, None, None, Adjustment.RETURN, ReportedSymbol(long, None)),
        )
        for at in range(20)
    )
    report = Report(kind=ReportKind.SAMPLE, trees=(SampledTree(nodes=nodes),))
    whole = write_reports([report], "folded").decode()
    assert whole.count(long) == 20 * 21 // 2
    monkeypatch.setattr(folded, "ROOM", 50_000)
    cut = write_reports([report], "folded").decode()
    assert long not in cut
    assert cut.count("y" * 64 + "…") == 20 * 21 // 2
    assert [line.split(" ")[-1] for line in cut.splitlines()] == ["1"] * 20
