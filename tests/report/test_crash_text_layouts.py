"""Apple's text of a crash in each of its layouts, of files of which both forms are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from machtrace.model.json_value import JsonValue
from machtrace.model.report import Report, ReportKind
from machtrace.model.reported_frame import Adjustment
from machtrace.report.crash.reader import read_text
from machtrace.report.crash.writer import crash_text
from machtrace.report.reading import read_source
from machtrace.report.source import ReportSource

FOLDER = Path(__file__).parent / "apple"
PAIRS = ["mac-intel", "rosetta", "mac-26"]


def read(name: str) -> Report:
    """The one report of a file."""
    (report,) = read_source(ReportSource(name, (FOLDER / name).read_bytes())).reports
    return report


@pytest.mark.parametrize("name", PAIRS)
def test_a_report_of_macos_is_written_as_its_system_shows_it(name: str) -> None:
    """Report version 12 until macOS 15, and none since: line for line, with all empty lines."""
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
def test_a_text_says_what_the_file_of_the_same_incident_says(name: str) -> None:
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
        assert [(one.address, one.symbol, one.adjustment, one.is_inline) for one in got.frames] == [
            (one.address, one.symbol, one.adjustment, one.is_inline) for one in thread.frames
        ]
    assert [(one.uuid, one.name, one.path, one.load_address, one.size) for one in text.images] == [
        (one.uuid, one.name, one.path, one.load_address, one.size) for one in file.images
    ]


def only_in_files(name: str) -> dict[str, JsonValue]:
    """What .ips files have, and the text of the layout has not."""
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
    """So that a text can be written as an .ips file that says it in Apple's own words."""
    file, text = read(f"{name}.ips"), read(f"{name}.crash")
    for key in ("uptime", "sip", "wakeTime", "sleepWakeUUID", "bridgeVersion", "responsibleProc"):
        assert text.details.get(key) == file.details.get(key)
    for key in ("ktriageinfo", "vmRegionInfo", "vmSummary"):
        assert str(text.details.get(key)).rstrip() == str(file.details.get(key)).rstrip()
    assert text.details.get("extMods") == file.details.get("extMods")
    assert text.details.get("buildInfo") == file.details.get("buildInfo")


def test_what_a_processor_said_of_a_fault_is_read_and_written() -> None:
    """Below the registers of x86, and the bytes around the instruction."""
    (thread, *_) = read("mac-intel.crash").threads
    (given, *_) = read("mac-intel.ips").threads
    assert thread.registers is not None
    by_name = {one.name: one for one in thread.registers.registers}
    assert (by_name["trap"].value, by_name["trap"].description) == (
        14,
        "(no mapping for user data read)",
    )
    assert (by_name["cpu"].value, by_name["err"].value) == (6, 4)
    assert thread.details["instructionState"] == given.details["instructionState"]


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
