"""Graphs for programs: differences, functions, hangs, audits, in every format."""

from __future__ import annotations

import csv
import io
import json
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from machtrace.server.graphs.answers import DIFFERENCES, FLAMES
from machtrace.server.graphs.watched import families, family_of
from tests.server.pages.fleet import PROBLEMS, report, reports
from tests.server.serving import running
from tests.support.reports.samples import METRICKIT

SUBJECT = "role = 'subject'"
NAME = "Settings.synchronize()"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A server of sixty crashes and a hang; its warehouse is read only."""
    from machtrace.warehouse.warehouse import Warehouse

    folder = tmp_path_factory.mktemp("fleet") / "w"
    with Warehouse.create(folder) as warehouse:
        warehouse.receive([("x.ips", each) for each in reports(60)])
        warehouse.receive([("x.json", METRICKIT)])
        warehouse.receive([("x.ips", watched())])
        warehouse.flush()
    with running(folder) as client:
        yield client


def watched():
    """Return a report whose stack reads the pasteboard for an SDK and the app."""
    stack = ("UIKitCore:-[UIPasteboard string]", "AdKit:-[ADKReader read]", "Wanderer:share()")
    return report(PROBLEMS[0]._replace(stack=stack), "820", number=1, device="auditor")


def get(client, path, **query):
    return client.get(f"{path}?{urlencode(query)}")


def arrow(answer):
    return pa.ipc.open_stream(answer.data).read_all()


def test_a_flame_graph_as_json_and_as_arrow(fleet):
    columns = get(fleet, "/v1/flame", where=SUBJECT, format="json").json
    table = arrow(get(fleet, "/v1/flame", where=SUBJECT, format="arrow"))
    assert sum(columns["own"]) == table["total"][0].as_py() == sum(table["own"].to_pylist())
    names = [columns["names"][key][0] for key in columns["keys"]]
    assert names == table["function"].to_pylist()[1:]
    kinds = {name[1]: name[2] for name in columns["names"]}
    assert (kinds["Wanderer"], kinds["UIKitCore"]) == (0, 1)


def test_stacks_through_a_function(fleet):
    table = arrow(get(fleet, "/v1/flame", where=SUBJECT, format="arrow", function=NAME))
    document = get(fleet, "/v1/functions", where=SUBJECT, name=NAME).json
    assert table["total"][0].as_py() == document["total"] > 0
    assert get(fleet, "/v1/flame", function=NAME, image="UIKitCore").status == 404


@pytest.mark.parametrize("form", FLAMES)
def test_callers_and_callees_in_formats_of_flame_graphs(fleet, form):
    for side in ("callers", "callees"):
        options = {"where": SUBJECT, "name": NAME, "side": side, "format": form}
        answer = get(fleet, "/v1/functions", **options)
        assert (answer.status, bool(answer.data)) == (200, True)


def test_a_function_of_builds(fleet):
    document = get(fleet, "/v1/functions", where=SUBJECT, name=NAME).json
    assert [callee["name"] for callee in document["callees"]] == [
        "_pthread_mutex_firstfit_lock_wait"
    ]
    assert sum(caller["weight"] for caller in document["callers"]) == document["total"]
    assert sum(build["weight"] for build in document["builds"]) == document["total"]
    assert {build["build"] for build in document["builds"] if build["weight"]} <= {"811", "812"}
    assert document["places"][0]["file"] == "Settings.swift"


def test_functions_as_rows(fleet):
    document = get(fleet, "/v1/functions", where=SUBJECT, search="SETTINGS", limit=1).json
    assert [function["name"] for function in document["functions"]] == [NAME]
    rows = get(fleet, "/v1/functions", where=SUBJECT, format="csv").data.decode()
    totals = {row["name"]: int(row["total"]) for row in csv.DictReader(io.StringIO(rows))}
    assert totals["main"] == 61


def test_a_difference(fleet):
    sides = {"a": f"{SUBJECT} AND build = '811'", "b": f"{SUBJECT} AND build = '820'"}
    document = get(fleet, "/v1/diff", **sides).json
    assert NAME in {each["name"] for each in document["gone"]}
    assert "TripList.subscript.getter" in {each["name"] for each in document["new"]}
    assert document["total"] == len(document["changes"])
    (change,) = [each for each in document["changes"] if "TripList.sub" in each["name"]]
    assert (change["a"], change["callers"][-1]) == (0, "main")
    assert change["least"] <= change["b"] <= change["most"]
    table = arrow(get(fleet, "/v1/diff", format="arrow", **sides))
    weights = [document[side]["weight"] for side in ("a", "b")]
    assert [table[side][0].as_py() for side in ("before", "after")] == weights
    lines = get(fleet, "/v1/diff", format="folded", **sides).data.decode().splitlines()
    pairs = [[int(each) for each in line.split(" ")[-2:]] for line in lines]
    assert [sum(side) for side in zip(*pairs, strict=True)] == weights


def test_hangs(fleet):
    (hang,) = get(fleet, "/v1/hangs").json["hangs"]
    assert (hang["duration"], hang["image"]) == (20_000_000_000, "App")
    assert get(fleet, "/v1/hangs", where="kind = 'crash'").json == {"hangs": []}
    assert arrow(get(fleet, "/v1/hangs", format="arrow"))["report"].to_pylist() == [hang["report"]]


def test_who_reads_the_pasteboard(fleet):
    cells = get(fleet, "/v1/audit", where=SUBJECT).json["cells"]
    (cell,) = [each for each in cells if each["family"] == "Pasteboard read"]
    assert (cell["caller"], cell["weight"]) == ("AdKit", 1)
    flame = {"where": SUBJECT, "format": "folded", "family": "Pasteboard read", "caller": "AdKit"}
    (line,) = get(fleet, "/v1/flame", **flame).data.decode().splitlines()
    assert line.endswith("-[UIPasteboard string] 1")
    assert get(fleet, "/v1/flame", **{**flame, "caller": "Wanderer"}).status == 404


def test_families_have_the_names_that_stacks_have():
    assert family_of("stat") == family_of("stat$INODE64") == "File timestamps"
    assert family_of("-[CLLocationManager startUpdatingLocation]") == "Location"
    assert family_of("main") is None
    assert families()[0].required


@pytest.mark.parametrize(
    ("path", "query"),
    [
        *((path, {"format": "x"}) for path in ("flame", "diff", "functions", "hangs", "audit")),
        ("diff", {"a": "nothing"}),
        ("diff", {"limit": "-1"}),
        ("functions", {"format": "pprof"}),
        ("functions", {"name": "main", "format": "csv"}),
        ("functions", {"side": "x"}),
        ("hangs", {"where": "nothing"}),
        ("hangs", {"limit": "x"}),
        ("audit", {"where": "1; SELECT 2"}),
    ],
)
def test_graphs_that_do_not_exist(fleet, path, query):
    answer = get(fleet, f"/v1/{path}", **query)
    assert answer.status == 400
    assert "Traceback" not in answer.data.decode()


def test_an_empty_warehouse(client):
    for path in ("diff", "functions", "hangs", "audit"):
        assert get(client, f"/v1/{path}").status == 200
    for form in DIFFERENCES:
        assert get(client, "/v1/diff", format=form).status == 200
    assert get(client, "/v1/functions", name="main").status == 404


def test_names_are_data(client):
    name = '</script><b>\u202e&";'
    problem = PROBLEMS[0]._replace(stack=(f"Wanderer:{name}",))
    client.state(client.post("/v1/reports", report(problem)).json["ids"][0])
    for form in ("json", "speedscope", "firefox"):
        document = json.dumps(get(client, "/v1/flame", format=form).json)
        assert json.dumps(name)[1:-1] in document or "\\\\u202e" in document
