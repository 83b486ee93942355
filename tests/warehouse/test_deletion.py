"""Deletion is whole: from segments, from logs, and for everybody who reads later."""

from __future__ import annotations

import gzip
import json
from itertools import count, islice

import pytest

from machtrace.errors import ArgumentError
from machtrace.warehouse import log
from machtrace.warehouse.record_state import RecordState
from machtrace.warehouse.upkeep.deletion import ExpiryError, store_trusted_clock
from machtrace.warehouse.warehouse import Warehouse
from tests.support.command_line import run_command

HOUR = 3600 * 10**9


def report(incident: str, device: str) -> bytes:
    """Return a report of a device, with a stack that only it has."""
    head = {"incident_id": incident, "bug_type": "309"}
    frame = {"imageOffset": 4096 + len(incident), "imageIndex": 0}
    image = {"base": 4096, "size": 65536, "uuid": "0" * 31 + "1", "name": "App", "source": "P"}
    body = {
        "procName": "App",
        "crashReporterKey": device,
        "incident": incident,
        "exception": {"type": "EXC_CRASH"},
        "faultingThread": 0,
        "threads": [{"triggered": True, "frames": [frame]}],
        "usedImages": [image],
    }
    return json.dumps(head).encode() + b"\n" + json.dumps(body).encode()


@pytest.fixture
def warehouse(tmp_path):
    with Warehouse.create(tmp_path / "w") as made:
        yield made


def incidents(warehouse) -> list[str]:
    return sorted(warehouse.query("SELECT incident FROM reports")["incident"].to_pylist())


def stored_bytes(warehouse) -> bytes:
    files = [each for each in sorted(warehouse.folder.rglob("*")) if each.is_file()]
    return b"".join(file.read_bytes() for file in files if file.suffix in (".log", ".unfinished"))


def fill(warehouse) -> list[str]:
    """Two segments; a report that came twice, one in an archive, and one that cannot be read."""
    names = warehouse.receive([("1", report("i1", "phone-1")), ("2", report("i2", "phone-2"))])
    warehouse.flush()
    names += warehouse.receive(
        [
            ("1", report("i1", "phone-1")),
            ("3.gz", gzip.compress(report("i3", "phone-1"))),
            ("4", report("i4", "phone-2")),
            ("bad", b'{"crashReporterKey": "phone-1", broken'),
        ]
    )
    warehouse.flush()
    return names


def test_a_device_is_deleted_with_all_its_bytes(warehouse):
    names = fill(warehouse)
    deleted = warehouse.delete_device("phone-1")
    assert deleted == (2, 4)
    assert incidents(warehouse) == ["i2", "i4"]
    assert b"phone-1" not in stored_bytes(warehouse)
    assert b"phone-2" in stored_bytes(warehouse)
    assert warehouse.quarantined == []
    assert not list(warehouse.check())
    states = [warehouse.record_state(name)[0] for name in names]
    gone, there = RecordState.REMOVED, RecordState.PARSED
    assert states == [gone, there, gone, gone, there, gone]


def test_words_of_other_reports_are_no_device(warehouse):
    bodies = [
        report("i1", "phone-1"),
        report("i2", "phone-10"),
        report("i3", "x").replace(b'"App"', b'"phone-1"'),
        b'{"crashReporterKey": "phone-10", "name": "phone-1", broken',
    ]
    warehouse.receive([(str(number), body) for number, body in enumerate(bodies)])
    assert warehouse.delete_device("phone-1") == (1, 1)
    assert incidents(warehouse) == ["i2", "i3"]
    data = stored_bytes(warehouse)
    assert [body in data for body in bodies] == [False, True, True, True]


def test_other_rows_do_not_change(warehouse):
    fill(warehouse)
    text = "SELECT incident, role, key FROM stacks_of_reports WHERE device = 'phone-2' ORDER BY ALL"
    before = warehouse.query(text)
    warehouse.delete_device("phone-1")
    assert warehouse.query(text).equals(before)


def test_segments_that_were_joined_a_moment_ago_go_too(warehouse):
    fill(warehouse)
    assert warehouse.compact() == 2
    warehouse.delete_device("phone-1")
    assert len(list((warehouse.folder / "segments").iterdir())) == 1


def test_what_was_not_read_yet_is_deleted(warehouse):
    warehouse.receive([("1", report("i1", "phone-1")), ("2", report("i2", "phone-2"))])
    warehouse.delete_device("phone-1")
    assert incidents(warehouse) == ["i2"]


def test_a_deleted_report_that_is_sent_again_is_there_again(warehouse):
    fill(warehouse)
    warehouse.delete_device("phone-1")
    warehouse.receive([("1", report("i1", "phone-1"))])
    assert warehouse.flush().reports == 1
    assert warehouse.delete_device("phone-1").reports == 1


def test_a_report_is_deleted_by_its_key(warehouse):
    fill(warehouse)
    (key,) = warehouse.query("SELECT key FROM reports WHERE incident = 'i4'")["key"].to_pylist()
    assert warehouse.delete_report(key.hex()) == (1, 1)
    assert incidents(warehouse) == ["i1", "i2", "i3"]
    for wrong in ("", "x", "00"):
        with pytest.raises(ArgumentError):
            warehouse.delete_report(wrong)
    with pytest.raises(ArgumentError):
        warehouse.delete_device("")


def test_what_is_old_is_deleted(warehouse, monkeypatch):
    now = 10**18
    monkeypatch.setattr("time.time_ns", lambda: now)
    fill(warehouse)
    now += HOUR
    names = warehouse.receive([("5", report("i5", "phone-1"))])
    warehouse.expire(reports=now - 1)
    assert incidents(warehouse) == ["i5"]
    assert b"i4" not in stored_bytes(warehouse)
    assert warehouse.record_state(names[0])[0] is RecordState.PARSED
    assert warehouse.expire(reports=now - 1) == (0, 0)


def filled_each_hour(folder, monkeypatch, reports: int) -> int:
    """Make a warehouse that receives a report each hour, and return the time after the last."""
    now = 10**18
    with Warehouse.create(folder) as warehouse:
        for number in range(reports):
            monkeypatch.setattr("time.time_ns", lambda at=now: at)
            warehouse.receive([(str(number), report(f"i{number}", "phone-1"))])
            now += HOUR
        warehouse.flush()
    return now


@pytest.mark.parametrize("kind", ["reports", "raw"])
def test_a_clock_that_is_ahead_deletes_nothing(tmp_path, monkeypatch, kind):
    now = filled_each_hour(tmp_path / "w", monkeypatch, 8)
    with Warehouse(tmp_path / "w") as warehouse:
        before = stored_bytes(warehouse)
        later = now + 800 * 24 * HOUR
        with pytest.raises(ExpiryError, match="nothing was received for 800 days"):
            warehouse.expire(**{kind: later - 400 * 24 * HOUR}, clock=later)
        # What is received meanwhile is the newest report by the same clock.
        monkeypatch.setattr("time.time_ns", lambda: later)
        warehouse.receive([("late", report("late", "phone-1"))])
        with pytest.raises(ExpiryError, match="nothing was received for 800 days"):
            warehouse.expire(**{kind: later - 400 * 24 * HOUR}, clock=later)
        warehouse.flush()
        assert len(incidents(warehouse)) == 9
        assert stored_bytes(warehouse).startswith(before)
        assert not list(warehouse.check())
        assert warehouse.expire(**{kind: later - 400 * 24 * HOUR}).records == 8


DAY = 24 * HOUR


@pytest.fixture
def receptions(tmp_path, monkeypatch):
    """A warehouse whose clock is set by hand: ``receive(number, day)``, ``expire(day, ...)``."""
    with Warehouse.create(tmp_path / "w") as warehouse:
        start, names = 10**18, count()

        def receive(number: int, day: float) -> None:
            monkeypatch.setattr("time.time_ns", lambda: start + int(day * DAY))
            for name in islice(names, number):
                warehouse.receive([(f"{name}", report(f"i{name}", "phone-1"))])
            warehouse.flush()

        def expire(day: float, kind: str = "reports", age: float = 400):
            clock = start + int(day * DAY)
            return warehouse.expire(**{kind: clock - int(age * DAY)}, clock=clock)

        receive.warehouse, receive.expire = warehouse, expire
        receive.trust = lambda day: store_trusted_clock(warehouse.folder, start + int(day * DAY))
        yield receive


@pytest.mark.parametrize("kind", ["reports", "raw"])
@pytest.mark.parametrize(
    "before", [[(2, -30), (3, 0), (1, 380)], [(3, 0), (4, 800)], [(3, 0), (1, 790), (9, 800)]]
)
def test_what_a_wrong_clock_dated_is_no_evidence_for_it(receptions, kind, before):
    for number, day in before:
        receptions(number, day)
    stored = incidents(receptions.warehouse)
    with pytest.raises(ExpiryError, match=r"nothing was received for (380|79.|800) days"):
        receptions.expire(before[-1][1], kind)
    assert incidents(receptions.warehouse) == stored
    assert receptions.expire(1, kind) == (0, 0)  # the clock is right again


@pytest.mark.parametrize("kind", ["reports", "raw"])
def test_a_gap_is_acknowledged_once(receptions, kind):
    for number, day in [(1, 0), (3, 35), (3, 64), (3, 90)]:
        receptions(number, day)
    with pytest.raises(ExpiryError, match="for 35 days from 2001-09-09 on"):
        receptions.expire(90, kind, age=60)
    receptions.trust(64.5)
    assert receptions.expire(90, kind, age=60).records == 1
    assert receptions.expire(94.4, kind, age=60) == (0, 0)
    # What comes later is judged as before.
    receptions(3, 130)
    with pytest.raises(ExpiryError, match="for 40 days"):
        receptions.expire(130, kind, age=60)


@pytest.mark.parametrize("text", ["", "x", "2300-01-01T00:00:00+00:00", "0001-01-01", "\udcff"])
def test_a_time_of_trust_that_is_none_is_ignored(receptions, text):
    receptions(3, 0)
    receptions(4, 800)
    path = receptions.warehouse.folder / "clock.trusted"
    path.write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(ExpiryError):
        receptions.expire(800)


def test_reports_of_which_each_month_has_some_expire(receptions):
    for day in range(0, 500, 29):
        receptions(1, day)
    assert receptions.expire(500) == (4, 4)


def test_what_is_old_by_a_clock_that_may_be_right_is_deleted(tmp_path, monkeypatch):
    now = filled_each_hour(tmp_path / "w", monkeypatch, 8)
    with Warehouse(tmp_path / "w") as warehouse:
        assert warehouse.expire(reports=now - 5 * HOUR + 1, clock=now) == (4, 4)
        with pytest.raises(ExpiryError, match="3 of 4 reports"):
            warehouse.expire(reports=now - 2 * HOUR + 1, clock=now)
        # A clock that is behind selects nothing.
        assert warehouse.expire(reports=0, raw=0, clock=5 * HOUR) == (0, 0)


def test_records_that_a_clock_dated_later_do_not_keep_others(tmp_path, monkeypatch):
    folder = tmp_path / "w"
    with Warehouse.create(folder) as warehouse:
        for at in (2 * 10**18, *range(10**18, 10**18 + 8 * HOUR, HOUR)):
            monkeypatch.setattr("time.time_ns", lambda at=at: at)
            warehouse.receive([("x", report(f"i{at}", "phone-1"))])
        warehouse.flush()
        now = 10**18 + 8 * HOUR
        assert warehouse.expire(raw=now - 6 * HOUR, clock=now) == (0, 2)
        assert b"i2000000000000000000" in stored_bytes(warehouse)


def test_the_command_does_not_believe_a_clock(tmp_path, monkeypatch):
    filled_each_hour(tmp_path / "w", monkeypatch, 2)
    monkeypatch.undo()  # it is decades later
    compact = ("warehouse", "compact", tmp_path / "w", "--report-age", "400d")
    refused = run_command(*compact)
    assert refused.returncode == 1
    assert "nothing was deleted" in refused.stderr
    assert "--trust-clock" in refused.stderr
    assert "2 reports deleted" in run_command(*compact, "--trust-clock").stdout
    assert (tmp_path / "w" / "clock.trusted").is_file()


@pytest.mark.parametrize("stated", ["2099-01-01 00:00:00 +0000", "1970-01-01 00:00:01 +0000"])
def test_a_clock_of_a_device_that_is_wrong_dates_nothing(warehouse, stated):
    for number, time in enumerate(("2021-05-06 07:08:09 +0000", stated)):
        body = report(f"i{number}", "phone-1").replace(
            b'"bug_type"', f'"timestamp": "{time}", "bug_type"'.encode()
        )
        warehouse.receive([(str(number), body)])
    warehouse.flush()
    rows = warehouse.query("SELECT time, received FROM reports ORDER BY incident").to_pylist()
    assert [row["time"] for row in rows] == [1620284889 * 10**9, None]
    warehouse.regroup()
    (issue,) = warehouse.issues()
    assert (issue.first, issue.last) == (rows[0]["time"], rows[1]["received"])


def test_logs_are_removed_when_all_their_records_are(warehouse, monkeypatch):
    now = 10**18
    monkeypatch.setattr("time.time_ns", lambda: now)
    names = fill(warehouse)
    size = warehouse.folder.joinpath("log", "00000001.log").stat().st_size
    warehouse.expire(raw=now + 1)
    assert incidents(warehouse) == ["i1", "i2", "i3", "i4"]
    assert size > 0
    assert b"phone" not in stored_bytes(warehouse)
    assert [path.name for path in (warehouse.folder / "log").iterdir()] == ["00000002.log"]
    assert warehouse.record_state(names[0]) == (RecordState.REMOVED, ())
    assert warehouse.record_state(f"00000001-{size}") is None
    assert not list(warehouse.check())
    later = warehouse.receive([("5", report("i5", "phone-1"))])
    assert later[0].startswith("00000002-")
    assert warehouse.flush().reports == 1


def test_a_log_that_is_lost_is_damage(warehouse):
    fill(warehouse)
    (warehouse.folder / "log" / "00000001.log").unlink()
    assert [problem.where for problem in warehouse.check()] == ["00000001.log"]


@pytest.mark.parametrize(
    "step",
    ["warehouse.warehouse.remove_left_over", "left_over.remove_records", "left_over.sync_folder"],
)
def test_a_deletion_that_is_killed_is_finished_by_the_next_writer(tmp_path, monkeypatch, step):
    folder = tmp_path / "w"
    with Warehouse.create(folder) as warehouse:
        fill(warehouse)

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        package = "machtrace" if step.startswith("warehouse") else "machtrace.warehouse.upkeep"
        with monkeypatch.context() as patch:
            patch.setattr(Warehouse, "flush", lambda *_, **__: None)
            patch.setattr(f"{package}.{step}", killed)
            with pytest.raises(KeyboardInterrupt):
                warehouse.delete_device("phone-1")
    with Warehouse(folder) as warehouse:
        assert incidents(warehouse) == ["i2", "i4"]
        warehouse.flush()
        assert b"phone-1" not in stored_bytes(warehouse)
        assert not list(warehouse.check())


def test_a_removed_record_leaves_the_others_where_they_are(tmp_path):
    path = tmp_path / "1.log"
    writer = log.LogWriter(path)
    offsets = writer.append([b"one", b"two" * 1000, b"", b"four"])
    writer.close()
    size = path.stat().st_size
    log.remove_records(path, offsets[1:3])
    assert path.stat().st_size == size
    assert [(record.offset, record.body) for record in log.records(path)] == [
        (offsets[0], b"one"),
        (offsets[3], b"four"),
    ]
    writer = log.LogWriter(path)
    assert writer.size == size
    writer.close()


def test_quarantined_records_are_read_again(warehouse, monkeypatch):
    def refuse(*_: object) -> None:
        raise ValueError("a fault of an earlier version")

    with monkeypatch.context() as patch:
        patch.setattr("machtrace.warehouse.ingest.read_source", refuse)
        names = warehouse.receive([("1", report("i1", "phone-1")), ("bad", b"no report")])
        warehouse.flush()
    assert [row.name for row in warehouse.quarantined] == ["1", "bad"]
    warehouse.receive([("2", report("i2", "phone-2"))])
    warehouse.flush()
    assert warehouse.retry() == (1, 0, 1)
    assert incidents(warehouse) == ["i1", "i2"]
    assert [row.name for row in warehouse.quarantined] == ["bad"]
    assert warehouse.record_state(names[0]) == (RecordState.PARSED, ())
    assert warehouse.flush() == (0, 0, 0)
