"""Pages with graphs, without a script: numbers as tables, links, exports, and what is missing."""

from __future__ import annotations

import gzip
import json
import re
from html import unescape
from urllib.parse import urlencode

import pytest

from machtrace.warehouse.warehouse import Warehouse
from tests.server.pages.fleet import PROBLEMS, report
from tests.server.pages.reading import Content
from tests.server.serving import running
from tests.support.reports.samples import METRICKIT

NAME = "Settings.synchronize()"
PAGES = ("/flame", "/diff", "/functions", "/functions?name=main", "/hangs", "/audit")


def read(client, path, **query):
    return Content(client.get(f"{path}?{urlencode(query)}" if query else path))


def data_of(answer):
    """Return the columns that a page's script draws."""
    text = re.search(rb'<script type="application/json">(.*?)</script>', answer.data, re.DOTALL)
    return json.loads(text[1])


@pytest.mark.parametrize("path", PAGES)
def test_pages_without_any_report(client, path):
    answer = client.get(path)
    assert answer.status == 200
    assert "No " in Content(answer).text
    assert b"<canvas" not in answer.data


@pytest.mark.parametrize("path", ["/flame", "/diff", "/functions", "/hangs", "/audit"])
@pytest.mark.parametrize(
    "query", ["where=nothing", "a=nothing&b=true", "since=x", "where=1)%3B+SELECT+(2"]
)
def test_choices_that_do_not_exist(served, path, query):
    is_used = path == "/diff" or not query.startswith("a=")
    status = served.get(f"{path}?{query}").status
    if "where" in query and path == "/diff":
        query = f"a={query.partition('=')[2]}"
        status = served.get(f"{path}?{query}").status
    assert status == (400 if is_used else 200)


def test_a_flame_graph_with_its_heaviest_functions(served):
    answer = served.get("/flame?stacks=subject")
    page = Content(answer)
    (rows,) = page.tables
    assert ["main", "Wanderer", "100.0 %", "0.00 %"] in rows
    assert sum(data_of(answer)["own"]) == 80
    exports = [link for link in page.links if link.startswith("/v1/flame?")]
    assert len(exports) == 8
    for link in exports:
        assert served.get(link).status == 200, link
    (picture,) = re.findall(r'<noscript><img src="([^"]+)"', answer.data.decode())
    assert served.get(unescape(picture)).data.startswith(b"<svg")


def test_a_flame_graph_of_stacks_through_a_function(served):
    answer = served.get("/flame?" + urlencode({"stacks": "subject", "function": NAME}))
    document = served.get(f"/v1/functions?name={NAME}&where=role%3D%27subject%27").json
    assert sum(data_of(answer)["own"]) == document["total"] > 0
    assert f"Stacks through {NAME}" in Content(answer).text


def test_the_two_newest_builds_are_compared(served):
    answer = served.get("/diff?stacks=subject")
    page = Content(answer)
    assert "TripList.subscript.getter" in page.text
    assert "New functions" in page.text
    chosen = re.findall(r'<option value="([^"]+)" selected="">', answer.data.decode())
    assert chosen == ["subject", "815", "820"]
    data = data_of(answer)
    assert len(data["was"]) == len(data["own"]) == len(data["least"]) == len(data["keys"])
    for link in (each for each in page.links if each.startswith("/v1/diff?")):
        assert served.get(link).status == 200


def test_two_conditions_are_compared(served):
    page = read(served, "/diff", stacks="subject", a="build = '811'", b="build = '820'")
    (changes, *_) = page.tables
    assert changes[0] == ["Function", "Earlier", "Later", "Points", "95 % interval"]
    assert any(NAME in row[0] or "Trip" in row[0] for row in changes[1:])
    same = read(served, "/diff", a="true", b="true")
    assert "Choose two builds" in same.text


def test_a_function_between_callers_and_callees(served):
    page = read(served, "/functions", name=NAME, stacks="subject")
    callers, callees, by_build, places = page.tables
    assert [row[0] for row in callers[1:]] == ["AppDelegate.applicationWillResignActive(_:)"]
    assert [row[0] for row in callees[1:]] == ["_pthread_mutex_firstfit_lock_wait"]
    assert {row[0] for row in by_build[1:]} == {"811", "812", "815", "820"}
    assert places[1][0] == "Settings.swift:129"
    (next_one,) = [link for link in page.links if "applicationWillResign" in link]
    assert read(served, next_one).status == 200


def test_functions_by_name(served):
    page = read(served, "/functions", search="settings.SYNC", stacks="subject")
    (rows,) = page.tables
    assert [row[0] for row in rows[1:]] == [NAME]
    assert "No function" in read(served, "/functions", search="nothing like it").text
    assert "No stack of these" in read(served, "/functions", name="nothing like it").text


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A server with a hang, and a stack that reads the pasteboard for an SDK."""
    folder = tmp_path_factory.mktemp("watched") / "w"
    stack = ("UIKitCore:-[UIPasteboard string]", "AdKit:-[ADKReader read]", "Wanderer:share()")
    with Warehouse.create(folder) as warehouse:
        body = report(PROBLEMS[0]._replace(stack=stack), "820")
        warehouse.receive([("a.ips", body), ("b.json", METRICKIT)])
        warehouse.flush()
    with running(folder) as client:
        yield client


def test_hangs_by_device_and_time(watched):
    answer = watched.get("/hangs")
    page = Content(answer)
    places, latest = page.tables
    assert len(places) == len(latest) == 2
    assert latest[1][1] == "20.00 s"
    bars = re.findall(
        r'<a href="(/reports/[0-9a-f]{32})" aria-label="20.00 s', answer.data.decode()
    )
    assert len(bars) == 1
    assert watched.get(bars[0]).status == 200
    assert "No hang" in read(watched, "/hangs", build="none").text


def test_a_cell_of_the_matrix_leads_to_its_stacks(watched):
    page = read(watched, "/audit", stacks="subject")
    (rows,) = page.tables
    assert rows[1] == ["AdKit"]
    assert rows[2] == ["Pasteboard read ", "1"]
    (cell,) = [link for link in page.links if "family=" in link]
    answer = watched.get(cell)
    assert sum(data_of(answer)["own"]) == 1
    assert "Pasteboard read called by AdKit" in Content(answer).text


def test_answers_are_gzip_for_clients_that_accept_it(served):
    plain = served.get("/flame")
    small = served.get("/flame", Accept_Encoding="br, gzip;q=0.5")
    assert small.headers["Content-Encoding"] == "gzip"
    assert small.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    assert gzip.decompress(small.data) == plain.data
    assert int(small.headers["Content-Length"]) == len(small.data) < len(plain.data)
    for header in ("", "br", "gzip;q=0"):
        assert "Content-Encoding" not in served.get("/flame", Accept_Encoding=header).headers
    pprof = served.get("/v1/flame?format=pprof", Accept_Encoding="gzip")
    assert "Content-Encoding" not in pprof.headers
