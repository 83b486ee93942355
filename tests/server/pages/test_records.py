"""Stacks and reports on pages: frames, what else goes through them, threads, bytes."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from machtrace.server.tokens import Scope, Tokens
from machtrace.warehouse.warehouse import Warehouse
from tests.server.pages.conftest import REPORTS
from tests.server.pages.fleet import PROBLEMS, report, reports
from tests.server.pages.reading import Content
from tests.server.serving import running
from tests.support.reports.samples import IPS


def page(client, path, **options):
    return Content(client.get(path, Accept="text/html", **options))


@pytest.fixture(scope="module")
def stacks():
    """By report: its crashed stack, innermost first, as (function or None, image, offset)."""
    made = []
    for body in reports(REPORTS):
        document = json.loads(body.partition(b"\n")[2])
        images = [image["uuid"] for image in document["usedImages"]]
        made.append(
            tuple(
                (frame.get("symbol"), images[frame["imageIndex"]], frame["imageOffset"])
                for frame in document["threads"][0]["frames"]
            )
        )
    return made


def test_reports_through_each_frame_are_counted_as_they_were_sent(served, stacks):
    """In both segments: a frame is shared by the reports whose outer frames are the same."""
    key = served.get("/v1/issues").json["issues"][0]["variants"][0]["stack"]
    content = page(served, f"/stacks/{key}")
    head, *frames = content.tables[0]
    assert head[-1] == "Reports through here"
    functions = [row[1] for row in frames]
    (own,) = {stack for stack in stacks if [frame[0] for frame in stack] == functions} and {
        each
        for each, count in Counter(stacks).items()
        if [frame[0] for frame in each] == functions and count == int(frames[0][-1])
    }
    for number, row in enumerate(frames):
        sharing = sum(stack[-(len(own) - number) :] == own[number:] for stack in stacks)
        assert int(row[-1]) == sharing
    # Other problems go through the outermost frames.
    assert int(frames[-1][-1]) > int(frames[0][-1])


def test_stacks_through_a_frame(served):
    key = served.get("/v1/issues").json["issues"][0]["variants"][0]["stack"]
    outermost = page(served, f"/stacks/{key}/through/1")
    whole = page(served, f"/stacks/{key}")
    reports_through = int(whole.tables[0][-1][-1])
    assert sum(int(row[3]) for row in outermost.tables[0][1:]) == reports_through
    assert outermost.link("/flame?where=")
    assert page(served, outermost.link("/stacks/")).status == 200


def test_a_flame_graph_of_a_frame_has_its_reports(served):
    key = served.get("/v1/issues").json["issues"][0]["variants"][0]["stack"]
    whole = page(served, f"/stacks/{key}")
    address = page(served, f"/stacks/{key}/through/1").link("/flame?")
    folded = served.get(f"/v1{address}").data.decode().splitlines()
    weights = sum(int(line.rpartition(" ")[2]) for line in folded)
    assert weights == int(whole.tables[0][-1][-1])


def test_frames_have_source_lines_and_images(served):
    for issue in served.get("/v1/issues").json["issues"]:
        if issue["title"].startswith("RouteStore"):
            content = page(served, f"/stacks/{issue['variants'][0]['stack']}")
            row = next(row for row in content.tables[0] if "restore(from:)" in row[1])
            assert row[2:4] == ["RouteStore.swift:218", "Wanderer"]
            assert f"/issues/{issue['id']}" in content.links
            return
    raise AssertionError("there is no such issue")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/stacks/" + 32 * "0", 404),
        ("/stacks/x", 404),
        ("/stacks/%00", 404),
        ("/stacks/" + 32 * "0" + "/through/1", 404),
        ("/reports/" + 32 * "0", 404),
        ("/reports/00000009-0", 404),
        ("/reports/..%2f..%2fmanifest", 404),
        ("/v1/reports/00000001-5/raw", 404),
    ],
)
def test_addresses_of_nothing(served, path, status):
    assert served.get(path).status == status


@pytest.mark.parametrize("depth", ["0", "99", "x", "-1", 40 * "9"])
def test_frames_that_do_not_exist(served, depth):
    key = served.get("/v1/issues").json["issues"][0]["variants"][0]["stack"]
    assert served.get(f"/stacks/{key}/through/{depth}").status in (400, 404)


def test_a_report_has_all_threads(client):
    record = client.post("/v1/reports", report(PROBLEMS[0], threads=5)).json["ids"][0]
    client.state(record)
    answer = client.get(f"/reports/{record}")
    assert answer.status == 303
    content = page(client, answer.headers["Location"])
    assert content.count("details") == len(content.tables) == 6
    assert content.text.count("__workq_kernreturn") == 5
    assert "device-0" in content.text
    assert content.link("/issues/")


def test_a_report_of_very_many_frames_is_within_the_size_of_a_page(client):
    """The rest is behind links."""
    long = PROBLEMS[0]._replace(
        stack=tuple(f"Wanderer:{'very_' * 60}long{number}()" for number in range(400))
    )
    record = client.post("/v1/reports", report(long, threads=900)).json["ids"][0]
    client.state(record)
    address = client.get(f"/reports/{record}").headers["Location"]
    content = page(client, address)
    assert "further frames" in content.text
    rest = [link for link in content.links if "?thread=" in link]
    assert rest
    assert len(page(client, rest[-1]).tables) == 1


def test_received_bytes_are_for_administrators(folder):
    with Warehouse(folder) as warehouse:
        (record,) = warehouse.receive([('cr"ash\n.ips', IPS)])
        warehouse.flush()
    reader, admin = (Tokens(folder).create(scope) for scope in (Scope.READ, Scope.ADMIN))
    with running(folder) as client:
        raw = f"/v1/reports/{record}/raw"
        address = client.get(f"/reports/{record}", token=reader).headers["Location"]
        assert raw not in page(client, address, token=reader).links
        assert raw in page(client, address, token=admin).links
        assert client.get(raw, token=reader).status == 403
        answer = client.get(raw, token=admin)
        assert answer.data == IPS
        assert answer.headers["Content-Disposition"] == 'attachment; filename="cr_ash_.ips"'
        assert "sandbox" in answer.headers["Content-Security-Policy"]


def test_quarantine_has_its_reason(client):
    record = client.post("/v1/reports", b"\0nothing").json["ids"][0]
    (reason,) = client.state(record)["reasons"]
    content = page(client, f"/reports/{record}")
    assert "in quarantine" in content.text
    assert reason in content.text


def test_a_profile_has_its_heaviest_stacks(client):
    record = client.post("/v1/reports", b"main;a;b 7\nmain;c 5\n").json["ids"][0]
    client.state(record)
    content = page(client, client.get(f"/reports/{record}").headers["Location"])
    assert "2 sampled stacks, of weight 12" in content.text
    assert [row[1] for row in content.tables[0][1:]] == ["b", "a", "main"]
