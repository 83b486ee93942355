"""Exports are whole files of other programs, with all rows."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from machtrace.errors import ArgumentError
from machtrace.reports.files import read_reports
from machtrace.warehouse import export
from machtrace.warehouse.warehouse import Warehouse
from tests.support.command_line import run_command
from tests.support.reports.samples import IPS, REPORT_SAMPLES

ROWS = "SELECT * FROM stacks_of_reports ORDER BY ALL"


@pytest.fixture
def folder(tmp_path):
    with Warehouse.create(tmp_path / "w") as made:
        made.receive(list(REPORT_SAMPLES.items()))
        made.flush()
    return tmp_path / "w"


@pytest.mark.parametrize("batch", [7, 1 << 16])
def test_all_rows_are_exported_in_each_format(folder, tmp_path, monkeypatch, batch):
    monkeypatch.setattr("machtrace.warehouse.reader.BATCH_ROWS", batch)
    with Warehouse(folder) as warehouse:
        expected = warehouse.query(ROWS)
        sizes: list[int] = []
        for form in export.ExportFormat:
            path = tmp_path / f"rows.{form}"
            rows = warehouse.export(path, ROWS, on_bytes=sizes.append)
            assert rows == expected.num_rows
            assert sum(sizes) == path.stat().st_size
            sizes.clear()
    parquet = pa.parquet.read_table(tmp_path / "rows.parquet")
    with pa.ipc.open_file(tmp_path / "rows.arrow") as file:
        arrow = file.read_all()
    assert parquet.to_pylist() == arrow.to_pylist() == expected.to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["key"] for row in lines] == [key.hex() for key in expected["key"].to_pylist()]
    table = pa.csv.read_csv(tmp_path / "rows.csv")
    assert table.column_names == expected.column_names
    assert table["weight"].to_pylist() == expected["weight"].to_pylist()


def test_an_export_without_rows_has_the_columns(folder, tmp_path):
    with Warehouse(folder) as warehouse:
        for form in export.ExportFormat:
            path = tmp_path / f"rows.{form}"
            assert warehouse.export(path, "SELECT kind, key FROM reports LIMIT 0") == 0
    assert pa.parquet.read_table(tmp_path / "rows.parquet").column_names == ["kind", "key"]
    assert (tmp_path / "rows.csv").read_text() == '"kind","key"\n'
    assert (tmp_path / "rows.jsonl").read_text() == ""


def test_what_fails_leaves_no_file(folder, tmp_path):
    target = tmp_path / "rows.csv"
    target.write_text("before")
    with Warehouse(folder) as warehouse:
        failing = "SELECT 1 AS n UNION ALL SELECT error('x')::INT FROM range(3)"
        for text in ("FROM nothing", "COPY reports TO 'x'", failing):
            with pytest.raises(ArgumentError):
                warehouse.export(target, text)
        with pytest.raises(ArgumentError, match="no format"):
            warehouse.export(tmp_path / "rows.xlsx", ROWS)
    assert target.read_text() == "before"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.csv", "w"]


@pytest.mark.parametrize("form", ["pprof", "speedscope", "firefox", "folded"])
def test_stacks_are_read_back(folder, tmp_path, form):
    path = tmp_path / "stacks"
    words = (folder, path, "--stacks", "role = 'sample'", "--format", form)
    result = run_command("warehouse", "export", *words)
    assert result.returncode == 0, result.stderr
    (made,) = read_reports(path)
    with Warehouse(folder) as warehouse:
        text = "SELECT sum(weight)::INT AS n FROM stacks_of_reports WHERE role = 'sample'"
        weight = warehouse.query(text)["n"][0].as_py()
    roots = [node for tree in made.trees for node in tree.nodes if node.parent is None]
    assert sum(node.samples for node in roots) == weight


def test_the_bytes_of_a_report(folder, tmp_path):
    with Warehouse(folder) as warehouse:
        text = "SELECT key FROM reports WHERE format = 'ips'"
        (key,) = warehouse.query(text)["key"].to_pylist()
    path = tmp_path / "a.ips"
    result = run_command("warehouse", "export", folder, path, "--report", key.hex())
    assert result.returncode == 0, result.stderr
    assert path.read_bytes() == IPS
    path.unlink()
    with Warehouse(folder) as warehouse:
        warehouse.expire(raw=1 << 62)
    result = run_command("warehouse", "export", folder, path, "--report", key.hex())
    assert result.returncode == 1
    assert not path.exists()


@pytest.mark.parametrize(
    "words",
    [(), ("--query", "FROM reports", "--stacks", "true"), ("--stacks", "true", "-f", "csv")],
)
def test_command_lines_that_are_wrong(folder, tmp_path, words):
    result = run_command("warehouse", "export", folder, tmp_path / "x.csv", *words)
    assert result.returncode == 2, result.stderr
    assert not (tmp_path / "x.csv").exists()
