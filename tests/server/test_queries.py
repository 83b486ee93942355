"""Questions are answered within limits, and read the warehouse alone."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from machtrace.server.answering import TRUNCATED
from machtrace.server.graphs.answers import FLAMES
from machtrace.server.tables import ARROW
from tests.server.serving import running
from tests.support.reports.samples import IPS
from tests.warehouse.receiver import report


@pytest.fixture
def filled(client):
    for body in (IPS, report("a"), report("b")):
        client.state(client.post("/v1/reports", body).json["ids"][0])
    return client


def test_rows_as_lines_of_json_and_as_arrow(filled):
    sql = "SELECT kind, count(*) AS n, 'nan'::DOUBLE AS x FROM reports GROUP BY ALL"
    rows = filled.rows(sql)
    assert sum(row["n"] for row in rows) == 3
    assert rows[0]["x"] is None  # JSON has no such number
    answer = filled.post("/v1/query", sql, Accept=ARROW)
    table = pa.ipc.open_stream(answer.data).read_all()
    assert sorted(table["n"].to_pylist()) == sorted(row["n"] for row in rows)


def test_a_query_as_json_with_a_number_of_rows(filled):
    body = json.dumps({"sql": "FROM range(10) ORDER BY ALL -- all", "rows": 3})
    answer = filled.post("/v1/query", body, Content_Type="application/json")
    assert [json.loads(line)["range"] for line in answer.data.splitlines()] == [0, 1, 2]
    assert answer.headers[TRUNCATED] == "true"
    assert filled.post("/v1/query", "FROM range(3)").headers[TRUNCATED] == "false"


def test_limits_of_an_answer(folder):
    with running(folder, rows=10, answer_bytes=1 << 20) as client:
        many = client.post("/v1/query", "FROM range(1000000)")
        assert len(many.data.splitlines()) == 10
        assert many.headers[TRUNCATED] == "true"
        large = client.post("/v1/query", "SELECT repeat('x', 300000) FROM range(10)")
        assert large.headers[TRUNCATED] == "true"


def test_a_query_that_takes_too_long_is_ended(folder):
    with running(folder, query_time=0.2) as client:
        endless = "SELECT sum(hash(a.range + b.range)) FROM range(10000000) a, range(10000000) b"
        answer = client.post("/v1/query", endless)
        assert answer.status == 408
        assert client.get("/healthz").status == 200


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_csv('{folder}/tokens')",
        "SELECT * FROM read_blob('{folder}/manifest.sqlite')",
        "COPY (SELECT 1) TO '{folder}/segments/x.csv'",
        "ATTACH '{folder}/manifest.sqlite'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SELECT 1; SELECT 2",
        "SELECT * FROM limits",
        "SELECT * FROM request",
        "SELECT * FROM 'http://127.0.0.1/x.csv'",
        "CREATE TABLE x (y INTEGER)",
        "not sql",
        "",
    ],
)
def test_queries_that_are_refused(filled, folder, sql):
    """They read no other file, no variable of the server, and write nothing."""
    assert filled.post("/v1/query", sql.format(folder=folder)).status == 400
    # The background writes segments and issues meanwhile.
    assert not list(folder.rglob("x.csv*"))


@pytest.mark.parametrize("form", FLAMES)
def test_flame_graphs(filled, form):
    answer = filled.get(f"/v1/flame?format={form}&where=role%3D%27crashed%27")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == FLAMES[form]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.data


@pytest.mark.parametrize("query", ["format=x", "nodes=x", "nodes=-1", "where=nothing"])
def test_flame_graphs_that_do_not_exist(filled, query):
    assert filled.get(f"/v1/flame?{query}").status == 400


def test_issues(filled):
    answer = filled.get("/v1/issues").json
    assert answer["total"] == len(answer["issues"])
    assert sum(issue["reports"] for issue in answer["issues"]) == 3
    assert len(filled.get("/v1/issues?limit=1").json["issues"]) == 1
    assert filled.get("/v1/issues?where=kind%3D%27none%27").json == {"total": 0, "issues": []}


def test_an_empty_warehouse(client):
    assert client.rows("SELECT * FROM stacks_of_reports") == []
    assert client.get("/v1/issues").json["issues"] == []
    assert client.get("/v1/symbols/wanted").json == {"wanted": []}
    assert client.get("/v1/flame").status == 404


def test_metrics(filled):
    text = filled.get("/metrics").data.decode()
    counts = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    assert counts["machtrace_received_total"] == "3"
    assert counts["machtrace_reports_total"] == "3"
    assert counts['machtrace_requests_total{path="/v1/reports",status="202"}'] == "3"
