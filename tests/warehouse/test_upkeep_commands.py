"""``machtrace warehouse delete``, ``retry`` and ``compact``."""

from __future__ import annotations

import json

import pytest

from machtrace.warehouse.warehouse import Warehouse
from tests.support.command_line import run_command
from tests.warehouse.test_deletion import report


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "w"
    with Warehouse.create(path) as made:
        for number in range(4):
            incident = f"i{number}"
            made.receive([(incident, report(incident, f"phone-{number % 2}"))])
            made.flush()
    return path


def run(*words: object, status: int = 0) -> str:
    result = run_command("warehouse", *map(str, words))
    assert result.returncode == status, result.stderr
    return result.stdout


def incidents(folder) -> list[str]:
    with Warehouse(folder) as warehouse:
        return sorted(warehouse.query("SELECT incident FROM reports")["incident"].to_pylist())


def test_a_device_is_deleted(folder):
    answer = json.loads(run("delete", folder, "--device", "phone-1", "--format", "json"))
    assert (answer["reports"], answer["records"]) == (2, 2)
    assert incidents(folder) == ["i0", "i2"]
    assert "0 reports deleted" in run("delete", folder, "--device", "phone-1")


def test_a_report_is_deleted_by_the_key_that_a_query_prints(folder):
    text = "SELECT key FROM reports WHERE incident = 'i1'"
    answer = json.loads(run("query", folder, text, "--format", "json"))
    assert "1 report deleted" in run("delete", folder, "--report", answer["rows"][0][0])
    assert incidents(folder) == ["i0", "i2", "i3"]


def test_reports_before_a_date_are_deleted(folder):
    assert "0 reports deleted" in run("delete", folder, "--before", "0001-01-01T00:00+23:00")
    assert "4 reports deleted" in run("delete", folder, "--before", "2999-01-01")
    assert incidents(folder) == []


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ((), 2),
        (("--device", ""), 1),
        (("--device", "a", "--before", "2001-01-01"), 2),
        (("--report", "zz"), 1),
        (("--before", "soon"), 2),
    ],
)
def test_what_selects_nothing_is_refused(folder, words, status):
    run("delete", folder, *words, status=status)
    assert len(incidents(folder)) == 4


def test_compaction_removes_what_is_old(folder):
    answer = json.loads(
        run("compact", folder, "--raw-age", "0", "--trust-clock", "--format", "json")
    )
    assert answer["deleted"] == {"reports": 0, "records": 4}
    assert len(incidents(folder)) == 4
    answer = json.loads(run("compact", folder, "--report-age", "1d", "--format", "json"))
    assert answer["deleted"] == {"reports": 0, "records": 0}
    assert "4 reports deleted" in run("compact", folder, "--report-age", "0d", "--trust-clock")
    assert incidents(folder) == []
    assert "deleted" not in json.loads(run("compact", folder, "--format", "json"))


def test_the_quarantine_is_read_again(folder, monkeypatch):
    def refuse(*_: object) -> None:
        raise ValueError("a fault")

    with Warehouse(folder) as warehouse, monkeypatch.context() as patch:
        patch.setattr("machtrace.warehouse.ingest.read_source", refuse)
        warehouse.receive([("late", report("late", "phone-9")), ("bad", b"no report")])
        warehouse.flush()
    answer = json.loads(run("retry", folder, "--format", "json", status=1))
    assert answer["reports"] == 1
    assert [row["name"] for row in answer["quarantined"]] == ["bad"]
    assert "1 record in quarantine" in run("retry", folder, status=1)
    assert "late" in incidents(folder)
