"""Headers of little, bodies without one, and panics: what of an .ips file is enough."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from machtrace.errors import FormatError
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    Adjustment,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedThread,
    ReportKind,
)
from machtrace.reports.crash.writer import crash_text
from machtrace.reports.ips.writer import ips_text
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource

CRASH = {"procName": "Demo", "threads": [{"triggered": True, "frames": []}], "usedImages": []}
JETSAM = {"largestProcess": "Demo", "processes": [{"name": "Demo", "pid": 7}], "product": "iPad7,1"}
STACKSHOT = {"processByPid": {"7": {"pid": 7, "procname": "Demo"}}, "binaryImages": []}
PANIC = {
    "build": "iPhone OS 16.2 (20C65)",
    "product": "iPhone11,8",
    "date": "2023-01-02 03:04:05.06 +0000",
    "panicString": "panic(cpu 0 caller 0xfffffff012345678): forced\nDebugger message: panic\n",
}
TEXT = (
    "Process: Demo [7]\nException Type: EXC_CRASH\n\nThread 0 Crashed:\n0   Demo  0x1000 main + 4\n"
)


def read(text: str) -> Report:
    """Return the one report of a file."""
    (report,) = read_source(ReportSource("given", text.encode())).reports
    return report


@pytest.mark.parametrize("key", ["bug_type", "incident_id", "os_version", "app_name"])
@pytest.mark.parametrize("body", [CRASH, JETSAM, STACKSHOT, PANIC], ids=lambda one: next(iter(one)))
def test_one_key_is_a_header_where_a_body_follows(key: str, body: dict[str, Any]) -> None:
    """Written, it has the same JSON and reads back equal."""
    text = f"{json.dumps({key: '309'})}\n{json.dumps(body)}"
    report = read(text)
    assert report.kind is ReportKind.APPLE_IPS
    assert read(ips_text(report)) == report
    header, _, rest = ips_text(report).partition("\n")
    assert (json.loads(header), json.loads(rest)) == ({key: "309"}, body)


@pytest.mark.parametrize("key", ["bug_type", "incident_id", "os_version"])
def test_one_key_is_a_header_above_a_text(key: str) -> None:
    """Files of iOS until 14 are such."""
    report = read(f"{json.dumps({key: '109'})}\n{TEXT}")
    assert report.process.name == "Demo"
    assert report.crashed_thread is not None


def test_a_type_alone_is_a_header() -> None:
    """Without a body, and with one of which nothing is known."""
    assert read('{"bug_type": "309"}').incident.kind == "309"
    report = read('{"bug_type": "226"}\n{"events": [1, 2]}')
    assert report.details["events"] == [1, 2]


@pytest.mark.parametrize(
    "text",
    ['{"os_version": "14.1"}', '{"incident_id": "x"}\n{"event": 1}', '{"app_name": "x"}\nwords'],
)
def test_other_json_with_a_key_of_headers_is_no_report(text: str) -> None:
    """Many events and settings have such."""
    with pytest.raises(FormatError):
        read_source(ReportSource("given", text.encode()))


@pytest.mark.parametrize("body", [CRASH, JETSAM, STACKSHOT, PANIC], ids=lambda one: next(iter(one)))
def test_a_body_is_read_without_its_header(body: dict[str, Any]) -> None:
    """It is written without one, too."""
    report = read(json.dumps(body))
    assert json.loads(ips_text(report)) == body
    assert read(ips_text(report)) == report


def test_a_panic_has_the_kernel_s_text() -> None:
    """In the text too; all of the body stays as it was."""
    report = read(f'{{"bug_type": "210"}}\n{json.dumps(PANIC)}')
    assert (report.system.model, report.system.os_build) == ("iPhone11,8", "20C65")
    assert report.incident.time == PANIC["date"]
    assert report.application_information == (("", (PANIC["panicString"],)),)
    assert "panic(cpu 0 caller 0xfffffff012345678): forced" in crash_text(report)


def test_reports_without_a_header_get_one() -> None:
    """A report that was made, not read, is read again."""
    made = Report(kind=ReportKind.APPLE_IPS, threads=(ReportedThread(index=0),))
    header = json.loads(ips_text(made).partition("\n")[0])
    assert header == {"bug_type": "309"}
    assert len(read(ips_text(made)).threads) == 1


def test_frames_of_images_without_a_place_keep_their_addresses() -> None:
    """MetricKit's frames may be of several launches: no one place of their image is right."""
    frames = tuple(
        ReportedFrame(
            None if address is None else Avma(address), 0, ImageOffset(offset), Adjustment.EXACT
        )
        for address, offset in (
            (0x1000_4000, 0x4000),
            (0x2000_4000, 0x4000),
            (0x8000, 0x8000),
            (None, 0x4000),
        )
    )
    made = Report(
        kind=ReportKind.METRICKIT,
        threads=(ReportedThread(index=0, frames=frames),),
        images=(ReportedImage(uuid=UUID(int=5), name="Demo"),),
    )
    (thread,) = read(ips_text(made)).threads
    assert [(frame.address, frame.image, frame.offset) for frame in thread.frames] == [
        (frame.address, frame.image, frame.offset) for frame in frames
    ]
    entries = json.loads(ips_text(made).partition("\n")[2])["threads"][0]["frames"]
    assert ["address" in frame for frame in entries] == [True, True, False, True]
    again = read(ips_text(made))
    assert json.loads(ips_text(again).partition("\n")[2])["threads"][0]["frames"] == entries
    assert read(ips_text(again)) == again
    nowhere = Report(
        kind=ReportKind.KSCRASH,
        threads=(
            ReportedThread(index=0, frames=(ReportedFrame(None, None, None, Adjustment.EXACT),)),
        ),
    )
    assert read(ips_text(nowhere)).threads[0].frames[0].address is None


def test_a_stackshot_has_its_reason_and_time() -> None:
    """As devices write them."""
    more = {"reason": "Power assertion timeout", "date": "2020-10-14 09:29:19.55 +0100"}
    more |= {"product": "Watch4,2", "build": "Watch OS 7.0.1 (18R395)", "crashReporterKey": "key"}
    report = read(f'{{"bug_type": "288"}}\n{json.dumps(STACKSHOT | more)}')
    assert report.application_information == (("", ("Power assertion timeout",)),)
    assert report.incident.time == more["date"]
    assert (report.system.model, report.system.crash_reporter_key) == ("Watch4,2", "key")
    assert json.loads(ips_text(report).partition("\n")[2]) == STACKSHOT | more
