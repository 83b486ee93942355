"""``/symbolicate/v5`` answers as Mozilla's symbol server does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from machtrace.server.tokens import Scope, Tokens
from tests.server.serving import running
from tests.warehouse.test_names import program

__all__ = ["program"]

V5 = "/symbolicate/v5"
SOURCE = "int one(int n) { return n * 3; }\nint two(int n) { return one(n); }"
BUILD_ID = "0123456789abcdef0123456789abcdef01234567"


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
    (error,) = result["module_errors"].pop("/".join(other))
    assert error.keys() == {"name", "message"}
    assert result["module_errors"] == {}
    (frames,) = result["stacks"]
    named, *rest = frames
    assert {name: named[name] for name in ("frame", "module", "module_offset")} == {
        "frame": 0,
        "module": module[0],
        "module_offset": hex(stop + 4),
    }
    assert (named["function"], named["function_offset"]) == ("stop", "0x4")
    starts = sorted(program.starts.values())
    size = starts[starts.index(stop) + 1] - stop if stop != starts[-1] else None
    assert size is None or 4 < int(named["function_size"], 16) <= size
    assert rest == [
        {"frame": 1, "module": "libc.so", "module_offset": "0x10"},
        {"frame": 2, "module": "<unknown>", "module_offset": "0x20"},
        {"frame": 3, "module": module[0], "module_offset": "-0x1"},
        {"frame": 4, "module": "<unknown>", "module_offset": "-0x1"},
    ]


@pytest.mark.parametrize("path", ["/source/v1", "/asm/v1"])
def test_sources_and_instructions_are_not_answered(client, path):
    """A debug file can name any file of the server's machine."""
    body = {"debugName": "a", "debugId": "A" * 33, "moduleOffset": "0x1", "file": "/etc/passwd"}
    answer = ask(client, body, path)
    assert (answer.status, answer.json["error"].split(",")[0]) == (404, "the server has no sources")
    assert answer.headers["Access-Control-Allow-Origin"] == "*"


def compiled(tmp_path, *options):
    """Return an ELF library with a build id, and its offsets."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "a.c").write_text(SOURCE)
    path = tmp_path / "liba.so"
    link = ["-shared", "-fPIC", "-O0", f"-Wl,--build-id=0x{BUILD_ID}", *options]
    subprocess.run(["cc", *link, "-o", path, tmp_path / "a.c"], check=True)
    return path


@pytest.mark.peer
@pytest.mark.skipif(sys.platform != "linux", reason="its compiler makes ELF files")
def test_elf_modules_are_named_by_their_debug_id(client, tmp_path):
    """It is made of the first 16 bytes of the build id, as Firefox has it."""
    path = compiled(tmp_path)
    assert client.put("/v1/symbols", path.read_bytes()).status == 200
    listed = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    start = next(int(line.split()[0], 16) for line in listed.splitlines() if line.endswith(" two"))
    for identity in (f"{UUID(bytes_le=bytes.fromhex(BUILD_ID)[:16]).hex.upper()}0", BUILD_ID):
        job = {"memoryMap": [["liba.so", identity]], "stacks": [[[0, start + 4]]]}
        ((frame,),) = ask(client, job).json["results"][0]["stacks"]
        assert (frame["function"], frame["function_offset"]) == ("two", "0x4")
        assert int(frame["function_size"], 16) > 4


@pytest.mark.peer
def test_samplys_own_body(client):
    """A stripped library: a function without a name has one of its start."""
    fixtures = Path(os.environ.get("MACHTRACE_SAMPLY", "")) / "fixtures"
    if not os.environ.get("MACHTRACE_SAMPLY"):
        pytest.skip("MACHTRACE_SAMPLY does not name the files of its repository")
    client.put("/v1/symbols", (fixtures / "macos-ci/libsoftokn3.dylib").read_bytes())
    module = ["libsoftokn3.dylib", "F7DE6E25737B3B1885A5079DC41D77B40"]
    job = {"memoryMap": [module], "stacks": [[[0, 230071], [0, 232505]]]}
    answer = (fixtures / "snapshots/api-v5-stripped-macos.txt").read_text()
    assert ask(client, job).json == json.loads(answer)


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
