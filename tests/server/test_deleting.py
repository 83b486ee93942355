"""Deletion over HTTP, and of what is old."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from machtrace.warehouse.warehouse import Warehouse
from tests.server.serving import PATIENCE, running
from tests.warehouse.test_deletion import report


def stored(client) -> list[str]:
    return [row["incident"] for row in client.rows("SELECT incident FROM reports ORDER BY ALL")]


def send(client, incident: str, device: str) -> str:
    (name,) = client.post("/v1/reports", report(incident, device)).json["ids"]
    assert client.state(name)["state"] == "parsed"
    return name


def test_a_device_is_deleted(folder):
    with running(folder) as client:
        names = [send(client, f"i{number}", f"phone {number % 2}") for number in range(4)]
        answer = client.request("DELETE", "/v1/devices/phone%201")
        assert answer.status == 200, answer.data
        assert answer.json == {"reports": 2, "records": 2}
        assert stored(client) == ["i0", "i2"]
        assert client.get(f"/v1/reports/{names[1]}").json["state"] == "removed"
        assert client.get(f"/v1/reports/{names[2]}").json["state"] == "parsed"
        send(client, "later", "phone 1")
        assert stored(client) == ["i0", "i2", "later"]
        log = client.get("/v1/administration").data
        (row,) = [json.loads(line) for line in log.splitlines()]
        assert (row["action"], row["reports"], row["records"]) == ("delete", 2, 2)
        assert b"phone" not in log


@pytest.mark.parametrize("address", ["a%2Fb", "a/b", "%20a%2Fb%20"])
def test_a_device_with_a_slash_is_deleted(client, address):
    send(client, "i1", "a/b")
    send(client, "i2", "a")
    assert client.request("DELETE", f"/v1/devices/{address}").json == {"reports": 1, "records": 1}
    assert stored(client) == ["i2"]


@pytest.mark.parametrize("address", ["%00", "%ff", "a%2F", "..", "%2F", "x%20y%0A"])
def test_what_no_device_is_called_deletes_nothing(client, address):
    send(client, "i1", "a/b")
    answer = client.request("DELETE", f"/v1/devices/{address}")
    assert (answer.status, answer.json) == (200, {"reports": 0, "records": 0})
    assert client.request("DELETE", "/v1/devices/%20").status == 400
    assert client.request("DELETE", "/v1/devices/").status == 400
    assert stored(client) == ["i1"]


def test_a_hash_that_two_devices_have_deletes_nothing(folder):
    with running(folder) as client:
        send(client, "i1", "ab1")
    (folder / "scrub.key").write_bytes(bytes(32))  # as if an earlier version had hashed it
    with running(folder) as client:
        answer = client.request("DELETE", "/v1/devices/ab1")
        assert answer.status == 400
        assert "another device" in answer.json["error"]
        assert "uncertain=true" in answer.json["hint"]
        assert stored(client) == ["i1"]
        answer = client.request("DELETE", "/v1/devices/ab1?uncertain=true")
        assert answer.json == {"reports": 1, "records": 1}


def test_what_is_old_is_deleted(folder):
    with running(folder) as client:
        send(client, "i1", "phone-1")
    with running(folder, raw_age=0.0, trust_clock=True) as client:
        end = time.monotonic() + PATIENCE
        while client.get("/v1/reports/00000001-0").json["state"] != "removed":
            assert time.monotonic() < end
            time.sleep(0.02)
        assert stored(client) == ["i1"]
    with running(folder, report_age=0.0, trust_clock=True) as client:
        while stored(client):
            assert time.monotonic() < end + PATIENCE
            time.sleep(0.02)
    assert (folder / "clock.trusted").is_file()


def test_a_clock_that_is_ahead_deletes_nothing(folder, monkeypatch, capsys):
    with running(folder) as client:
        for number in range(3):
            send(client, f"i{number}", "phone-1")
    real, days = time.time_ns, 24 * 3600
    monkeypatch.setattr("machtrace.server.writer._RETENTION_PAUSE", 0.0)
    monkeypatch.setattr("time.time_ns", lambda: real() + 800 * days * 10**9)
    with running(folder, report_age=400.0 * days) as client:
        end = time.monotonic() + PATIENCE
        while "problems" not in (health := client.get("/healthz").json):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert health["status"] == "ok"
        assert "nothing was received for 800 days" in health["problems"][0]
        # It is tried again behind each report, which the same clock dates.
        for number in range(3, 8):
            send(client, f"i{number}", "phone-1")
        assert stored(client) == [f"i{number}" for number in range(8)]
    assert capsys.readouterr().err.count("nothing was deleted") == 1


def test_a_query_whose_files_are_deleted_meanwhile_is_made_again(client, folder, monkeypatch):
    send(client, "i1", "phone-1")
    send(client, "i2", "phone-2")
    calls = []

    async def run_for(_request, _pool, task):
        with Warehouse(folder) as warehouse:
            return task.work(warehouse)

    def work(warehouse):
        calls.append(warehouse)
        rows = warehouse.segments
        if len(calls) == 1:
            assert client.request("DELETE", "/v1/devices/phone-1").status == 200
        return [warehouse.segment(row.id).reports.num_rows for row in rows]

    monkeypatch.setattr("machtrace.server.service.run_for", run_for)
    assert asyncio.run(client.service.reading(None, work)) == [1]
    assert len(calls) == 2
