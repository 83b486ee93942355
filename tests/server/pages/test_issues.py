"""Issues on pages: chosen, counted, and decided."""

from __future__ import annotations

import json
from collections import Counter
from urllib.parse import quote, urlencode

import pytest

from machtrace.server.tokens import Scope, Tokens
from machtrace.warehouse.triage import State
from machtrace.warehouse.warehouse import Warehouse
from tests.server.pages.conftest import REPORTS
from tests.server.pages.fleet import BUILDS, PROBLEMS, report, reports
from tests.server.pages.reading import Content
from tests.server.serving import running


def page(client, path, **options):
    return Content(client.get(path, Accept="text/html", **options))


def rows(content, number=0):
    """Return the body of a table by its columns."""
    head, *body = content.tables[number]
    return [dict(zip(head, row, strict=True)) for row in body]


@pytest.fixture(scope="module")
def bodies():
    return [json.loads(each.partition(b"\n")[2]) for each in reports(REPORTS)]


def test_issues_are_counted_as_they_were_sent(served, bodies):
    content = page(served, "/")
    counts = Counter(
        body["threads"][0]["frames"][0].get("symbol", "AdSlot.show()") for body in bodies
    )
    assert sorted(int(row["Reports"]) for row in rows(content)) == sorted(counts.values())
    assert content.count("svg") == len(counts)
    assert "5 issues" in content.text


def test_builds_and_news(served):
    """One problem came with the newest build; nothing else is new."""
    content = page(served, "/")
    by_builds = {row["Issue"]: row["Builds"] for row in rows(content)}
    new = [name for name in by_builds if "crash new" in name]
    assert [name.partition("crash")[0] for name in new] == ["TripList.subscript.getter"]
    assert by_builds[new[0]] == BUILDS[-1]
    assert set(by_builds.values()) == {"820", "811 → 820", "812 → 820", "811 → 812"}


@pytest.mark.parametrize(
    ("query", "chosen"),
    [
        ({"build": "812"}, lambda body: body["bundleInfo"]["CFBundleVersion"] == "812"),
        ({"app": "org.example.wanderer"}, lambda _: True),
        ({"kind": "hang"}, lambda _: False),
        ({"where": "model = 'iPhone17,1'"}, lambda body: body["modelCode"] == "iPhone17,1"),
        ({"where": "os = 'x' -- comment"}, lambda _: False),
        ({"build": "812' OR true --"}, lambda _: False),
        ({"build": "812", "since": "30d", "where": "time < 0"}, lambda _: False),
    ],
)
def test_reports_are_chosen(served, bodies, query, chosen):
    content = page(served, f"/?{urlencode(query)}")
    expected = sum(map(chosen, bodies))
    assert sum(int(row["Reports"]) for row in rows(content)) if expected else not content.tables
    if expected:
        assert sum(int(row["Reports"]) for row in rows(content)) == expected


@pytest.mark.parametrize("sort", ["devices", "last", "first"])
def test_order(served, sort):
    content = page(served, f"/?sort={sort}")
    column = {"devices": "Devices", "last": "Last seen", "first": "Reports"}[sort]
    values = [row[column] for row in rows(content)]
    if sort == "first":
        first = [row["first"] for row in served.get("/v1/issues").json["issues"]]
        assert len(values) == len(first)
    elif sort == "devices":
        assert [int(value) for value in values] == sorted(map(int, values), reverse=True)
    else:
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    "query", ["where=nothing", "where=1%29", "since=x", "state=x", "page=x", "sort=x"]
)
def test_choices_that_do_not_exist(served, query):
    content = page(served, f"/?{query}")
    assert content.status == 400
    assert content.count("main") == 1


def test_pages_of_the_list(client):
    """More issues than a page has."""
    bodies = [
        report(PROBLEMS[0]._replace(stack=(f"Wanderer:unique{number}()",)), number=number)
        for number in range(60)
    ]
    parts = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="a"; filename="a.ips"\r\n\r\n'
        + body
        + b"\r\n"
        for body in bodies
    )
    answer = client.post(
        "/v1/reports", parts + b"--x--\r\n", Content_Type="multipart/form-data; boundary=x"
    )
    client.state(answer.json["ids"][-1])
    first, second = page(client, "/"), page(client, "/?page=2")
    names = [row["Issue"] for content in (first, second) for row in rows(content)]
    assert len(names) == len(set(names)) == 60
    assert "/?page=2" in first.links
    assert "/?page=1" in second.links
    assert not page(client, "/?page=3").tables


def issue(client, number=0):
    return client.get("/v1/issues").json["issues"][number]


def test_an_issue_has_its_stacks_builds_reports_and_fingerprint(served):
    document = issue(served)
    content = page(served, f"/issues/{document['id']}")
    assert document["id"] in content.text
    for frame in document["frames"]:
        assert frame["name"] in content.text
    for variant in document["variants"]:
        assert f"/stacks/{variant['stack']}" in content.links
    matrix = next(table for table in content.tables if table[0][0] == "Build")
    cells = [cell for row in matrix[1:] for cell in row[1:]]
    assert sum(int(cell) for cell in cells if cell != "·") == document["reports"]
    assert {row[0] for row in matrix[1:]} == set(document["builds"])
    reports_shown = [link for link in content.links if link.startswith("/reports/")]
    assert len(reports_shown) == min(document["reports"], 20)


def test_an_issue_that_does_not_exist(served):
    for name in ("crash-0", quote("<script>"), "crash-%00"):
        assert page(served, f"/issues/{name}").status == 404
        assert served.get(f"/v1/issues/{name}").status == 404


def test_the_document_of_an_issue(served):
    document = issue(served)
    assert served.get(f"/v1/issues/{document['id']}").json == {**document, "earlier": []}


@pytest.fixture
def small(client):
    client.state(client.post("/v1/reports", report(PROBLEMS[0])).json["ids"][0])
    while not client.get("/v1/issues").json["issues"]:
        pass
    return client


def test_a_decision_without_a_script(small):
    """The form of the page is sent as a browser does."""
    name = issue(small)["id"]
    before = page(small, f"/issues/{name}")
    assert before.count("form") == 1
    body = urlencode({"state": "ignored", "note": "by design <b>"})
    answer = small.post(f"/issues/{name}", body)
    assert (answer.status, answer.headers["Location"]) == (303, f"/issues/{name}")
    after = page(small, f"/issues/{name}")
    assert "by design <b>" in after.text
    assert not page(small, "/").tables
    assert len(page(small, "/?state=ignored").tables[0]) == 2
    assert len(page(small, "/?state=any").tables[0]) == 2
    assert issue(small)["state"] == "ignored"


def test_a_decision_as_json(small):
    name = issue(small)["id"]
    body = json.dumps({"state": "resolved", "note": "fixed"})
    answer = small.post(f"/v1/issues/{name}/decision", body)
    assert answer.json == {"id": name, "state": "resolved", "note": "fixed"}
    decisions = small.get(f"/v1/issues/{name}").json["decisions"]
    assert [decision["note"] for decision in decisions] == ["fixed"]
    log = small.get("/v1/administration").data.decode().splitlines()
    assert json.loads(log[-1])["action"] == "decision"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"state": "gone"}',
        b'{"state": ["open"]}',
        b'{"state": "open", "note": 1}',
        json.dumps({"state": "open", "note": "x" * 4001}).encode(),
        b"[" * 9000,
    ],
)
def test_decisions_that_are_refused(small, body):
    name = issue(small)["id"]
    assert small.post(f"/v1/issues/{name}/decision", body).status == 400
    assert issue(small)["decisions"] == []


def test_a_decision_about_nothing(small):
    assert small.post("/v1/issues/crash-0/decision", b'{"state": "open"}').status == 404
    assert small.post("/issues/crash-0", b"state=open").status == 404


def test_a_page_of_another_site_decides_nothing(small):
    name = issue(small)["id"]
    for headers in ({"Origin": "http://localhost:1"}, {"Sec_Fetch_Site": "cross-site"}):
        assert small.post(f"/issues/{name}", b"state=ignored", **headers).status == 403
    assert issue(small)["decisions"] == []


def test_a_reader_decides_nothing(folder):
    with Warehouse(folder) as warehouse:
        warehouse.receive([("a.ips", report(PROBLEMS[0]))])
        warehouse.flush()
        warehouse.regroup()
    reader, admin = (Tokens(folder).create(scope) for scope in (Scope.READ, Scope.ADMIN))
    with running(folder) as client:
        name = client.get("/v1/issues", token=reader).json["issues"][0]["id"]
        assert client.post(f"/issues/{name}", b"state=open", token=reader).status == 403
        body = b'{"state": "open"}'
        path = f"/v1/issues/{name}/decision"
        assert client.post(path, body, token=reader).status == 403
        shown = page(client, f"/issues/{name}", token=reader)
        assert "A token of scope admin decides." in shown.text
        assert shown.count("textarea") == 0
        assert page(client, f"/issues/{name}", token=admin).count("textarea") == 1
        assert client.post(path, body, token=admin).status == 200


def test_an_earlier_identifier_leads_to_the_issue(folder):
    """Names that arrive later make another issue of it; the earlier link still works."""
    nameless = PROBLEMS[0]._replace(stack=("Wanderer:", "AdKit:"))
    with Warehouse(folder) as warehouse:
        warehouse.receive([("a.ips", report(nameless))])
        warehouse.flush()
        warehouse.regroup()
        (before,) = warehouse.issues()
        warehouse.decide(before.id, State.RESOLVED, "in 900")
        # As if its symbols had arrived: the manifest has an alias.
        with warehouse._manifest.transaction() as database:  # noqa: SLF001 - there is no shorter way
            database.execute("INSERT INTO alias VALUES ('crash-earlier', ?)", (before.id,))
    with running(folder) as client:
        answer = client.get("/issues/crash-earlier")
        assert answer.status == 303
        moved = page(client, answer.headers["Location"])
        assert "Earlier called crash-earlier." in moved.text
        assert moved.text.count("crash-earlier") == 2
        assert client.get("/v1/issues/crash-earlier").json["id"] == before.id


def test_a_report_after_the_decision_is_a_regression(folder):
    with Warehouse(folder) as warehouse:
        warehouse.receive([("a.ips", report(PROBLEMS[0]))])
        warehouse.flush()
        warehouse.regroup()
        (before,) = warehouse.issues()
        with warehouse._manifest.transaction() as database:  # noqa: SLF001 - a decision of the past
            database.execute(
                "INSERT INTO decision VALUES (?, 'resolved', '', ?)", (before.id, before.last - 1)
            )
    with running(folder) as client:
        (row,) = rows(page(client, "/"))
        assert "regressed" in row["Issue"]
        assert row["State"] == "open"
