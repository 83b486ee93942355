"""Symbols that arrive after the stacks name them, and SQL shows the names."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from machtrace.errors import ArgumentError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.warehouse.triage import State
from machtrace.warehouse.warehouse import Warehouse
from tests.support.compilers.executables import compile_macho
from tests.support.reports.samples import REPORT_SAMPLES

SOURCE = """
volatile int sink;
__attribute__((noinline)) int stop(int n) { sink = n; return n + 1; }
__attribute__((noinline)) int outer(int n) { sink = n; return stop(n) + sink; }
int main(int count, char **words) { return outer(count) + sink; }
"""
BASE = 0x1_0456_0000


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program, its UUID, and the image offsets of its functions."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the program that is read here")
    folder = tmp_path_factory.mktemp("names")
    (folder / "names.c").write_text(SOURCE)
    path = compile_macho([folder / "names.c"], folder / "names", options=("-O1",))
    contents = MachOFileContents(path.read_bytes(), str(path))
    symbols = parse_symbols(contents)
    header = contents.image.text_segment.vmaddr
    starts = {
        name: value - header
        for name, value in zip(symbols.names(), symbols.n_value.tolist(), strict=True)
        if name in ("_stop", "_outer", "_main")
    }
    return SimpleNamespace(path=path, uuid=contents.image.uuid, starts=starts)


def crash(program, incident: str, names: tuple[str, ...] = ("_stop", "_outer", "_main")) -> bytes:
    """Return an .ips with a stack of functions, 4 bytes after each one's start, without names."""
    path = "/private/var/containers/Bundle/Application/1/Demo.app/Demo"
    frames = [{"imageIndex": 0, "imageOffset": program.starts[name] + 4} for name in names]
    head = {"app_name": "Demo", "bug_type": "309", "incident_id": incident}
    body = {
        "pid": 1,
        "procName": "Demo",
        "procPath": path,
        "incident": incident,
        "captureTime": "2026-11-23 10:00:00.00 +0000",
        "exception": {"type": "EXC_CRASH", "signal": "SIGABRT"},
        "faultingThread": 0,
        "threads": [{"id": 1, "triggered": True, "frames": frames}],
        "usedImages": [
            {
                "source": "P",
                "arch": "arm64",
                "base": BASE,
                "size": 0x10000,
                "uuid": str(program.uuid),
                "path": path,
                "name": "Demo",
            }
        ],
    }
    return json.dumps(head).encode() + b"\n" + json.dumps(body).encode()


@pytest.fixture
def warehouse(tmp_path):
    with Warehouse.create(tmp_path / "w") as made:
        yield made


TOPS = "SELECT function, image, source FROM stack_tops ORDER BY ALL"


@pytest.mark.peer
def test_symbols_that_arrive_late_name_what_is_stored(warehouse, program):
    warehouse.receive([("a.ips", crash(program, "a"))])
    warehouse.flush()
    assert warehouse.query(TOPS).to_pylist() == [
        {"function": None, "image": "Demo", "source": None}
    ]
    (wanted,) = warehouse.wanted()
    assert (wanted.uuid, wanted.frames) == (program.uuid.hex, 3)

    assert warehouse.name([str(program.path)]) == 3

    assert warehouse.query(TOPS).to_pylist() == [
        {"function": "stop", "image": "Demo", "source": "export"}
    ]
    functions = warehouse.query("SELECT function FROM functions ORDER BY ALL")
    assert functions["function"].to_pylist() == ["main", "outer", "stop"]
    assert warehouse.wanted() == []
    assert not list(warehouse.check())


@pytest.mark.peer
def test_names_survive_compaction(warehouse, program):
    for incident, names in (("a", ("_stop", "_outer", "_main")), ("b", ("_outer", "_main"))):
        warehouse.receive([(f"{incident}.ips", crash(program, incident, names))])
        warehouse.flush()
        warehouse.name([str(program.path)])
    assert warehouse.compact() == 2
    tops = warehouse.query(TOPS)["function"].to_pylist()
    assert tops == ["outer", "stop"]
    assert warehouse.wanted() == []


@pytest.mark.peer
def test_other_images_are_left_alone(warehouse, program):
    warehouse.receive([("a.ips", crash(program, "a"))])
    warehouse.flush()
    assert warehouse.name([str(program.path)], only=["0" * 32]) == 0
    assert len(warehouse.wanted()) == 1


def test_views_of_an_empty_warehouse(warehouse):
    for view in ("reports", "images", "names", "stack_tops", "stacks_of_reports"):
        assert warehouse.query(f"FROM {view}").num_rows == 0


def test_reports_are_counted_in_sql(warehouse):
    warehouse.receive([*REPORT_SAMPLES.items()])
    added = warehouse.flush()
    warehouse.receive([("a", b"no report")])
    warehouse.flush()
    (row,) = warehouse.query("SELECT count(*) AS n FROM reports").to_pylist()
    assert row["n"] == added.reports
    rows = warehouse.query("SELECT report, role FROM stacks_of_reports WHERE kind = 'crash'")
    assert rows.num_rows > 0


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY reports TO '{folder}/segments/x.csv'",
        "ATTACH '{folder}/x.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SELECT 1; DROP VIEW reports",
        "CREATE TABLE x (y INTEGER)",
        "SELECT nothing",
        "PRAGMA version",
        "",
    ],
)
def test_queries_that_are_refused(warehouse, text):
    warehouse.receive([*REPORT_SAMPLES.items()])
    warehouse.flush()
    before = sorted(path.name for path in warehouse.folder.rglob("*"))
    with pytest.raises(ArgumentError):
        warehouse.query(text.format(folder=warehouse.folder))
    assert sorted(path.name for path in warehouse.folder.rglob("*")) == before


def test_rows_that_do_not_fit_into_memory_are_stored_in_the_warehouse(
    warehouse, tmp_path, monkeypatch
):
    """The working directory gets nothing, and the folder of a process that was killed goes."""
    monkeypatch.chdir(tmp_path)
    left, used = (warehouse.folder / f"tmp-{number}-0" for number in (1 << 30, os.getpid()))
    left.mkdir()
    used.mkdir()
    sql = "SELECT value FROM duckdb_settings() WHERE name = 'temp_directory'"
    (row,) = warehouse.query(sql).to_pylist()
    assert row["value"].startswith(str(warehouse.folder.resolve() / f"tmp-{os.getpid()}-"))
    assert (left.exists(), used.exists()) == (False, True)
    with warehouse.connect(memory="64MB") as connection:
        large = (
            "SELECT count(*) FROM (SELECT DISTINCT repeat('x', 100) || range FROM range(1000000))"
        )
        assert connection.sql(large).fetchall() == [(1_000_000,)]
    assert sorted(warehouse.folder.glob("tmp*")) == [used]
    assert not (tmp_path / ".tmp").exists()


@pytest.mark.peer
def test_a_decision_stays_when_symbols_name_its_issue(warehouse, program):
    warehouse.receive([("a.ips", crash(program, "a"))])
    warehouse.flush()
    warehouse.regroup()
    (unnamed,) = warehouse.issues()
    warehouse.decide(unnamed.id, State.RESOLVED, "fixed in build 8")

    warehouse.name([str(program.path)])
    assert set(warehouse.regroup()) == {unnamed.id}

    (named,) = warehouse.issues()
    assert named.id != unnamed.id
    assert named.title.startswith("stop")
    (decision,) = warehouse.decisions()[named.id]
    assert (decision.state, decision.note) == (State.RESOLVED, "fixed in build 8")
    warehouse.decide(unnamed.id, State.OPEN, "again")
    assert [each.note for each in warehouse.decisions()[named.id]] == ["again", "fixed in build 8"]
    with pytest.raises(ArgumentError, match="no issue"):
        warehouse.decide("crash-0", State.OPEN)
