"""Symbols on a page: wanted, arrived, and the share of frames that have names."""

from __future__ import annotations

import json

from tests.server.pages.conftest import REPORTS
from tests.server.pages.fleet import reports
from tests.server.pages.reading import Content


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


def test_an_empty_warehouse(client):
    content = page(client)
    assert content.status == 200
    assert "All stored frames have names from symbols." in content.text
