"""MetricKit's payloads: directions, offsets that are something else, and depth."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from machtrace.model.report import Adjustment, Report
from machtrace.reports.metrickit.reader import read
from machtrace.reports.source import ReportSource
from tests.support.reports.variants import STORE_LOGS

UUIDS = {
    "App": "82D13D98-219E-3040-B62A-07A297007A7C",
    "dyld": "A5D3B725-78C3-3E19-A765-CCEB22355093",
}
BASES = {"App": 0x1_0000_0000, "dyld": 0x1_8000_0000}


def frame(name: str, offset: int, *inner: dict[str, object], **more: object) -> dict[str, object]:
    """Return a frame in the form of payloads."""
    return {
        "binaryUUID": UUIDS[name],
        "binaryName": name,
        "address": BASES[name] + offset,
        "offsetIntoBinaryTextSegment": offset,
        "sampleCount": 1,
        **({"subFrames": list(inner)} if inner else {}),
        **more,
    }


def payload(key: str, *roots: dict[str, object], arch: str = "arm64") -> Report:
    """Return the one report of a payload with one stack."""
    stacks = [{"threadAttributed": True, "callStackRootFrames": list(roots)}]
    diagnostic = {
        "callStackTree": {"callStackPerThread": True, "callStacks": stacks},
        "diagnosticMetaData": {"platformArchitecture": arch, "osVersion": "iPhone OS 18.3 (22D63)"},
    }
    text = json.dumps({"timeStampBegin": "2026-02-03 00:00:00", key: [diagnostic]})
    (report,) = read(ReportSource("payload", text.encode()))
    return report


def test_the_root_of_a_crash_is_its_innermost_frame() -> None:
    """Every other address is where a call returns to."""
    report = payload("crashDiagnostics", frame("App", 0x100, frame("App", 0x200, frame("dyld", 8))))
    (thread,) = report.threads
    assert [frame.offset for frame in thread.frames] == [0x100, 0x200, 8]
    assert [frame.adjustment for frame in thread.frames] == [
        Adjustment.EXACT,
        Adjustment.RETURN,
        Adjustment.RETURN,
    ]
    assert thread.crashed
    assert [(image.name, image.load_address) for image in report.images] == list(BASES.items())
    assert report.details["payload"] == {"timeStampBegin": "2026-02-03 00:00:00"}


def test_the_root_of_a_hang_is_its_outermost_frame() -> None:
    """Callers are parents, counts are preserved, and leaves are program counters."""
    report = payload(
        "hangDiagnostics",
        frame(
            "dyld",
            0x10,
            frame("App", 0x100, sampleCount=4),
            frame("App", 0x200, sampleCount=5),
            sampleCount=9,
        ),
    )
    (tree,) = report.trees
    assert [(node.parent, node.samples, node.frame.offset) for node in tree.nodes] == [
        (None, 9, 0x10),
        (0, 4, 0x100),
        (0, 5, 0x200),
    ]
    assert not tree.is_inverted
    assert [node.frame.adjustment for node in tree.nodes] == [
        Adjustment.RETURN,
        Adjustment.EXACT,
        Adjustment.EXACT,
    ]


def test_an_odd_offset_of_arm64_was_moved_back_already() -> None:
    """MetricKit takes one byte from hangs' return addresses: it is not to be taken again."""
    report = payload("hangDiagnostics", frame("dyld", 0x103, frame("App", 0x207)))
    assert {node.frame.adjustment for node in report.trees[0].nodes} == {
        Adjustment.ALREADY_ADJUSTED
    }
    assert [node.frame.lookup for node in report.trees[0].nodes] == [0x103, 0x207]


def test_an_odd_offset_of_x86_proves_nothing() -> None:
    """Its instructions begin anywhere."""
    report = payload("hangDiagnostics", frame("dyld", 0x103, frame("App", 7)), arch="x86_64")
    assert report.trees[0].nodes[0].frame.adjustment is Adjustment.RETURN


@pytest.mark.parametrize("base", [0x1_0456_4000, 0x456_4000], ids=["64 bits", "watchOS"])
def test_offsets_that_are_load_addresses_are_put_right(base: int) -> None:
    """Crashes of iOS 14, 15 and macOS 12 have the one in the other's place."""
    swapped = frame("App", 0, address=base + 0x1A4, offsetIntoBinaryTextSegment=base)
    report = payload("crashDiagnostics", swapped)
    (one,) = report.threads[0].frames
    assert (one.address, one.offset) == (base + 0x1A4, 0x1A4)
    assert report.images[0].load_address == base
    assert "load addresses" in report.warnings[-1]


def test_offsets_of_the_same_payload_that_are_right_are_left() -> None:
    """Exceptions of CPU time had right ones when crashes did not."""
    right = frame("App", 0x4000)
    swapped = frame(
        "dyld", 0, right, address=0x1_8000_0ABC, offsetIntoBinaryTextSegment=BASES["dyld"]
    )
    report = payload("cpuExceptionDiagnostics", swapped)
    assert [node.frame.offset for node in report.trees[0].nodes] == [0xABC, 0x4000]


def test_a_crash_that_branches_stays_as_it_is() -> None:
    """To turn such a tree round could take the square of its size."""
    report = payload("crashDiagnostics", frame("App", 4, frame("App", 8), frame("dyld", 12)))
    assert not report.threads
    (tree,) = report.trees
    assert tree.is_inverted
    assert tree.nodes[0].frame.adjustment is Adjustment.EXACT


def test_a_payload_is_a_report_for_each_diagnostic() -> None:
    """They are in the file's order, each with its kind."""
    diagnostic = {
        "callStackTree": {"callStacks": []},
        "diagnosticMetaData": {"hangDuration": "20 sec"},
    }
    keys = ("crashDiagnostics", "hangDiagnostics", "diskWriteExceptionDiagnostics")
    text = json.dumps({key: [diagnostic, diagnostic] for key in keys})
    reports = read(ReportSource("payload", text.encode()))
    assert [report.incident.kind for report in reports] == [
        *("crash", "crash", "hang", "hang", "disk-write-exception", "disk-write-exception"),
    ]


def test_stores_logs_have_numbers_as_text() -> None:
    """Their roots are outermost frames, and they have names and lines."""
    (report,) = read(ReportSource("logs", STORE_LOGS))
    assert report.incident.kind == "disk-write-exception"
    outer, inner = report.trees[0].nodes
    assert (outer.parent, inner.parent, outer.samples) == (None, 0, 51)
    assert outer.frame.address == 0x1_8000_0084
    assert outer.frame.symbol is not None
    assert (outer.frame.symbol.name, outer.frame.symbol.offset) == ("_dispatch_call", 32)
    assert outer.frame.location is not None
    assert (outer.frame.location.path, outer.frame.location.line) == ("init.c", 1466)
    assert inner.frame.details["isBlameFrame"] is True
    assert report.details["product"] == {
        "signatureId": "s1",
        "diagnosticInsights": [{"insightsCategory": "SQLiteSpill"}],
    }


def test_the_names_of_exceptions_are_the_kernels() -> None:
    """``mach/exception_types.h`` and ``sys/signal.h``; true is no number."""
    metadata = {"exceptionType": 1, "signal": 11, "exceptionCode": 2, "terminationReason": "why"}
    text = {"callStackTree": {}, "diagnosticMetaData": metadata}
    (report,) = read(ReportSource("one", json.dumps(text).encode()))
    assert report.exception is not None
    assert (report.exception.type, report.exception.signal) == ("EXC_BAD_ACCESS", "SIGSEGV")
    assert report.exception.raw_codes == (2,)
    text["diagnosticMetaData"] = {"exceptionType": True, "exceptionCode": 1}
    (report,) = read(ReportSource("one", json.dumps(text).encode()))
    assert report.details["diagnosticMetaData"] == {"exceptionType": True}


def test_a_stack_of_thirty_thousand_frames_is_read_whole() -> None:
    """However deep a file is nested."""
    count = 30_000
    start = "".join(
        f'{{"binaryUUID":"{UUIDS["App"]}","address":{BASES["App"] + 4 * n},'
        f'"offsetIntoBinaryTextSegment":{4 * n},"sampleCount":1,"subFrames":['
        for n in range(count)
    )
    text = '{"callStacks":[{"callStackRootFrames":[' + start + "]}" * count + "]}]}"
    (report,) = read(ReportSource("deep", text.encode()))
    frames = report.threads[0].frames
    assert [one.offset for one in frames] == [4 * n for n in range(count)]


def test_reports_of_ios_27_have_one_diagnostic() -> None:
    """Image names are beside the tree, the process' fields beside both.

    The shape is that of tests of an open-source library, which name iOS 27.2's SDK as its source.
    """
    uuids = [str(UUID(int=number)).upper() for number in (1, 2)]
    inner = {"binaryUUID": uuids[0], "address": 0x100000500, "offsetIntoBinaryTextSegment": 0x500}
    root = {"binaryUUID": uuids[1], "address": 0x180001234, "offsetIntoBinaryTextSegment": 0x1234}
    names: list[object] = [
        [{"uuid": uuids[0], "name": "App"}, {"uuid": uuids[1], "name": "libsystem_malloc.dylib"}],
        {uuids[0].lower(): {"name": "App"}, uuids[1]: {"name": "libsystem_malloc.dylib"}},
        [uuids[0], {"name": "App"}, uuids[1], {"name": "libsystem_malloc.dylib"}],
    ]
    for binaries in names:
        stack = {"threadAttributed": True, "rootFrames": [{**root, "subFrames": [inner]}]}
        tree = {"callStackPerThread": True, "binaryInfo": binaries, "callStackThreads": [stack]}
        document = {
            "timeRange": {"begin": 1.5, "end": 2.5},
            "environment": {
                "pid": 42,
                "bundleIdentifier": "org.example.App",
                "applicationVersion": "9.9",
                "osVersion": {"platform": "iOS", "number": "27.0", "buildNumber": "24A1"},
                "states": {},
            },
            "memoryExceptionDiagnostic": {"callStackTree": tree},
        }
        (report,) = read(ReportSource("given", json.dumps(document).encode()))
        assert (report.incident.kind, report.process.pid) == ("memory-exception", 42)
        assert (report.system.os_name, report.system.os_build) == ("iOS 27.0", "24A1")
        assert report.process.version == "9.9"
        (thread,) = report.threads
        assert thread.crashed
        assert [report.images[frame.image or 0].name for frame in thread.frames] == [
            "libsystem_malloc.dylib",
            "App",
        ]
        assert report.details["environment"] == {"states": {}}
        assert report.details["payload"] == {"timeRange": {"begin": 1.5, "end": 2.5}}


def test_a_crash_of_ios_27_has_its_exception() -> None:
    """The diagnostic itself contains it."""
    document = {
        "environment": {"pid": 42},
        "crashDiagnostic": {
            "callStackTree": {"callStackThreads": []},
            "exceptionType": 1,
            "signal": 11,
            "exceptionReason": {"exceptionName": "Bad", "composedMessage": "words"},
        },
    }
    (report,) = read(ReportSource("given", json.dumps(document).encode()))
    assert report.exception is not None
    assert (report.exception.type, report.exception.signal) == ("EXC_BAD_ACCESS", "SIGSEGV")
    assert report.language_exception is not None
    assert report.language_exception.name == "Bad"


def test_a_tree_may_be_a_text_of_json() -> None:
    """As who keeps what the API returns writes it."""
    tree = {"callStacks": [{"callStackRootFrames": [{"binaryName": "App", "address": 4096}]}]}
    for value in (tree, json.dumps(tree)):
        document = {"crashDiagnostics": [{"callStackTree": value}]}
        (report,) = read(ReportSource("given", json.dumps(document).encode()))
        assert [frame.address for frame in report.threads[0].frames] == [4096]
