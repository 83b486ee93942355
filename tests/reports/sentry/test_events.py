"""Events of Sentry: what crashed, where, and what the event does not state."""

from __future__ import annotations

import json

import pytest

from machtrace.model.image import BuildId
from machtrace.model.report import Adjustment, ReportKind
from machtrace.reports.analysis.subject_stack import subject_stack
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from tests.support.reports.sentry import (
    APP_UUID,
    BASE,
    BUILD_ID,
    CRASHED,
    EVENT_ID,
    SENTRY_CRASH,
    SENTRY_EXCEPTION,
    SENTRY_HANG,
    SENTRY_NATIVE,
    SENTRY_PYTHON,
    SYSTEM_BASE,
    event,
    frame,
)


def read(data: bytes):
    (report,) = read_source(ReportSource("event.json", data)).reports
    assert report.kind is ReportKind.SENTRY
    return report


def offsets(frames):
    return [(each.image, each.offset, each.adjustment) for each in frames]


def test_a_crash_of_an_iphone():
    report = read(SENTRY_CRASH)
    assert report.incident.id == EVENT_ID
    assert report.incident.time == "2025-11-23T10:00:00.250000Z"
    assert str(report.images[0].uuid) == APP_UUID
    assert report.images[0].load_address == BASE
    assert report.images[0].details == {"type": "macho", "image_vmaddr": "0x0000000100000000"}
    exception = report.exception
    assert (exception.type, exception.signal) == ("EXC_BAD_ACCESS", "SIGSEGV")
    assert (exception.raw_codes, exception.address) == ((1, 16), 16)
    assert report.language_exception is None
    main, crashed = report.threads
    assert (main.id, main.crashed, crashed.id, crashed.crashed) == (0, False, 3, True)
    assert offsets(crashed.frames) == [
        (0, 0x1A0, Adjustment.EXACT),
        (0, 0x200, Adjustment.RETURN),
    ]
    assert offsets(main.frames) == [(1, 0x100, Adjustment.EXACT), (0, 0x400, Adjustment.RETURN)]
    assert [register.name for register in crashed.registers.registers] == ["pc", "x0"]
    process, system = report.process, report.system
    assert (process.identifier, process.version, process.build) == ("org.example.app", "2.1", "42")
    assert (system.model, system.os_name, system.os_build) == ("iPhone14,2", "iOS 26.1", "23B85")
    assert report.details["tags"] == {"screen": "start"}
    assert not report.warnings


def test_an_exception_has_return_addresses_alone():
    report = read(SENTRY_EXCEPTION)
    assert report.exception is None
    assert report.language_exception.name == "NSInvalidArgumentException"
    crashed = report.crashed_thread
    assert [each.adjustment for each in crashed.frames] == [Adjustment.RETURN] * 2
    assert subject_stack(report).frames == crashed.frames


def test_a_hang_is_about_the_main_thread():
    report = read(SENTRY_HANG)
    assert report.incident.kind == "hang"
    assert report.incident.details["value"] == "App hanging between 2.0 and 2.4 seconds."
    assert report.exception is None
    assert report.language_exception is None
    assert subject_stack(report).frames == report.threads[0].frames
    assert report.threads[0].frames[0].adjustment is Adjustment.EXACT


def test_a_crash_on_linux():
    report = read(SENTRY_NATIVE)
    (image,) = report.images
    assert image.uuid == BuildId(bytes.fromhex(BUILD_ID))
    assert report.exception.signal == "SIGSEGV"
    (thread,) = report.threads
    assert thread.crashed
    assert offsets(thread.frames) == [(0, 0x1100, Adjustment.EXACT), (0, 0x1200, Adjustment.RETURN)]
    assert report.details["debug_meta"] == {"images": [{"type": "sourcemap", "debug_id": APP_UUID}]}


def test_an_error_of_python_has_functions_and_lines():
    report = read(SENTRY_PYTHON)
    assert report.threads == ()
    thrown = report.language_exception
    assert (thrown.name, thrown.reason) == ("ValueError", "no price")
    assert [str(each.symbol) for each in thrown.frames] == [
        "shop.prices.price",
        "__main__.<module>",
    ]
    assert thrown.frames[0].location.path == "/srv/shop/prices.py"
    assert thrown.frames[0].location.line == 5
    assert thrown.frames[0].address is None
    assert thrown.frames[1].details["vars"] == {"card": "'4111'"}
    assert report.details["exception"]["values"][0]["type"] == "KeyError"  # the cause
    assert (report.process.identifier, report.process.version) == ("shop", "1.0")


def test_a_user_is_a_hash():
    report = read(SENTRY_CRASH)
    assert "someone" not in report.system.crash_reporter_key
    assert report.system.crash_reporter_key == read(SENTRY_HANG).system.crash_reporter_key
    other = json.loads(SENTRY_CRASH)
    other["user"]["id"] = "another@example.org"
    assert read(json.dumps(other).encode()).system.crash_reporter_key not in (
        report.system.crash_reporter_key,
        None,
    )


@pytest.mark.parametrize(
    "more", [{"message": "no stack"}, {"logentry": {"formatted": "no stack"}}, {"level": "info"}]
)
def test_an_event_without_a_stack(more):
    report = read(event(**more))
    assert report.threads == ()
    assert subject_stack(report) is None
    assert report.incident.kind == "message"


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("all", [Adjustment.RETURN, Adjustment.RETURN]),
        ("all_but_first", [Adjustment.EXACT, Adjustment.RETURN]),
        ("none", [Adjustment.ALREADY_ADJUSTED, Adjustment.ALREADY_ADJUSTED]),
        ("auto", [Adjustment.EXACT, Adjustment.RETURN]),
    ],
)
def test_a_stack_states_how_its_addresses_are(stated, expected):
    body = json.loads(SENTRY_CRASH)
    for holder in (body["exception"]["values"][0], body["threads"]["values"][1]):
        holder["stacktrace"]["instruction_addr_adjustment"] = stated
    frames = read(json.dumps(body).encode()).crashed_thread.frames
    assert [each.adjustment for each in frames] == expected


def test_a_frame_states_that_it_is_no_return_address():
    stack = {"frames": [frame(BASE + 0x200, adjust_instruction_addr=False), frame(BASE + 0x1A0)]}
    report = read(event(stacktrace=stack))
    assert report.threads[0].frames[1].lookup == 0x200


def test_an_address_may_be_relative_to_an_image():
    stack = {"frames": [{"instruction_addr": "0x1a0", "addr_mode": "rel:1", "function": "f"}]}
    (found,) = read(event(stacktrace=stack)).threads[0].frames
    assert (found.image, found.offset, found.address) == (1, 0x1A0, SYSTEM_BASE + 0x1A0)


def test_an_image_that_only_a_frame_names():
    address = 0x2_0000_0000
    stack = {
        "frames": [
            {
                "instruction_addr": address + 0x10,
                "image_addr": hex(address),
                "package": "/Library/Late.dylib",
                "function": "late",
                "symbol_addr": hex(address + 8),
            }
        ]
    }
    report = read(event(stacktrace=stack))
    (found,) = report.threads[0].frames
    assert report.images[found.image].name == "Late.dylib"
    assert found.offset == 0x10
    assert str(found.symbol) == "late + 8"


def test_the_exceptions_stack_fills_its_thread():
    body = json.loads(SENTRY_EXCEPTION)
    del body["threads"]["values"][1]["stacktrace"]
    report = read(json.dumps(body).encode())
    assert [each.offset for each in report.crashed_thread.frames] == [0x1A0, 0x200]


def test_a_handled_error_is_not_of_a_crashed_thread():
    body = json.loads(SENTRY_EXCEPTION)
    body["exception"]["values"][0]["mechanism"]["handled"] = True
    assert read(json.dumps(body).encode()).incident.kind == "handled"


def test_a_transaction_is_no_report():
    from machtrace.errors import FormatError

    data = json.dumps({"event_id": EVENT_ID, "type": "transaction", "platform": "x"}).encode()
    with pytest.raises(FormatError):
        read_source(ReportSource("event.json", data))


@pytest.mark.parametrize(
    "value", [None, 1, "x", [], {}, [1], {"values": [1, None]}, {"images": [{"type": {}}]}]
)
@pytest.mark.parametrize(
    "key", ["exception", "threads", "debug_meta", "contexts", "user", "stacktrace", "timestamp"]
)
def test_values_of_unexpected_types(key, value):
    read(event(**{"exception": {"values": [{"type": "E", "stacktrace": CRASHED}]}, key: value}))


@pytest.mark.parametrize(
    "address", ["0x", "-1", -1, 1 << 64, "0x" + "f" * 17, "１２", "1_0", None, True, 1.5, "9" * 20]
)
def test_addresses_that_are_none(address):
    report = read(event(stacktrace={"frames": [{"instruction_addr": address}]}))
    assert report.threads[0].frames[0].address is None


def test_several_events_in_a_list():
    text = b"[" + SENTRY_CRASH + b"," + SENTRY_PYTHON + b', {"other": 1}]'
    reports = read_source(ReportSource("events.json", text)).reports
    assert [report.kind for report in reports] == [ReportKind.SENTRY] * 2
