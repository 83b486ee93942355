"""SQL on a page: rows, downloads, and refusals in words."""

from __future__ import annotations

import csv
import io
import json
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from machtrace.server.answering import TRUNCATED
from tests.server.pages.reading import Content
from tests.server.serving import running

SQL = "SELECT build, count(*) AS n FROM reports GROUP BY ALL ORDER BY build"


def address(sql, **query):
    return f"/sql?{urlencode({'sql': sql, **query})}"


def page(client, sql):
    return Content(client.get(address(sql), Accept="text/html"))


def test_rows_are_a_table(served):
    expected = served.rows(SQL)
    content = page(served, SQL)
    assert content.tables == [
        [["build", "n"], *([row["build"], str(row["n"])] for row in expected)]
    ]
    assert SQL in content.text


def test_downloads_have_the_same_rows(served):
    expected = served.rows(SQL)
    answer = served.get(address(SQL, format="csv"))
    assert answer.headers["Content-Disposition"].startswith("attachment")
    rows = list(csv.DictReader(io.StringIO(answer.data.decode())))
    assert rows == [{"build": row["build"], "n": str(row["n"])} for row in expected]
    lines = served.get(address(SQL, format="json")).data.splitlines()
    assert [json.loads(line) for line in lines] == expected
    table = pa.ipc.open_stream(served.get(address(SQL, format="arrow")).data).read_all()
    assert table.to_pylist() == expected


def test_views_and_columns_are_listed(served):
    content = page(served, "")
    names = {row["column_name"] for row in served.rows("DESCRIBE reports")}
    assert names
    for name in names | {"stacks_of_reports", "frames"}:
        assert name in content.text
    assert any(link.startswith("/sql?sql=") for link in content.links)


def test_the_form_leads_to_an_address(served):
    body = urlencode({"sql": SQL, "format": "csv"})
    answer = served.post("/sql", body)
    assert (answer.status, answer.headers["Location"]) == (303, address(SQL, format="csv"))
    long = SQL + " -- " + "x" * 10_000
    answer = served.post("/sql", urlencode({"sql": long}), Accept="text/html")
    assert answer.status == 200
    assert len(Content(answer).tables) == 1


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT nothing FROM reports", "nothing"),
        ("DROP VIEW reports", "pass one SELECT"),
        ("SELECT 1; SELECT 2", "pass one SELECT"),
        ("FROM read_text('/etc/passwd')", "Permission Error"),
        ("SELECT '<script>' FROM <script>", "<script>"),
    ],
)
def test_refusals_are_words(served, sql, words):
    content = page(served, sql)
    assert content.status == 400
    assert words in content.text
    assert sql in content.text
    assert content.count("script") == 0


def test_queries_take_no_longer_than_the_limit(folder):
    with running(folder, query_time=0.2) as client:
        endless = "SELECT sum(hash(a.range + b.range)) FROM range(10000000) a, range(10000000) b"
        content = page(client, endless)
        assert content.status == 408
        assert "longer than 0.2 seconds" in content.text


def test_a_page_has_the_first_rows_alone(served):
    content = page(served, "SELECT range, repeat('wide ', 500) AS w FROM range(100000)")
    rows = content.tables[0][1:]
    assert [row[0] for row in rows] == [str(number) for number in range(len(rows))]
    assert 0 < len(rows) < 500
    assert "a download has more" in content.text
    answer = served.get(address("FROM range(100)", format="csv"))
    assert len(answer.data.split()) == 101
    assert answer.headers[TRUNCATED] == "false"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT NULL AS a, 'nan'::DOUBLE AS b, [1, NULL] AS c, {'x': 1} AS d, '\\x00'::BLOB AS e",
        'SELECT 1 AS "<script>", 2 AS "a""b", 3 AS "\u202e"',
        "SELECT TIMESTAMP '2026-01-01', INTERVAL 3 DAY, uuid(), 1::DECIMAL(9, 2), map {'a': 1}",
        "SELECT '\U0001f600' AS stack, '' AS issue, repeat('\u4e00', 100000) AS x FROM range(100)",
        "SELECT 1 WHERE false",
    ],
)
def test_any_value_is_shown(served, sql):
    content = page(served, sql)
    assert content.status == 200, content.text
    for form in ("csv", "json", "arrow"):
        assert served.get(address(sql, format=form)).status == 200


def test_unknown_formats(served):
    assert served.get(address(SQL, format="xls")).status == 400
