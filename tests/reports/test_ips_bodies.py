"""Bodies of .ips files: crashes, jetsam, stackshots, texts, and what is none of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from machtrace.errors import FormatError
from machtrace.model.report import Adjustment, JsonValue, Report, ReportKind
from machtrace.reports.crash.writer import crash_text
from machtrace.reports.ips.writer import ips_text
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource

FOLDER = Path(__file__).parent / "apple"
HEADER = {
    "app_name": "A",
    "bug_type": "309",
    "os_version": "iPhone OS 26.0 (1)",
    "incident_id": "I",
}


def read(data: bytes | str) -> tuple[Report, ...]:
    """Return the reports in a file."""
    data = data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")
    return read_source(ReportSource("given", data)).reports


def read_file(name: str) -> Report:
    """Return the one report of a file."""
    (report,) = read((FOLDER / name).read_bytes())
    return report


def documents(text: str) -> list[JsonValue]:
    """Return the JSON documents of a text, as the reader has them."""
    return [
        document.value
        for document in ReportSource("given", text.encode("utf-8", "surrogateescape")).documents
    ]


def body_of(body: Any) -> tuple[Report, list[JsonValue]]:
    """Return the report of a body under a usual header, and the documents of its file."""
    text = f"{json.dumps(HEADER)}\n{json.dumps(body)}\n"
    (report,) = read(text)
    return report, documents(text)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ips")), ids=lambda path: path.stem)
def test_a_file_is_written_with_the_same_json(path: Path) -> None:
    """Every key and value, none added; and read again it is the same report."""
    (report,) = read(path.read_bytes())
    if report.kind is ReportKind.APPLE_IPS:
        assert documents(ips_text(report)) == documents(path.read_text())
    assert read(crash_text(report) if report.kind is ReportKind.APPLE_CRASH else ips_text(report))


ODD_BODIES: dict[str, Any] = {
    "nothing": {},
    "a list": [1, 2],
    "no threads": {"procName": "A", "pid": 3, "bundleInfo": {}, "osVersion": {"train": "x"}},
    "empty lists": {"threads": [], "usedImages": [], "lastExceptionBacktrace": [], "asi": {}},
    "threads that are none": {"threads": [None, 1, {"frames": None}, {"thread": 1}, {}], "pid": -1},
    "frames that are none": {
        "threads": [{"frames": [None, 7, "f", {}, {"frame": 1}, {"symbol": "only"}]}],
        "usedImages": [{"base": 4096}],
    },
    "odd indices": {
        "threads": [
            {
                "frames": [
                    {"imageIndex": index, "imageOffset": offset, "symbolLocation": -4}
                    for index, offset in ((-1, 0), (1, 1), (0, -1), (0, 2**64), (True, 1), (0, 1.5))
                ]
            }
        ],
        "usedImages": [{"base": 2**64 - 1, "size": -1}, {"base": -1}],
    },
    "images that are none": {"usedImages": [None, "x", {"image": 1}, {"name": "", "uuid": "no"}]},
    "UUIDs": {
        "usedImages": [
            {"uuid": "82D13D98-219E-3040-B62A-07A297007A7C"},
            {"uuid": "82d13d98219e3040b62a07a297007a7c"},
            {"uuid": "00000000-0000-0000-0000-000000000000"},
        ]
    },
    "an exception that is a text": {"exception": "EXC_CRASH", "termination": [1], "asi": "words"},
    "texts in asi": {"asi": {"message": "words", "lib": ["more", 1]}, "procName": 5},
    "odd registers": {
        "threads": [
            {
                "triggered": True,
                "threadState": {
                    "x": [{"value": 1}, {"value": -1}],
                    "x0": {"value": 1},
                    "pc": {"value": 2**64},
                    "lr": {"value": 1, "symbol": "f", "symbolLocation": 4},
                    "flavor": {"value": 3},
                },
            },
            {"threadState": {"r": [{"value": 1}], "r1": {"value": 2}, "cpsr": {}}},
            {"threadState": {"r8": {"value": 1}, "rip": {"value": 2}, "x": {"value": 9}}},
        ]
    },
    "huge numbers": {"pid": 10**30, "uptime": -(10**30), "coalitionID": 2**63, "userID": 1.5},
    "our own keys": {
        "threads": [
            {
                "frames": [
                    {"imageIndex": 0, "imageOffset": 1, "adjustment": "exact"},
                    {"imageIndex": 0, "imageOffset": 2, "adjustment": "exact", "inline": True},
                    {"imageIndex": 0, "imageOffset": 3, "symbol": "s", "symbolSource": "report"},
                    {"imageIndex": 0, "imageOffset": 4, "symbol": "s", "symbolSource": "export"},
                    {"imageIndex": 0, "imageOffset": 5, "sourceFile": "a.c", "sourceLine": 0},
                ]
            }
        ],
        "usedImages": [{"base": 0}],
    },
    "time as in the header": {"captureTime": "T", "procName": "A"},
    "one text": {"string": "panic(cpu 1 caller 0xfffffff0): why\nmore"},
}


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=list(ODD_BODIES))
def test_an_odd_body_is_written_as_it_was(body: Any) -> None:
    """Values of any type are preserved in place."""
    report, original = body_of(body)
    assert documents(ips_text(report)) == original
    assert read(ips_text(report)) == (report,)
    crash_text(report)


def test_repeated_keys_are_both_preserved() -> None:
    """The second one gets a number."""
    text = f'{json.dumps(HEADER)}\n{{"pid": 1, "pid": 2, "procName": "A", "procName": "B"}}\n'
    (report,) = read(text)
    assert (report.process.pid, report.details["pid (2)"]) == (1, 2)
    assert documents(ips_text(report)) == documents(text)


def test_a_header_may_have_been_indented_or_lost() -> None:
    """As tools for JSON leave files."""
    body = {"procName": "A", "threads": [{"id": 1, "frames": []}], "incident": "I"}
    for text in (
        f"{json.dumps(HEADER, indent=2)}\n\n{json.dumps(body, indent=2)}",
        f"\ufeff  {json.dumps(HEADER)}{json.dumps(body)}",
    ):
        (report,) = read(text)
        assert (report.process.name, report.incident.id) == ("A", "I")
    alone = json.dumps(body)
    (report,) = read(alone)
    assert (report.process.name, report.incident.id) == ("A", "I")
    assert documents(ips_text(report)) == documents(alone)


def test_a_header_alone_is_a_report_with_a_warning() -> None:
    """It states at least the kind."""
    (report,) = read(json.dumps(HEADER))
    assert (report.incident.kind, report.warnings) == ("309", ("the header has no body",))
    assert documents(ips_text(report)) == [HEADER]


def test_a_body_that_is_not_json_is_an_error_or_read_as_far_as_it_goes() -> None:
    """It is never dropped in silence."""
    try:
        reports = read(f"{json.dumps(HEADER)}\n{{ this is not JSON")
    except FormatError:
        return
    assert any(report.warnings for report in reports)


def test_a_crash_in_text_below_a_header_is_read() -> None:
    """Files of iOS until 14 and those that Xcode exports are such."""
    report = read_file("text-body.ips")
    assert report.kind is ReportKind.APPLE_CRASH
    assert (report.process.name, report.process.pid) == ("App", 692)
    assert report.incident.kind == "109"
    assert report.incident.details["app_name"] == "App"
    assert report.details["storeInfo"] == {"applicationVariant": "1:iPhone11,8:14"}
    assert "Local Invention:     kept" in crash_text(report)


def test_the_full_report_below_a_text_is_read() -> None:
    """Macs show both; the text has less."""
    text = (FOLDER / "mac-intel.crash").read_text()
    rule = "-" * 37
    profile = "Model: iMac20,1, BootROM 1\nGraphics: a card"
    joined = (
        f"{rule}\nTranslated Report (Full Report Below)\n{rule}\n{text}\n"
        "-----------\nFull Report\n-----------\n\n"
        f"{(FOLDER / 'mac-intel.ips').read_text()}\n\n{profile}\n"
    )
    (report,) = read(joined)
    assert report.details["after body"] == profile
    assert report.threads == read_file("mac-intel.ips").threads
    assert profile in ips_text(report)
    assert read(ips_text(report)) == (report,)


def test_files_that_were_joined_are_several_reports() -> None:
    """As written by one call for several reports, and as people paste them."""
    originals = [read_file("mac-intel.ips"), read_file("jetsam.ips"), read_file("rosetta.ips")]
    assert list(read("\n".join(map(ips_text, originals)))) == originals


def test_a_jetsam_event_is_about_the_process_that_was_ended() -> None:
    """Else about the largest one; all others are in the details."""
    report = read_file("jetsam.ips")
    assert (report.process.name, report.process.pid) == ("Mail", 90)
    assert report.termination is not None
    assert report.termination.indicator == "per-process-limit"
    assert (report.system.model, report.system.os_name) == ("iPhone13,2", "iPhone OS 15.5")
    body = json.loads((FOLDER / "jetsam.ips").read_text().partition("\n")[2])
    for process in body["processes"]:
        process.pop("reason", None)
    largest, _ = body_of(body)
    assert (largest.process.name, largest.process.pid) == ("Game", 812)


def test_a_stackshot_has_all_processes_with_their_threads() -> None:
    """Kernel frames first, for they are inside of the calls that the program made."""
    report = read_file("stackshot.ips")
    assert [(task.process.name, task.process.pid) for task in report.others] == [
        ("kernel_task", 0),
        ("App", 350),
    ]
    app = report.others[1]
    thread = app.threads[0]
    assert (thread.id, thread.name) == (7001, "main")
    places = [
        (None if frame.image is None else app.images[frame.image].uuid, frame.offset, frame.address)
        for frame in thread.frames
    ]
    kernel, program = (str(image.uuid) for image in app.images)
    assert kernel.startswith("aaaaaaaa")
    assert program.startswith("bbbbbbbb")
    assert [offset for _, offset, _ in places] == [96, 16, 8, None, None]
    assert places[0][2] == 18446741874686296064 + 96
    assert [frame.adjustment for frame in thread.frames[:3]] == [
        Adjustment.EXACT,
        Adjustment.EXACT,
        Adjustment.RETURN,
    ]
    assert [len(other.threads) for other in report.others] == [1, 2]
    assert "App [350]" in crash_text(report)


def test_an_exception_that_nobody_caught_is_named() -> None:
    """Its own key has the name, else the runtime's last words."""
    thrown = read_file("mac-26.ips").language_exception
    assert thrown is not None
    assert (thrown.name, thrown.reason) == ("NSRangeException", "index 7 beyond bounds")
    assert thrown.frames[0].adjustment is Adjustment.RETURN
    words = "*** Terminating app due to uncaught exception 'Oops', reason: 'it's\nlate'"
    report, original = body_of({"asi": {"CoreFoundation": [words]}, "procName": "A"})
    assert report.language_exception is not None
    assert report.language_exception.name == "Oops"
    assert report.language_exception.reason == "it's\nlate"
    assert documents(ips_text(report)) == original


def test_rosettas_own_registers_stay_with_the_state() -> None:
    """They are not of the program that was translated."""
    report = read_file("rosetta.ips")
    assert report.process.is_translated is True
    registers = report.threads[0].registers
    assert registers is not None
    assert [register.name for register in registers.registers] == ["rip", "rax"]
    assert "rosetta" in registers.details


def test_bytes_that_are_no_utf8_come_back() -> None:
    """In names as in keys that nobody knows."""
    data = (
        f"{json.dumps(HEADER)}\n".encode() + b'{"procName": "A\xff", "other\xfe": "\xfd", "pid": 1}'
    )
    (report,) = read(data)
    assert documents(ips_text(report)) == documents(data.decode("utf-8", "surrogateescape"))


def test_a_file_that_was_cut_off_anywhere_is_read_or_refused() -> None:
    """After any character; what is read is written as it was read."""
    data = (FOLDER / "mac-26.ips").read_bytes()
    for end in range(0, len(data), 11):
        try:
            reports = read(data[:end])
        except FormatError:
            continue
        for report in reports:
            assert read(ips_text(report)) == (report,)
            crash_text(report)


def test_other_objects_begin_no_report_of_a_joined_file() -> None:
    """It may contain ``bug_type``; it stays with the document before it."""
    header = '{"bug_type":"309","incident_id":"%d"}\n'
    body = '{"threads":[],"usedImages":[],"x":%d}\n'
    other = '{"x":{"bug_type":1}} and more\n'
    text = header % 1 + body % 1 + other + header % 2 + body % 2
    source = ReportSource("test", text.encode())
    first, second = read_source(source).reports
    assert first.details["after body"] == other.strip()
    assert second.incident.id == "2"
    (alone,) = read_source(ReportSource("test", (body % 1 + other).encode())).reports
    assert alone.details["after body"] == other.strip()
    for report in (first, second, alone):
        written = ReportSource("again", ips_text(report).encode())
        assert read_source(written).reports == (report,)


def test_a_body_without_header_ends_where_a_further_report_begins() -> None:
    """Wherever it is in the file: also where the next header goes over several lines."""
    header = '{"bug_type":"309","incident_id":"1"}\n'
    body = '{"threads":[],"usedImages":[],"x":1}\n'
    reports = read_source(ReportSource("test", (body + header[:1] + "\n" + header[1:]).encode()))
    assert len(reports.reports) == 2
    text = header + body + '{"threads":[],"usedImages":[],"bug_type":"1"}\n{\n' + header[1:] + body
    found = read_source(ReportSource("test", text.encode())).reports
    assert [report.incident.kind for report in found] == ["309", "1", "309"]
    for report in found:
        again = read_source(ReportSource("again", ips_text(report).encode())).reports
        assert again == (report,)
