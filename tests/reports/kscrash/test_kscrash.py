"""KSCrash's reports: hints that are wrong, exceptions, profiles, and crashes in KSCrash itself."""

from __future__ import annotations

import json

import pytest

from machtrace.model.report import Adjustment, Report
from machtrace.reports.kscrash.reader import read
from machtrace.reports.source import ReportSource
from tests.support.reports.samples import APP_BASE, APP_UUID
from tests.support.reports.variants import KSCRASH_PROFILE, KSCRASH_RECRASH

IMAGES = [
    {"image_addr": APP_BASE, "image_size": 0x8000, "name": "/x/App", "uuid": str(APP_UUID)},
    {"image_addr": APP_BASE + 0x10000, "image_size": 0x8000, "name": "/usr/lib/libobjc.A.dylib"},
]


def report_of(kind: str, *frames: dict[str, object], images: object = IMAGES) -> Report:
    """Return a report with one thread, which crashed."""
    thread = {"index": 0, "crashed": True, "backtrace": {"contents": list(frames), "skipped": 0}}
    crash = {"error": {"type": kind}, "threads": [thread]}
    text = json.dumps({"report": {}, "binary_images": images, "crash": crash})
    (report,) = read(ReportSource("report", text.encode()))
    return report


def test_a_name_of_another_image_is_rejected() -> None:
    """The address determines the image; the report's names stay in the details."""
    wrong = {
        "instruction_addr": APP_BASE + 0x104,
        "object_addr": APP_BASE + 0x10000,
        "object_name": "libobjc.A.dylib",
        "symbol_addr": APP_BASE + 0x10010,
        "symbol_name": "GCC_except_table763",
    }
    report = report_of("mach", wrong)
    (frame,) = report.threads[0].frames
    assert (frame.image, frame.offset, frame.symbol) == (0, 0x104, None)
    assert frame.details["symbol_name"] == "GCC_except_table763"
    (warning,) = report.warnings
    assert warning.startswith("1 frames are not in the image they name")


def test_a_name_of_the_same_image_is_a_hint() -> None:
    """With how far into it the frame is."""
    right = {
        "instruction_addr": APP_BASE + 0x104,
        "object_addr": APP_BASE,
        "object_name": "App",
        "symbol_addr": APP_BASE + 0x100,
        "symbol_name": "main",
    }
    report = report_of("mach", right)
    symbol = report.threads[0].frames[0].symbol
    assert symbol is not None
    assert (symbol.name, symbol.offset, report.warnings) == ("main", 4, ())


@pytest.mark.parametrize(
    ("kind", "innermost"),
    [
        ("mach", Adjustment.EXACT),
        ("signal", Adjustment.EXACT),
        ("hang", Adjustment.EXACT),
        ("nsexception", Adjustment.RETURN),
        ("cpp_exception", Adjustment.RETURN),
        ("user_reported", Adjustment.RETURN),
    ],
)
def test_only_who_was_interrupted_has_an_exact_address(kind: str, innermost: Adjustment) -> None:
    """Stacks of exceptions are lists of return addresses from the first one on."""
    entry = {"instruction_addr": APP_BASE + 4}
    report = report_of(kind, entry, entry)
    adjustments = [frame.adjustment for frame in report.threads[0].frames]
    assert adjustments == [innermost, Adjustment.RETURN]


def test_a_signature_is_taken_off_where_an_image_proves_it() -> None:
    """The report's value is preserved; an address in no image is unchanged."""
    signed = 0x0055_0000_0000_0000 | APP_BASE + 0x104
    nowhere = 0x0055_0000_DEAD_0000
    report = report_of("mach", {"instruction_addr": signed}, {"instruction_addr": nowhere})
    first, second = report.threads[0].frames
    assert (first.address, first.image, first.offset) == (APP_BASE + 0x104, 0, 0x104)
    assert first.details == {"instruction_addr": signed}
    assert (second.address, second.image) == (nowhere, None)


def test_an_image_that_only_frames_name_is_added() -> None:
    """Reports can have few of their images, and profiles have none."""
    entry = {
        "instruction_addr": 0x2_0000_0104,
        "object_addr": 0x2_0000_0000,
        "object_name": "Other",
    }
    report = report_of("mach", entry)
    (frame,) = report.threads[0].frames
    assert frame.image == len(IMAGES)
    assert report.images[frame.image].name == "Other"
    assert frame.offset == 0x104


def test_a_profile_is_a_tree() -> None:
    """Callers are parents: samples list frames innermost first."""
    (report,) = read(ReportSource("profile", KSCRASH_PROFILE))
    (tree,) = report.trees
    named = [
        (node.parent, node.samples, node.frame.symbol and node.frame.symbol.name)
        for node in tree.nodes
    ]
    assert named == [(None, 4, "main"), (0, 2, "work"), (1, 2, "leaf"), (0, 1, "work")]
    assert tree.count == 4
    assert [node.frame.adjustment for node in tree.nodes] == [
        Adjustment.RETURN,
        Adjustment.RETURN,
        Adjustment.EXACT,
        Adjustment.EXACT,
    ]
    assert report.images[0].uuid == APP_UUID
    assert report.warnings == ("1 sampled frames are not listed",)
    profile = json.loads(KSCRASH_PROFILE)["crash"]["error"]["profile"]
    assert report.details["crash"] == {"error": {"profile": profile}}


def test_a_crash_in_reporting_is_two_reports() -> None:
    """The first one uses the images of the second, if it has none of its own."""
    outer, first = read(ReportSource("recrash", KSCRASH_RECRASH))
    assert (outer.incident.id, first.incident.id) == ("C", "D")
    assert "report that follows" in outer.warnings[0]
    assert first.language_exception is not None
    assert first.language_exception.name == "NSRangeException"
    crashed, other = first.threads
    assert first.images == outer.images
    assert crashed.frames[0].adjustment is Adjustment.RETURN
    assert [frame.offset for frame in other.frames] == [0x108, 0x10C]


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (1_765_315_753, "2025-12-09T21:29:13Z"),
        (1_765_315_753_629_383, "2025-12-09T21:29:13.629383Z"),
        ("2025-12-09T21:29:13Z", "2025-12-09T21:29:13Z"),
        (-5, None),
        (10**30, None),
    ],
)
def test_times_of_all_versions_are_read(timestamp: object, text: str | None) -> None:
    """Seconds, microseconds or text; what is none of them stays where it was."""
    body = {"report": {"timestamp": timestamp}, "crash": {}}
    (report,) = read(ReportSource("report", json.dumps(body).encode()))
    assert report.incident.time == text


def test_a_report_that_is_not_quite_json_is_read() -> None:
    """Such have been written: a value is missing, and the end."""
    text = json.dumps({"report": {"id": "A"}, "binary_images": IMAGES, "crash": {"threads": []}})
    broken = text.replace('"id": "A"', '"id": "A", "run": ,')[:-3]
    (report,) = read(ReportSource("report", broken.encode()))
    assert (report.incident.id, len(report.images)) == ("A", 2)
    assert len(report.warnings) == 2


def test_reports_before_version_1_have_plainer_lists() -> None:
    """Frames are the thread's own list, and images the crash's."""
    thread = {"crashed": True, "backtrace": [{"instruction_addr": APP_BASE + 0x104}]}
    body = {"crash": {"binary_images": IMAGES, "threads": [thread]}, "system": {}}
    (report,) = read(ReportSource("old", json.dumps(body).encode()))
    assert [frame.offset for frame in report.threads[0].frames] == [0x104]
    assert len(report.images) == 2
