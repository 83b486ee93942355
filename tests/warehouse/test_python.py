"""A warehouse from Python: Arrow tables, DuckDB, and a clear error without the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

import machtrace as mt
from tests.support.reports.samples import IPS, REPORT_SAMPLES


@pytest.fixture
def warehouse(tmp_path):
    with mt.Warehouse.create(tmp_path / "w") as made:
        made.receive([("a.ips", IPS), ("b.txt", REPORT_SAMPLES["sample"])])
        made.flush()
        yield made


def test_a_query_is_an_arrow_table(warehouse):
    table = warehouse.query("SELECT format, count(*) AS n FROM reports GROUP BY ALL ORDER BY ALL")
    assert table.column_names == ["format", "n"]
    assert table["n"].to_pylist() == [1, 1]


def test_values_of_a_query_are_parameters(warehouse):
    (known,) = set(warehouse.query("FROM stacks_of_reports")["app"].to_pylist()[:1])
    text = "SELECT DISTINCT app FROM reports WHERE app = "
    assert warehouse.query(f"{text}?", [known])["app"].to_pylist() == [known]
    assert warehouse.query(f"{text}$app", {"app": "'; --"}).num_rows == 0


def test_a_connection_has_the_views(warehouse):
    with warehouse.connect() as connection:
        relation = connection.table("reports").project("kind")
        assert len(relation.fetchall()) == 2


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_other_libraries(warehouse, library):
    frames = pytest.importorskip(library)
    table = warehouse.query("SELECT app, build FROM reports")
    made = frames.from_arrow(table) if library == "polars" else table.to_pandas()
    assert list(made.columns) == ["app", "build"]
    assert len(made) == 2


@pytest.mark.peer
def test_without_the_extra_the_error_has_a_remedy():
    code = """
import sys
sys.modules["pyarrow"] = None
import machtrace as mt
try:
    mt.Warehouse
except mt.MachtraceError as error:
    print(error.remedy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "machtrace[warehouse]" in done.stdout
