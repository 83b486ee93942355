"""``/symbolicate/v5`` answers as Mozilla's symbol server does."""

from __future__ import annotations

import json

import pytest

from machtrace.server.tokens import Scope, Tokens
from tests.server.serving import running
from tests.warehouse.test_names import program

__all__ = ["program"]

V5 = "/symbolicate/v5"


def ask(client, document, path=V5, **options):
    return client.post(path, json.dumps(document), **options)


@pytest.fixture
def module(program):
    return [program.path.name, program.uuid.hex.upper() + "0"]


@pytest.mark.peer
def test_the_shape_of_an_answer(client, program, module):
    client.put("/v1/symbols", program.path.read_bytes())
    other, unused = ["libc.so", "A" * 33], ["unused", "B" * 33]
    stop = program.starts["_stop"]
    stack = [[0, stop + 4], [1, 0x10], [-1, 0x20], [0, -1], [-1, -1]]
    job = {"memoryMap": [module, other, unused], "stacks": [stack]}
    (result,) = ask(client, {"jobs": [job]}).json["results"]
    assert result["found_modules"] == {
        "/".join(module): True,
        "/".join(other): False,
        "/".join(unused): None,
    }
    (frames,) = result["stacks"]
    named, *rest = frames
    assert {name: named[name] for name in ("frame", "module", "module_offset")} == {
        "frame": 0,
        "module": module[0],
        "module_offset": hex(stop + 4),
    }
    assert (named["function"], named["function_offset"]) == ("stop", "0x4")
    assert rest == [
        {"frame": 1, "module": "libc.so", "module_offset": "0x10"},
        {"frame": 2, "module": "<unknown>", "module_offset": "0x20"},
        {"frame": 3, "module": module[0], "module_offset": "-0x1"},
        {"frame": 4, "module": "<unknown>", "module_offset": "-0x1"},
    ]


@pytest.mark.peer
def test_symbols_are_used_as_soon_as_they_are_there(client, program, module):
    job = {"memoryMap": [module], "stacks": [[[0, program.starts["_stop"]]]]}
    name = "/".join(module)
    assert ask(client, job).json["results"][0]["found_modules"] == {name: False}
    client.put("/v1/symbols", program.path.read_bytes())
    assert ask(client, job).json["results"][0]["found_modules"] == {name: True}


MODULE = ["a", "C" * 33]


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"jobs": {}},
        {"jobs": [1]},
        {"memoryMap": [MODULE]},
        {"memoryMap": [["a"]], "stacks": []},
        {"memoryMap": [["a", "xyz"]], "stacks": []},
        {"memoryMap": [MODULE], "stacks": [[[1, 0]]]},
        {"memoryMap": [MODULE], "stacks": [[[-2, 0]]]},
        {"memoryMap": [MODULE], "stacks": [[[0, -2]]]},
        {"memoryMap": [MODULE], "stacks": [[[0, 1.5]]]},
        {"memoryMap": [MODULE], "stacks": [[[True, 1]]]},
        {"memoryMap": [MODULE], "stacks": [[[0, 1 << 64]]]},
        {"memoryMap": [MODULE], "stacks": [1]},
    ],
)
def test_malformed_requests(client, document):
    assert ask(client, document).status == 400


def test_requests_that_are_no_json(client):
    assert client.post(V5, b"nothing").status == 400
    assert client.post(V5, b"[" * 100_000).status == 400


def test_odd_requests(client):
    assert ask(client, {"jobs": []}).json == {"results": []}
    empty = {"memoryMap": [["", ""]], "stacks": [[[0, 0]], []]}
    assert ask(client, empty).json["results"][0]["found_modules"] == {"/": False}


def test_limits(folder):
    with running(folder, frames=2) as client:
        job = {"memoryMap": [MODULE], "stacks": [[[0, 1]] * 3]}
        assert ask(client, job).status == 413


def test_pages_of_other_sites_may_use_it(client):
    """The Firefox Profiler does; its address can have a token."""
    answer = ask(client, {"jobs": []}, Origin="https://profiler.example")
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    asked = client.request("OPTIONS", V5, Origin="https://profiler.example")
    assert (asked.status, asked.headers["Access-Control-Allow-Origin"]) == (204, "*")


def test_a_token_in_the_address(folder):
    token, other = Tokens(folder).create(Scope.READ), Tokens(folder).create(Scope.INGEST)
    with running(folder) as client:
        assert ask(client, {"jobs": []}).status == 401
        assert ask(client, {"jobs": []}, f"/{token}{V5}").status == 200
        assert ask(client, {"jobs": []}, f"/{other}{V5}").status == 403
