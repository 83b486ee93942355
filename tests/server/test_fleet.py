"""``machtrace serve --demo``: a generated fleet sends everything that a warehouse holds."""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import run_command

pytest.importorskip("unicorn", reason="the fleet's stacks are those of an emulator")

from machtrace.cli.fleet import BUILDS, fleet_reports, fleet_symbols
from machtrace.cli.fleet_sender import send_fleet

pytestmark = pytest.mark.emulated


def test_a_fleet_is_the_same_each_time_and_has_no_names():
    first = list(fleet_reports())
    assert first == list(fleet_reports())
    assert not any(b"decode" in report.data for report in first)
    assert len({report.name for report in first}) == len(first)
    symbols = list(fleet_symbols())
    assert len({symbol.data for symbol in symbols}) == len(symbols) > len(BUILDS)


def test_a_fleet_is_sent_and_named(client):
    lines: list[str] = []
    send_fleet("127.0.0.1", client.port, lines.append).join()
    assert lines[-1] == f"pages: http://127.0.0.1:{client.port}/"
    query = "SELECT kind, count(DISTINCT build) AS builds FROM reports GROUP BY kind"
    answer = client.post("/v1/query", query, Content_Type="text/plain")
    rows = [json.loads(line) for line in answer.data.splitlines()]
    kinds = {row["kind"]: row["builds"] for row in rows}
    assert kinds == dict.fromkeys(("audit", "cpu", "crash", "hang", "memory", "profile"), 4)
    before, after = lines[2:6], lines[7:11]
    assert all("0x" in line for line in before)
    assert not any("0x" in line for line in after)
    assert [line.split()[0] for line in before] == [line.split()[0] for line in after]


def test_a_folder_with_files_is_not_a_place_for_it(tmp_path):
    (tmp_path / "file").touch()
    result = run_command("serve", str(tmp_path), "--demo")
    assert result.returncode == 1
    assert "the folder is not empty" in result.stderr
