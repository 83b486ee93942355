"""The App Privacy Report of both forms, and what of it has recorded calls."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import jsonschema
import numpy as np
import pytest

from machtrace.audit.observed import os_report
from machtrace.audit.observed.os_report import Access, Host, parse_os_report, read_os_report
from machtrace.audit.observed.recall import recall, recall_lines
from machtrace.audit.observed.recording import Moments, Recording
from machtrace.audit.rules import load_rules
from machtrace.audit.trail.calls import Process, Trail, calls_of
from machtrace.audit.trail.stacks import tree_of
from machtrace.errors import ArgumentError, FileAccessError, FormatError
from tests.audit.observed.test_run import SCHEMA, audit
from tests.support.writers import spool as writer

SECOND = 10**9
START = 1_795_428_000 * SECOND
APP = "com.example.demo"


def at(seconds: float) -> str:
    """Return a time after the start, as a device in another time zone writes it."""
    time = datetime.fromtimestamp(START / SECOND + seconds, UTC)
    return time.isoformat(timespec="milliseconds")


def access(kind: str, seconds: float, category: str = "contacts", key: str = "1", app: str = APP):
    return {
        "accessor": {"identifier": app, "identifierType": "bundleID"},
        "category": category,
        "identifier": key,
        "kind": kind,
        "timeStamp": at(seconds),
        "type": "access",
    }


def earlier(seconds: float, service: str = "kTCCServiceAddressBook", **changed: object):
    return {
        "accessor": {"identifier": APP, "identifierType": "bundleID"},
        "stream": "com.apple.privacy.accounting.stream.tcc",
        "tccService": service,
        "identifier": "A",
        "kind": "event",
        "timestamp": at(seconds),
        "version": 3,
    } | changed


def host(domain: str, kind: int, **changed: object):
    return {
        "bundleID": APP,
        "domain": domain,
        "domainOwner": "Example",
        "domainType": kind,
        "firstTimeStamp": at(0),
        "timeStamp": at(1),
        "hits": 3,
        "initiatedType": "AppInitiated",
        "type": "networkActivity",
    } | changed


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def moment(seconds: float) -> int:
    return START + round(seconds * SECOND)


def test_accesses_of_the_present_form_are_intervals():
    report = parse_os_report(
        lines(
            access("intervalBegin", 1),
            access("intervalBegin", 2, "location", "2"),
            access("intervalEnd", 3),
            access("intervalEnd", 4, "photos", "3"),
        ),
        "r",
    )
    assert report.accesses == (
        Access(APP, "contacts", moment(1), moment(3)),
        Access(APP, "location", moment(2), None),
        Access(APP, "photos", None, moment(4)),
    )
    assert report.skipped == {}


def test_accesses_of_the_earlier_form_are_events():
    report = parse_os_report(
        lines(
            earlier(5),
            earlier(6, "kTCCServiceCamera"),
            earlier(7, stream="com.apple.privacy.accounting.stream.location"),
        ),
        "r",
    )
    assert report.accesses == (
        Access(APP, "contacts", moment(5), moment(5)),
        Access(APP, "camera", moment(6), moment(6)),
        Access(APP, "location", moment(7), moment(7)),
    )


def test_zones_of_times_are_regarded():
    row = access("intervalBegin", 0) | {"timeStamp": "2021-08-06T15:46:13.532-07:00"}
    (only,) = parse_os_report(lines(row), "r").accesses
    assert only.begin == 1_628_289_973_532 * 10**6


def test_hosts_that_may_track_are_of_type_one():
    report = parse_os_report(
        lines(host("ads.example", 1), host("api.example", 2, initiatedType="NonAppInitiated")), "r"
    )
    assert report.hosts == (
        Host(APP, "ads.example", 3, is_tracker=True, owner="Example", is_of_app=True),
        Host(APP, "api.example", 3, is_tracker=False, owner="Example", is_of_app=False),
    )


def test_no_line_is_left_out_unsaid():
    broken = [
        b"{",
        b"[1]",
        b"null",
        b"[" * 100_000,
        b'"' + b"x" * (1 << 21) + b'"',
        json.dumps(access("intervalBegin", 1) | {"timeStamp": "yesterday"}).encode(),
        json.dumps(access("intervalBegin", 1) | {"timeStamp": 5}).encode(),
        json.dumps(access("intervalBegin", 1) | {"timeStamp": "2021-08-06T15:46:13"}).encode(),
        json.dumps(access("sometimes", 1)).encode(),
        json.dumps(access("intervalBegin", 1) | {"accessor": None}).encode(),
        json.dumps(earlier(1, "kTCCServiceUnknown")).encode(),
        json.dumps({"type": "other"}).encode(),
        json.dumps({"type": ["x"]}).encode(),
        json.dumps(host("x", 1) | {"domain": None}).encode(),
        json.dumps(host("x" * 300, 1)).encode(),
        json.dumps(host("\x1b[2Jx", 1)).encode(),
        json.dumps(host("\ud800", 1)).encode(),
        json.dumps(host("x", 1, bundleID=5)).encode(),
        json.dumps(access("event", 1) | {"category": ["contacts"]}).encode(),
        json.dumps(access("event", 1) | {"timeStamp": "0001-01-01T00:00:00+14:00"}).encode(),
        json.dumps(access("event", 1) | {"timeStamp": "9999-12-31T23:59:59-14:00"}).encode(),
        json.dumps(access("event", 1) | {"timeStamp": "2016-12-31T23:59:60Z"}).encode(),
        json.dumps(access("event", 1)).encode("utf-16"),
        b"\xff\xfe\x00",
    ]
    data = b"\n".join([*broken, b"", lines(access("event", 1))])
    report = parse_os_report(data, "r")
    assert len(report.accesses) == 1
    assert sum(report.skipped.values()) == len(broken)


def test_a_begin_and_an_end_are_joined_in_either_order():
    report = parse_os_report(
        lines(
            access("intervalEnd", 3),
            access("intervalEnd", 8, key="2"),
            access("intervalBegin", 1),
            access("intervalBegin", 6, key="2"),
        ),
        "r",
    )
    assert report.accesses == (
        Access(APP, "contacts", moment(1), moment(3)),
        Access(APP, "contacts", moment(6), moment(8)),
    )


@pytest.mark.parametrize(
    ("end", "begin"),
    [
        (access("intervalEnd", 1), access("intervalBegin", 2)),
        (access("intervalEnd", 3, key=""), access("intervalBegin", 2, key="")),
        (access("intervalEnd", 3, app="com.other"), access("intervalBegin", 2)),
        (access("intervalEnd", 3, "photos"), access("intervalBegin", 2)),
    ],
)
def test_a_begin_and_an_end_of_two_intervals_are_not_joined(end, begin):
    for rows in ((end, begin), (begin, end)):
        accesses = parse_os_report(lines(*rows), "r").accesses
        assert sorted((each.begin is None, each.end is None) for each in accesses) == [
            (False, True),
            (True, False),
        ]


def test_lines_end_as_other_systems_end_them():
    data = lines(access("intervalBegin", 1), access("intervalEnd", 3)).replace(b"\n", b"\r\n")
    for before in (b"", b"\xef\xbb\xbf"):
        report = parse_os_report(before + data.rstrip(), "r")
        assert report.accesses == (Access(APP, "contacts", moment(1), moment(3)),)
        assert report.skipped == {}


def test_reasons_are_not_as_many_as_lines():
    rows = [{"type": f"other {number}"} for number in range(1000)]
    report = parse_os_report(lines(*rows, access("event", 1)), "r")
    assert sum(report.skipped.values()) == len(rows)
    assert len(report.skipped) <= 21


def test_a_long_line_is_one_line(monkeypatch):
    monkeypatch.setattr(os_report, "_MAX_LENGTH", 1 << 10)
    for size in (1023, 1024, 1025, 2047, 2048, 2049, 5000):
        data = b"x" * size + b"\n" + lines(access("event", 1))
        report = parse_os_report(data, "r")
        assert len(report.accesses) == 1
        assert sum(report.skipped.values()) == 1


def test_files_without_end_are_refused(monkeypatch):
    monkeypatch.setattr(os_report, "_MAX_BYTES", 1 << 12)
    with pytest.raises(FormatError, match="larger than"):
        parse_os_report(lines(access("event", 1)) * 100, "r")


@pytest.mark.parametrize("data", [b"", b"\n\n", b"{}", b"\x00" * 1000, b"<html>"])
def test_other_files_are_refused(data):
    with pytest.raises(FormatError, match="App Privacy Report"):
        parse_os_report(data, "r")


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileAccessError):
            read_os_report(path)


RULES = load_rules("privacy")
WATCHED = (
    "+[CNContactStore authorizationStatusForEntityType:]",
    "-[UIDevice name]",
)


def recording(*calls: tuple[float, int], **process: object) -> Recording:
    """Return a recording of calls: seconds after the start, and the number of the watched thing."""
    known = [rule.watch for rule in RULES.rules if rule.report == "contacts"]
    watches = (known[0], WATCHED[1])
    stacks, _ = tree_of([])
    facts = {"wall_offset": START, "wall_error": 0, "started": 0} | process
    trail = Trail(
        images=(),
        stacks=stacks,
        rules=watches,
        processes=(Process(run="1", **facts),),
        calls=calls_of(
            time=np.array([round(seconds * SECOND) for seconds, _ in calls], np.int64),
            rule=np.array([rule for _, rule in calls], np.int32),
        ),
    )
    return Recording(
        trail=trail, sources=("s",), moments=(Moments(started=0, marks=(), first_calls={}),)
    )


def compared(rows: bytes, *calls: tuple[float, int]):
    return recall(recording(*calls), RULES, parse_os_report(rows, "r"))


def test_an_access_with_a_call_of_its_kind_is_seen():
    rows = lines(access("intervalBegin", 10), access("intervalEnd", 12))
    for time in (6, 10, 11.9):
        result = compared(rows, (time, 0), (50, 1))
        assert (len(result.seen), len(result.missed)) == (1, 0)
        assert not list(result.alarms())


def test_an_access_without_a_call_is_an_alarm():
    rows = lines(access("intervalBegin", 10), access("intervalEnd", 12))
    for calls in ([(11, 1)], [(12.1, 0)], [(4, 0), (11, 1)]):
        result = compared(rows, *calls)
        assert (len(result.seen), len(result.missed)) == (0, 1)
        assert list(result.alarms()) == [
            "the system recorded contacts once where no watched call was recorded then"
        ]


def test_a_kind_that_nothing_watches_is_an_alarm():
    result = compared(lines(access("event", 10, "camera")), (10, 0))
    assert list(result.alarms()) == [
        "the system recorded camera once where no rule of this kind was watched"
    ]


def test_accesses_of_other_times_are_counted():
    rows = lines(access("event", -100), access("event", 10), access("event", 500))
    result = compared(rows, (10, 0))
    assert (len(result.seen), len(result.missed), result.outside) == (1, 0, 2)


def test_what_happens_between_two_recordings_is_no_alarm():
    first, second = recording((10, 0)), recording((10, 0), wall_offset=START + 1000 * SECOND)
    trail = first.trail
    calls = calls_of(
        time=np.full(2, 10 * SECOND), process=np.array([0, 1]), rule=np.zeros(2, np.int32)
    )
    both = replace(trail, processes=(*trail.processes, *second.trail.processes), calls=calls)
    report = parse_os_report(lines(*(access("event", at) for at in (10, 500, 1010))), "r")
    result = recall(replace(first, trail=both), RULES, report)
    assert (len(result.seen), len(result.missed), result.outside) == (2, 0, 1)


def test_a_recording_lasts_until_its_end():
    report = parse_os_report(lines(access("event", 900), access("event", 1001)), "r")
    result = recall(recording((1, 0), ended=1000 * SECOND), RULES, report)
    assert (len(result.missed), result.outside) == (1, 1)


def test_clocks_may_be_wrong():
    report = parse_os_report(lines(access("event", 10)), "r")
    for error, missed in ((0, 1), (SECOND, 0)):
        assert len(recall(recording((11, 0), wall_error=error), RULES, report).missed) == missed


def test_calls_without_an_access_are_counted():
    rows = lines(access("intervalBegin", 10), access("intervalEnd", 12), access("event", 11))
    result = compared(rows, (4.9, 0), (5, 0), (11, 0), (12, 0), (12.1, 0), (11, 1))
    assert (result.calls, result.unanswered) == (5, 2)
    assert not list(result.alarms())


def test_missing_ends_are_those_of_the_recording():
    result = compared(
        lines(access("intervalBegin", 1), access("intervalEnd", 2, key="9")), (1.5, 0)
    )
    assert (len(result.seen), len(result.missed)) == (2, 0)


def test_an_app_of_several_is_named():
    rows = lines(access("event", 1), access("event", 1, app="com.other"))
    with pytest.raises(ArgumentError) as refused:
        compared(rows, (1, 0))
    assert "com.other" in refused.value.remedy
    report = parse_os_report(rows, "r")
    assert recall(recording((1, 0)), RULES, report, "com.other").app == "com.other"
    assert recall(recording((1, 0), app="com.other"), RULES, report).app == "com.other"
    with pytest.raises(ArgumentError, match="does not have"):
        recall(recording((1, 0)), RULES, report, "com.third")


def test_text_lists_what_may_track():
    rows = lines(access("event", 1), host("ads.example", 1), host("api.example", 2))
    first, *others = recall_lines(compared(rows, (1, 0)))
    assert first.startswith(f"App Privacy Report of {APP}: 1 of 1 accesses have a recorded call")
    assert others == ["2 hosts contacted, 1 may track", "  ads.example (Example): 3 times"]


@pytest.fixture
def spool(tmp_path):
    """A spool with a call that gets contacts, 10 s after the start."""
    log = [(writer.RULE, writer.rule(0, "ABAddressBookCreateWithOptions"))]
    call = writer.Call(10 * SECOND, 0, 0)
    path = tmp_path / "app.spool"
    path.write_bytes(writer.spool(log, [[call]], started=START, ticks=0))
    return path


def ran(spool, rows: bytes, *words):
    report = spool.with_name("report.ndjson")
    report.write_bytes(rows)
    return audit(spool, "--os-report", report, *words)


def test_json_has_both_kinds_of_accesses(spool):
    rows = lines(access("event", 11), access("event", 12, "camera"), host("ads.example", 1))
    result = ran(spool, rows, "--format", "json")
    document = json.loads(result.stdout)
    jsonschema.validate(document, SCHEMA)
    compared = document["os_report"]
    assert [each["category"] for each in compared["seen"]] == ["contacts"]
    assert [each["category"] for each in compared["missed"]] == ["camera"]
    assert (compared["calls"], compared["unanswered"]) == (1, 0)
    assert result.return_value == 2


@pytest.mark.parametrize("data", [b"", b"nothing", b"\x00\xff" * 5000, b"\x7fELF", None])
def test_the_command_states_wrong_reports(spool, tmp_path, data):
    path = tmp_path if data is None else tmp_path / "report"
    if data is not None:
        path.write_bytes(data)
    for each in (path, tmp_path / "missing"):
        result = audit(spool, "--os-report", each)
        assert result.exception is None
        assert result.return_value == 2
        assert "App Privacy Report" in result.stderr
        assert "Traceback" not in result.output


def test_the_schema_has_the_report():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
