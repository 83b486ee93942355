"""Exports of a warehouse in other programs: speedscope's schema, and the Firefox Profiler.

They are npm packages, as for ``tests/render/test_profile_peers.py``.
"""

from __future__ import annotations

import json

import pytest

from machtrace.warehouse.documents import flame_document
from machtrace.warehouse.warehouse import Warehouse
from tests.render.test_profile_peers import complaints
from tests.server.pages.fleet import reports
from tests.support.peers.npm import PeerMissingError, firefox_profiler, npm_package

pytestmark = pytest.mark.peer
SETTINGS = "Settings.synchronize()"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    with Warehouse.create(tmp_path_factory.mktemp("peers") / "w") as warehouse:
        warehouse.receive([("x.ips", report) for report in reports(40)])
        warehouse.flush()
        yield warehouse.flame("role = 'subject'")


def test_speedscope_s_schema(tree):
    try:
        path = npm_package("speedscope") / "dist" / "release" / "file-format-schema.json"
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    schema = json.loads(path.read_text())
    document = json.loads(flame_document(tree, "fleet", "speedscope"))
    assert list(complaints(document, {"$ref": schema["$ref"]}, schema)) == []
    assert sum(document["profiles"][0]["weights"]) == 40_000_000  # a millisecond for each


def test_the_firefox_profiler(tree, tmp_path):
    path = tmp_path / "fleet.json"
    path.write_bytes(flame_document(tree, "fleet", "firefox"))
    try:
        with firefox_profiler(path, tmp_path) as request:
            answer = json.loads(request("thread", "functions", "--thread", "t-0", "--json"))
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    totals = {
        function["name"].rpartition("!")[2]: function["totalSamples"]
        for function in answer["functions"]
    }
    assert totals["main"] == 40
    assert 0 < totals[SETTINGS] < 40
