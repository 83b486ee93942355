"""Symbols on a page: wanted, arrived, and the share of frames that have names."""

from __future__ import annotations

import json

import pytest

from machtrace.server.tokens import Scope, Tokens
from tests.server.pages.conftest import REPORTS
from tests.server.pages.fleet import reports
from tests.server.pages.reading import Content
from tests.server.serving import running
from tests.server.test_symbols import wait_for_names
from tests.warehouse.test_names import crash, program

__all__ = ["program"]


def page(client, path="/symbols"):
    return Content(client.get(path, Accept="text/html"))


def test_wanted_images_are_those_of_the_document(served):
    wanted = served.get("/v1/symbols/wanted").json["wanted"]
    rows = page(served).tables[0][1:]
    assert [(row[0], row[1].replace("-", "").lower(), int(row[3])) for row in rows] == [
        (each["name"], each["uuid"], each["frames"]) for each in wanted
    ]


def test_shares_of_named_frames_are_those_of_the_reports(served):
    """Each frame counts as often as a thread of a report has it."""
    counts: dict[str, list[int]] = {}
    for body in reports(REPORTS):
        document = json.loads(body.partition(b"\n")[2])
        count = counts.setdefault(document["bundleInfo"]["CFBundleVersion"], [0, 0, 0])
        for thread in document["threads"]:
            for frame in thread["frames"]:
                count[0] += 1
                count[1] += "symbol" in frame
                count[2] += "sourceFile" in frame
    head, *rows = page(served).tables[1]
    assert head[0] == "Build"
    shown = {row[0]: (int(row[2].replace(",", "")), row[3], row[6]) for row in rows}
    assert shown == {
        build: (all_, f"{named / all_:.1%}", f"{located / all_:.1%}")
        for build, (all_, named, located) in counts.items()
    }
    assert [row[0] for row in rows] == sorted(shown, reverse=True)


def test_arrivals(client):
    assert "No symbols were sent yet." in page(client).text
    client.put("/v1/symbols?name=nothing%3Cb%3E.zip", b"nothing")
    content = page(client)
    assert "nothing_b_.zip" in content.text
    assert "none of them" in content.text


def form(*files):
    parts = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n%b\r\n" % (name, data)
        for name, data in files
    )
    return parts + b"--x--\r\n"


KIND = {"Content_Type": "multipart/form-data; boundary=x"}


@pytest.mark.peer
def test_files_of_a_form_name_the_frames_that_waited(client, program):
    """As a browser sends them without a script."""
    client.state(client.post("/v1/reports", crash(program, "a")).json["ids"][0])
    files = form((b"program", program.path.read_bytes()), (b"<b>", b"nothing"))
    content = Content(client.post("/symbols", files, **KIND))
    assert content.status == 200
    assert "1 image stored." in content.text
    assert "1 left out" in content.text
    assert str(program.uuid).upper() in content.text
    assert wait_for_names(client) == [{"function": "stop"}]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", KIND, 400),
        (b"--x--\r\n", KIND, 400),
        (form((b"a", b"")), KIND, 400),
        (b"file=x", {"Content_Type": "application/x-www-form-urlencoded"}, 400),
        (form((b"a", b"x")), KIND | {"Sec_Fetch_Site": "cross-site"}, 403),
        (form((b"a", b"x")), KIND | {"Origin": "http://localhost:1"}, 403),
        (form((b"a", b"x")), KIND | {"Content_Encoding": "gzip"}, 415),
    ],
)
def test_forms_that_are_refused(client, body, headers, status):
    content = Content(client.post("/symbols", body, Accept="text/html", **headers))
    assert content.status == status
    assert client.get("/v1/administration").data == b""


def test_a_reader_sends_no_symbols(folder):
    reader, sender = (Tokens(folder).create(scope) for scope in (Scope.READ, Scope.SYMBOLS))
    with running(folder) as client:
        assert Content(client.get("/symbols", token=reader)).count("input") == 0
        assert Content(client.get("/symbols", token=sender)).count("input") == 1
        body = form((b"a", b"x"))
        assert client.post("/symbols", body, token=reader, **KIND).status == 403
        assert client.post("/symbols", body, token=sender, **KIND).status == 200


def test_an_empty_warehouse(client):
    content = page(client)
    assert content.status == 200
    assert "All stored frames have names from symbols." in content.text
