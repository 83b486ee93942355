"""Apple's text of a crash in each of its layouts, of files of which both forms are given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from machtrace.model.report import Adjustment, JsonValue, Report, ReportKind
from machtrace.reports.crash.reader import read_text
from machtrace.reports.crash.writer import crash_text
from machtrace.reports.ips.writer import ips_text
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.captures import capture_of

FOLDER = Path(__file__).parent / "apple"
PAIRS = ["mac-intel", "rosetta", "mac-26"]


def read(name: str) -> Report:
    """Return the one report of a file."""
    (report,) = read_source(ReportSource(name, (FOLDER / name).read_bytes())).reports
    return report


@pytest.mark.parametrize("name", PAIRS)
def test_a_report_of_macos_is_written_as_its_system_shows_it(name: str) -> None:
    """Every line and empty line is that of version 12, until macOS 15, or of none since."""
    assert crash_text(read(f"{name}.ips")) == (FOLDER / f"{name}.crash").read_text()


@pytest.mark.parametrize("name", PAIRS)
def test_a_text_is_written_as_it_was_read(name: str) -> None:
    """In the layout that it had; nothing is added, nothing is gone."""
    text = (FOLDER / f"{name}.crash").read_text()
    report = read_text(text)
    assert report.kind is ReportKind.APPLE_CRASH
    assert crash_text(report) == text
    assert read_text(crash_text(report)) == report


@pytest.mark.parametrize("name", PAIRS)
def test_a_text_equals_the_file_of_the_same_incident(name: str) -> None:
    """Process, system, exception and end; threads, their frames' places and names, and images."""
    file, text = read(f"{name}.ips"), read(f"{name}.crash")
    known = {key: getattr(text.process, key) for key in text.process.__dataclass_fields__}
    given = {key: getattr(file.process, key) for key in file.process.__dataclass_fields__}
    assert known | only_in_files(name) == given
    system = file.system
    if name != "mac-26":
        system = replace(system, model=None, release_type=None)
    assert text.system == system
    assert text.incident.time == file.incident.time
    assert text.exception is not None
    assert file.exception is not None
    assert (text.exception.type, text.exception.signal) == (
        file.exception.type,
        file.exception.signal,
    )
    assert text.exception.address == file.exception.address
    for got, thread in zip(text.threads, file.threads, strict=True):
        assert (got.index, got.name, got.queue, got.crashed) == (
            thread.index,
            thread.name,
            thread.queue,
            thread.crashed,
        )
        assert [
            (frame.address, frame.symbol, frame.adjustment, frame.is_inline) for frame in got.frames
        ] == [
            (frame.address, frame.symbol, frame.adjustment, frame.is_inline)
            for frame in thread.frames
        ]
    assert [
        (image.uuid, image.name, image.path, image.load_address, image.size)
        for image in text.images
    ] == [
        (image.uuid, image.name, image.path, image.load_address, image.size)
        for image in file.images
    ]


def only_in_files(name: str) -> dict[str, JsonValue]:
    """Return the keys of .ips files that the layout has no label for."""
    if name == "mac-26":
        return {"is_translated": False}
    if name == "rosetta":
        return {"identifier": None, "version": None}
    return {
        "coalition": "org.example.sketcher",
        "launch_time": "2024-05-06 07:00:00.0001 +0200",
    }


@pytest.mark.parametrize("name", PAIRS)
def test_labels_without_a_field_have_the_keys_of_ips_files(name: str) -> None:
    """Thus a text can be written as an .ips file with Apple's keys."""
    file, text = read(f"{name}.ips"), read(f"{name}.crash")
    for key in ("uptime", "sip", "wakeTime", "sleepWakeUUID", "bridgeVersion", "responsibleProc"):
        assert text.details.get(key) == file.details.get(key)
    for key in ("ktriageinfo", "vmRegionInfo", "vmSummary"):
        assert str(text.details.get(key)).rstrip() == str(file.details.get(key)).rstrip()
    assert text.details.get("extMods") == file.details.get("extMods")
    assert text.details.get("buildInfo") == file.details.get("buildInfo")


def test_fault_registers_are_read_and_written() -> None:
    """They follow the registers of x86; the bytes around the instruction come next."""
    (thread, *_) = read("mac-intel.crash").threads
    (from_file, *_) = read("mac-intel.ips").threads
    assert thread.registers is not None
    by_name = {register.name: register for register in thread.registers.registers}
    assert (by_name["trap"].value, by_name["trap"].description) == (
        14,
        "(no mapping for user data read)",
    )
    assert (by_name["cpu"].value, by_name["err"].value) == (6, 4)
    assert thread.details["instructionState"] == from_file.details["instructionState"]


def test_a_frame_left_out_by_the_system_is_counted() -> None:
    """Frames below a recursion have the numbers that they have in the whole stack."""
    (thread, *_) = read("mac-26.crash").threads
    assert thread.frames[3].details == {"number": 1001}
    lines = thread.details["lines"]
    assert isinstance(lines, list)
    assert lines[0] == [3, "-------- RECURSION LEVEL 1001"]


def test_frames_of_one_address_are_calls_inlined_into_each_other() -> None:
    """But a function that calls itself at one address is none of itself."""
    frames = read("text-body.ips").threads[0].frames
    assert [frame.is_inline for frame in frames] == [False, True, False, False, False]
    assert [frame.adjustment for frame in frames] == [Adjustment.EXACT] + [Adjustment.RETURN] * 4
    assert frames[4].details == {"place": ":-1"}
    marked = read("mac-26.crash").threads[0].frames
    assert [frame.is_inline for frame in marked] == [True, False, False, False, False]
    assert [frame.adjustment for frame in marked[:3]] == [
        Adjustment.EXACT,
        Adjustment.EXACT,
        Adjustment.RETURN,
    ]


@pytest.mark.parametrize(
    ("inner", "outer", "is_inlined"),
    [
        ("1   App   0x103a3d06c b + 2 (a.c:4)", "2   App   0x103a3d06c c + 8 (a.c:9)", True),
        ("1   App   0x103a3d06c b (a.c:4)", "2   App   0x103a3d06c c + 8", True),
        ("1   App   0x103a3d06c b (a.c:4)", "1   App   0x103a3d06c c + 8 (a.c:9)", True),
        ("1   App   0x103a3d06c b [inlined]", "2   App   0x103a3d06c c + 8", True),
        ("1   App   0x103a3d06c b + 2", "2   App   0x103a3d06c c + 8", False),
        ("1   App   0x103a3d06c b", "2   App   0x103a3d06c c + 8", False),
        ("1   App   0x103a3d06c b + 2 (a.c:4)", "2   Kit   0x103a3d06c c + 8 (a.c:9)", False),
        ("1   App   0x103a3d06c b + 2 (a.c:4)", "7   App   0x103a3d06c c + 8 (a.c:9)", False),
        ("1   App   0x103a3d06c b + 9 (a.c:4)", "2   App   0x103a3d06c c + 8 (a.c:9)", False),
        (
            "1   App   0x103a3d06c b + 12 (<compiler-generated>:0)",
            "2   App   0x103a3d06c c + 4388917356 (a.c:4388917356)",
            False,
        ),
    ],
)
def test_frames_of_one_address_may_be_unrelated(
    inner: str, outer: str, *, is_inlined: bool
) -> None:
    """Then both are frames, in all formats."""
    text = f"Thread 0 Crashed:\n0   App   0x103ef8700 a + 1\n{inner}\n{outer}\n"
    (report,) = read_source(ReportSource("given", text.encode())).reports
    assert [frame.is_inline for frame in report.threads[0].frames] == [False, is_inlined, False]
    stack = capture_of(report).stacks[0]
    names = [frame.symbol.name for frame in stack.frames if frame.symbol is not None]
    assert names == (["a", "c"] if is_inlined else ["a", "b", "c"])


SIMULATED = """
Incident Identifier: 11111111-2222-3333-4444-555555555555
CrashReporter Key:   key
Hardware Model:      MacBookPro18,3
Process:             Demo [42]
Path:                /Users/USER/*/Demo.app/Demo
Identifier:          org.example.demo
Version:             1.2 (3)
Code Type:           ARM-64 (Native)
Role:                Foreground
Parent Process:      launchd_sim [19]
Coalition:           com.apple.CoreSimulator [20]
Responsible Process: SimulatorTrampoline [21]

Date/Time:           2025-02-01 18:45:54.0676 -0500
Launch Time:         2025-02-01 18:45:18.4038 -0500
OS Version:          macOS 15.2 (24C101)
Release Type:        User
Report Version:      104

Exception Type:  EXC_BREAKPOINT (SIGTRAP)
Exception Codes: 0x0000000000000001, 0x0000000100004010
Termination Reason: SIGNAL 5 Trace/BPT trap: 5
Terminating Process: exc handler [42]

Triggered by Thread:  1

Thread 0::  Dispatch queue: com.apple.main-thread
0   libsystem_kernel.dylib        \t       0x180000010 mach_msg2_trap + 8

Thread 1 Crashed:
0   Demo                          \t       0x100004010 std::vector<int>::at(int) + 8 [inlined]
1   Demo                          \t       0x100004010 run() + 8 (Demo.swift:3)


Binary Images:
       0x100000000 -        0x10000ffff org.example.demo (1.2) <{first}> /Users/USER/*/Demo.app/Demo
       0x180000000 -        0x18000ffff libkernel.dylib (*) <{second}> /usr/lib/libkernel.dylib

EOF

"""


def test_programs_in_simulators_have_a_layout_of_their_own() -> None:
    """Labels of iOS; threads and images as macOS has them, as one pair of both forms showed."""
    uuids = ["00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"]
    text = SIMULATED.format(first=uuids[0], second=uuids[1])
    text = text.replace("libsystem_kernel.dylib        ", "libkernel.dylib               ")
    place = {"imageOffset": 0x4010, "symbolLocation": 8, "imageIndex": 0}
    image = {"source": "P", "arch": "arm64", "size": 65536}
    body = {
        "procRole": "Foreground",
        "modelCode": "MacBookPro18,3",
        "osVersion": {"train": "macOS 15.2", "build": "24C101", "releaseType": "User"},
        "captureTime": "2025-02-01 18:45:54.0676 -0500",
        "procLaunch": "2025-02-01 18:45:18.4038 -0500",
        "incident": "11111111-2222-3333-4444-555555555555",
        "pid": 42,
        "cpuType": "ARM-64",
        "procName": "Demo",
        "procPath": "/Users/USER/*/Demo.app/Demo",
        "bundleInfo": {
            "CFBundleIdentifier": "org.example.demo",
            "CFBundleShortVersionString": "1.2",
            "CFBundleVersion": "3",
        },
        "parentProc": "launchd_sim",
        "parentPid": 19,
        "coalitionName": "com.apple.CoreSimulator",
        "coalitionID": 20,
        "responsibleProc": "SimulatorTrampoline",
        "responsiblePid": 21,
        "crashReporterKey": "key",
        "userID": 501,
        "exception": {
            "codes": "0x0000000000000001, 0x0000000100004010",
            "rawCodes": [1, 0x100004010],
            "type": "EXC_BREAKPOINT",
            "signal": "SIGTRAP",
        },
        "termination": {
            "flags": 0,
            "code": 5,
            "namespace": "SIGNAL",
            "indicator": "Trace/BPT trap: 5",
            "byProc": "exc handler",
            "byPid": 42,
        },
        "threads": [
            {
                "queue": "com.apple.main-thread",
                "frames": [
                    place | {"imageOffset": 16, "imageIndex": 1, "symbol": "mach_msg2_trap"}
                ],
            },
            {
                "triggered": True,
                "frames": [
                    place
                    | {"symbol": "std::vector<int>::at(int)", "inline": True}
                    | {"sourceFile": "vector"},
                    place | {"symbol": "run()", "sourceFile": "Demo.swift", "sourceLine": 3},
                ],
            },
        ],
        "usedImages": [
            image
            | {"base": 0x100000000, "uuid": uuids[0], "name": "Demo"}
            | {"path": "/Users/USER/*/Demo.app/Demo", "CFBundleShortVersionString": "1.2"}
            | {"CFBundleIdentifier": "org.example.demo"},
            image
            | {"base": 0x180000000, "uuid": uuids[1], "name": "libkernel.dylib"}
            | {"path": "/usr/lib/libkernel.dylib"},
        ],
    }
    header = {"bug_type": "309", "platform": 7, "incident_id": body["incident"]}
    data = f"{json.dumps(header)}\n{json.dumps(body)}"
    (report,) = read_source(ReportSource("given", data.encode())).reports
    assert crash_text(report) == text
    (read_again,) = read_source(ReportSource("text", text.encode())).reports
    assert crash_text(read_again) == text
    (written,) = read_source(ReportSource("written", ips_text(report).encode())).reports
    assert written == report
