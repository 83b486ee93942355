"""KSCrash's text: below the images, and for values that were not recorded."""

from __future__ import annotations

import json
from typing import Any

from machtrace.model.report import Report
from machtrace.reports.kscrash.reader import read
from machtrace.reports.kscrash.text import kscrash_text
from machtrace.reports.source import ReportSource

OBJECT = {"class": "NSArray", "address": 16}


def reports(error: dict[str, Any], **more: Any) -> tuple[Report, ...]:
    """Return the reports of a file of a 32-bit device with one thread."""
    thread = {"index": 0, "crashed": True, "backtrace": {"contents": []}} | more.pop("thread", {})
    crash = {"error": error, "threads": [thread], **more.pop("crash", {})}
    document = {"report": {"id": "1"}, "system": {"cpu_arch": "armv7"}, "crash": crash, **more}
    return read(ReportSource("given", json.dumps(document).encode()))


def text_of(error: dict[str, Any], **more: Any) -> str:
    """Return the text of the one report."""
    (report,) = reports(error, **more)
    return kscrash_text(report)


def test_registers_that_were_not_recorded_are_zeros() -> None:
    """Those of an exception that was caught before it became a signal."""
    text = text_of({"type": "nsexception", "nsexception": {"name": "A", "reason": "b"}})
    state = text.partition("Thread 0 crashed with ARM Thread State:\n")[2].split("\n\n")[0]
    assert state.splitlines()[0].split() == ["r0:", "0x00000000"] + [
        word for number in (1, 2, 3) for word in (f"r{number}:", "0x00000000")
    ]
    assert state.splitlines()[-1] == "  cpsr: 0x00000000 "


def test_parts_below_the_images_are_parted_by_one_line() -> None:
    """The object of an exception comes first, right below the heading."""
    error = {"type": "nsexception", "nsexception": {"name": "A", "referenced_object": OBJECT}}
    text = text_of(error, crash={"diagnosis": "It broke."})
    assert text.endswith(
        "Extra Information:\nObject referenced by NSException:\n"
        '{\n    "address": 16,\n    "class": "NSArray"\n}\n\nCrashDoctor Diagnosis: It broke.\n'
    )
    assert text_of({"type": "signal"}).endswith("\nExtra Information:\n")


def test_a_deallocated_exception_is_reported() -> None:
    """And is the reason where a register has its address."""
    error = {
        "type": "mach",
        "mach": {"exception_name": "EXC_BAD_ACCESS", "code_name": "KERN_INVALID_ADDRESS"},
    }
    last = {"address": 32, "name": "Late", "reason": "too late", "referenced_object": OBJECT}
    process = {"last_dealloced_nsexception": last}
    expected = (
        "\n\nLast deallocated NSException (0x00000020): Late: too late\nReferenced object:\n{\n"
    )
    for value, is_said in ((32, True), (33, False)):
        registers = {"basic": {"r0": value}, "exception": {"far": 32}}
        text = text_of(error, process=process, thread={"registers": registers})
        assert expected in text
        assert ("uncaught exception 'Late', reason: 'too late'\nNOTE: " in text) == is_said


def test_old_files_have_the_crash_of_kscrash_inside() -> None:
    """Whichever is in the other, that one comes first, with the images of the other."""
    inner = {
        "report": {"id": "2", "type": "minimal"},
        "crash": {
            "error": {"type": "mach"},
            "crashed_thread": {
                "index": 7,
                "crashed": True,
                "backtrace": {"contents": [{"instruction_addr": 4100}]},
            },
        },
    }
    images = [{"image_addr": 4096, "image_size": 4096, "name": "/a/Demo"}]
    own, first = reports({"type": "mach"}, recrash_report=inner, binary_images=images)
    assert (own.incident.id, first.incident.id) == ("2", "1")
    assert "report that follows" in own.warnings[0]
    assert first.warnings == ()
    assert [(thread.index, thread.crashed) for thread in own.threads] == [(7, True)]
    assert own.threads[0].frames[0].image == 0
