"""Symbolicator's interface: stacks and crash reports get names as its own server gives them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from machtrace.server.stored_modules import DebugId, parse_debug_id, stored_module
from machtrace.server.tokens import Scope, Tokens
from machtrace.symbolstore.store import SymbolStore
from tests.server.serving import running
from tests.warehouse.test_names import BASE, crash, program

__all__ = ["program"]

NOTHING = dict.fromkeys(("has_debug_info", "has_unwind_info", "has_symbols", "has_sources"), False)
UNKNOWN = {"type": "macho", "debug_id": "a" * 32, "image_addr": "0x1000", "image_size": 0x1000}


def ask(client, path="/symbolicate", token="", **document):
    return client.post(path, json.dumps(document), token=token)


def completed(client, **document):
    answer = ask(client, **document)
    assert answer.status == 200, answer.data
    made = answer.json
    assert made.pop("status") == "completed"
    return made


def statuses(client, *frames, modules=(UNKNOWN,), **more):
    stack = {"frames": [{"instruction_addr": each} for each in frames]}
    answer = completed(client, stacktraces=[stack], modules=modules, **more)
    return [frame["status"] for frame in answer["stacktraces"][0]["frames"]]


@pytest.fixture
def module(program):
    uuid = str(program.uuid)
    return {
        "type": "macho",
        "debug_id": uuid,
        "code_id": uuid.replace("-", ""),
        "code_file": "/Applications/Demo.app/Demo",
        "image_addr": hex(BASE),
        "image_size": 0x10000,
    }


@pytest.fixture
def named(client, program):
    """A client of a server that has the program's symbols."""
    assert client.put("/v1/symbols", program.path.read_bytes()).status == 200
    return client


@pytest.mark.peer
def test_names_of_a_stack(named, program, module):
    starts = program.starts
    frames = [
        {"instruction_addr": hex(BASE + starts["_stop"]), "trust": "context", "ignored": 1},
        {"instruction_addr": BASE + starts["_outer"] + 8},
        {"instruction_addr": "0x10", "function": "_ZN3one3twoEv", "package": "mine"},
    ]
    stack = {"frames": frames, "registers": {"pc": "12"}, "thread_id": 7, "is_requesting": True}
    answer = completed(named, stacktraces=[stack], modules=[module], signal=6)
    (trace,) = answer["stacktraces"]
    stop, outer, last = trace["frames"]
    assert {name: trace[name] for name in trace if name != "frames"} == {
        "thread_id": 7,
        "is_requesting": True,
        "registers": {"pc": "0xc"},
    }
    shared = {"status": "symbolicated", "package": "/Applications/Demo.app/Demo"}
    assert (
        stop.items()
        >= {
            **shared,
            "original_index": 0,
            "instruction_addr": hex(BASE + starts["_stop"]),
            "sym_addr": hex(BASE + starts["_stop"]),
            "function": "stop",
            "symbol": "stop",
            "trust": "context",
        }.items()
    )
    # A return address: four bytes before it is the call.
    assert (
        outer.items()
        >= {
            **shared,
            "original_index": 1,
            "instruction_addr": hex(BASE + starts["_outer"] + 4),
            "function": "outer",
        }.items()
    )
    assert last == {
        "status": "unknown_image",
        "original_index": 2,
        "instruction_addr": "0x10",
        "function": "one::two()",
        "symbol": "_ZN3one3twoEv",
        "package": "mine",
    }
    (described,) = answer["modules"]
    assert described.items() >= {**module, "debug_status": "found", "arch": "arm64"}.items()
    assert described["features"]["has_symbols"]
    assert answer["signal"] == 6


@pytest.mark.peer
@pytest.mark.parametrize(
    ("more", "frame", "adjusted"),
    [
        ({}, {}, 8),
        ({"signal": 11}, {}, 8),  # a register that is not sent is no evidence
        ({"signal": 11, "pc": 9}, {}, 4),
        ({"signal": 11, "pc": 8}, {}, 8),
        ({"signal": 6, "pc": 9}, {}, 8),
        ({"pc": 9}, {}, 8),
        ({}, {"adjust_instruction_addr": True}, 4),
        ({"signal": 11, "pc": 9}, {"adjust_instruction_addr": False}, 8),
    ],
)
def test_the_innermost_address(named, program, module, more, frame, adjusted):
    """It is a return address if the thread's register disagrees, in a crash."""
    start = BASE + program.starts["_outer"]
    signal = {name: value for name, value in more.items() if name == "signal"}
    registers = {"pc": start + more["pc"]} if "pc" in more else {}
    stack = {"frames": [{"instruction_addr": start + 8, **frame}], "registers": registers}
    answer = completed(named, stacktraces=[stack], modules=[module], **signal)
    (made,) = answer["stacktraces"][0]["frames"]
    assert made["instruction_addr"] == hex(start + adjusted)


@pytest.mark.peer
def test_relative_addresses_and_the_order_of_frames(named, program, module):
    starts = program.starts
    frames = [
        {"instruction_addr": starts["_outer"] + 8, "addr_mode": "rel:0"},
        {"instruction_addr": starts["_stop"], "addr_mode": "rel:0"},
    ]
    answer = completed(
        named,
        stacktraces=[{"frames": frames}],
        modules=[{**module, "image_addr": 0}],
        options={"frame_order": "caller_first"},
    )
    outer, stop = answer["stacktraces"][0]["frames"]
    assert (outer["function"], stop["function"]) == ("outer", "stop")
    assert (outer["original_index"], stop["original_index"]) == (1, 0)
    assert stop["addr_mode"] == "rel:0"
    assert stop["instruction_addr"] == hex(starts["_stop"])


def test_frames_without_names(client):
    later = {"type": "elf", "image_addr": "0x4000"}
    assert statuses(
        client, "0x10", "0x1010", "0x2000", "0x2001", "0x999999", modules=[UNKNOWN]
    ) == [
        "unknown_image",
        "missing",
        "missing",  # the end is part of it, as Symbolicator has it
        "unknown_image",
        "unknown_image",
    ]
    assert statuses(client, "0x999999", modules=[UNKNOWN, later]) == ["missing"]
    relative = {"instruction_addr": 1, "addr_mode": "rel:1"}
    answer = completed(client, stacktraces=[{"frames": [relative]}], modules=[UNKNOWN])
    assert answer["stacktraces"][0]["frames"][0]["status"] == "unknown_image"
    (described,) = answer["modules"]
    assert (
        described.items()
        >= {
            "debug_status": "unused",
            "features": NOTHING,
            "arch": "unknown",
            "debug_id": str(UUID("a" * 32)),
            "image_addr": "0x1000",
            "image_size": 0x1000,
        }.items()
    )


def test_frames_of_a_scan_are_left_out(client):
    frames = [
        {"instruction_addr": 1, "trust": "scan"},
        {"instruction_addr": 2, "trust": "cfi"},
    ]
    answer = completed(client, stacktraces=[{"frames": frames}])
    (left,) = answer["stacktraces"][0]["frames"]
    assert (left["original_index"], left["trust"]) == (1, "cfi")


def test_sources_are_not_read(client):
    """A server that fetched them would send requests to addresses that a client chose."""
    bait = [
        {"id": "a", "type": "http", "url": f"http://127.0.0.1:{client.port}/healthz"},
        {"id": "b", "type": "filesystem", "path": "/etc"},
        {"id": "c", "type": "s3", "bucket": "x"},
        "anything",
    ]
    before = sum(client.service.answers.values())
    assert statuses(client, "0x1010", sources=bait, scraping={"enabled": True}) == ["missing"]
    assert sum(client.service.answers.values()) == before + 1
    form = f'--x\r\nContent-Disposition: form-data; name="sources"\r\n\r\n{json.dumps(bait)}\r\n'
    answer = client.post(
        "/applecrashreport",
        (form + "--x--").encode(),
        Content_Type="multipart/form-data; boundary=x",
    )
    assert answer.status == 400


def test_candidates(client):
    answer = completed(
        client,
        stacktraces=[{"frames": [{"instruction_addr": "0x1010"}]}],
        modules=[UNKNOWN],
        options={"dif_candidates": True},
    )
    (candidate,) = answer["modules"][0]["candidates"]
    assert (candidate["source"], candidate["download"]) == ("machtrace", {"status": "notfound"})


def test_sizes_that_are_not_stated(client):
    """Such a module ends where the next one begins."""
    modules = [
        {"image_addr": "0x2000", "image_size": 0x1000},
        {"image_addr": "0x1000"},
        {"image_addr": "0x5000", "image_size": None},
    ]
    answer = completed(client, modules=modules)
    assert [each.get("image_size") for each in answer["modules"]] == [0x1000, 0x1000, None]
    assert {each["type"] for each in answer["modules"]} == {"unknown"}


def form(report: bytes) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="apple_crash_report"\r\n\r\n'
    return head + report + b"\r\n--b--\r\n"


TEXT = b"""\
Hardware Model:      Mac1,2
Process:         Demo [7]
Code Type:       X86-64 (Native)
Date/Time:       2026-11-23 10:00:00 +0000
OS Version:      Mac OS X 12.6.1 (21G1)

Exception Type:  SIGABRT

Thread 0:
0   Demo                                0x0000000100000f10 0x100000000 + 3856

Thread 1 Crashed: Worker
0   libother.dylib                      0x00000002000000be 0x200000000 + 190

Thread 1 crashed with X86-64 Thread State:
   rip: 0x00000002000000be    rbp: 0x0000700015a616d0

Binary Images:
       0x100000000 -        0x100000fff +Demo x86_64 (1) <2d903291397d3d14bfca52c7fb8c5e00> /Demo
"""


def posted(client, report: bytes, path: str = "/applecrashreport"):
    return client.post(path, form(report), Content_Type="multipart/form-data; boundary=b")


def test_a_crash_report(client):
    answer = posted(client, TEXT).json
    assert {name: answer[name] for name in answer if name not in ("stacktraces", "modules")} == {
        "status": "completed",
        "timestamp": 1795428000,
        "system_info": {
            "os_name": "macOS",
            "os_version": "12.6.1",
            "os_build": "21G1",
            "cpu_arch": "x86_64",
            "device_model": "Mac1,2",
        },
        "crashed": True,
        "crash_reason": "SIGABRT",
    }
    first, second = answer["stacktraces"]
    assert first["frames"] == [
        {
            "status": "missing",
            "original_index": 0,
            "instruction_addr": "0x100000f10",
            "package": "/Demo",
        }
    ]
    assert (second["thread_name"], second["is_requesting"]) == ("Worker", True)
    assert second["registers"]["rip"] == "0x2000000be"
    assert second["frames"][0]["package"] == "libother.dylib"
    (module,) = answer["modules"]
    assert (
        module.items()
        >= {
            "debug_status": "missing",
            "type": "macho",
            "code_id": "2d903291397d3d14bfca52c7fb8c5e00",
            "debug_id": "2d903291-397d-3d14-bfca-52c7fb8c5e00",
            "image_size": 0xFFF,
        }.items()
    )


@pytest.mark.peer
def test_a_crash_report_of_another_format(named, program):
    answer = posted(named, crash(program, "8D1BFBD4-0000-4000-8000-000000000001")).json
    frames = answer["stacktraces"][0]["frames"]
    assert [frame["function"] for frame in frames] == ["stop", "outer", "main"]


def test_reports_that_cannot_be_read(client):
    failed = posted(client, b"nothing of the kind").json
    assert failed["status"] == "failed"
    assert "unknown kind of report" in failed["message"]


def test_answers_that_come_later(client):
    """Each is given once."""
    with client.service.names():
        pending = ask(client, "/symbolicate?timeout=0", stacktraces=[]).json
        assert pending.keys() == {"status", "request_id", "retry_after"}
        assert pending["status"] == "pending"
        path = f"/requests/{pending['request_id']}"
        assert client.get(f"{path}?timeout=0").json == pending
    assert client.get(path).json == {"status": "completed", "stacktraces": [], "modules": []}
    assert client.get(path).status == 404
    assert client.get("/requests/unknown").status == 404
    assert client.get(f"{path}?timeout=soon").status == 400


def test_answers_are_for_who_sent_the_request(folder):
    own, other = Tokens(folder).create(Scope.READ), Tokens(folder).create(Scope.READ)
    with running(folder) as client:
        with client.service.names():
            path = "/symbolicate?timeout=0"
            name = ask(client, path, token=own).json["request_id"]
        assert client.get(f"/requests/{name}", token=other).status == 404
        assert client.get(f"/requests/{name}").status == 401
        assert client.get(f"/{own}/requests/{name}").json["status"] == "completed"


def test_too_many_requests_at_a_time(client):
    with client.service.names():
        answers = [ask(client, "/symbolicate?timeout=0") for _ in range(201)]
    assert [answer.status for answer in answers].count(200) == 200
    assert (answers[-1].status, answers[-1].headers["Retry-After"]) == (503, "30")


def test_scopes(folder):
    made = {scope: Tokens(folder).create(scope) for scope in Scope}
    with running(folder) as client:
        seen = {scope: ask(client, token=token).status for scope, token in made.items()}
        assert seen == {Scope.INGEST: 403, Scope.SYMBOLS: 200, Scope.READ: 200, Scope.ADMIN: 200}
        assert ask(client, f"/{made[Scope.READ]}/symbolicate").status == 200
        assert client.get("/healthcheck").data == b"ok"


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"stacktraces": {}},
        {"stacktraces": [1]},
        {"stacktraces": [{}]},
        {"stacktraces": [{"frames": [{}]}]},
        {"stacktraces": [{"frames": [{"instruction_addr": "0x"}]}]},
        {"stacktraces": [{"frames": [{"instruction_addr": "-1"}]}]},
        {"stacktraces": [{"frames": [{"instruction_addr": 1 << 64}]}]},
        {"stacktraces": [{"frames": [{"instruction_addr": True}]}]},
        {"stacktraces": [{"frames": [{"instruction_addr": "1_0"}]}]},
        {"stacktraces": [{"frames": [{"instruction_addr": "9" * 5000}]}]},
        {"stacktraces": [{"frames": [{"instruction_addr": 1, "addr_mode": "rel:-1"}]}]},
        {"stacktraces": [{"frames": [{"instruction_addr": 1, "addr_mode": "what"}]}]},
        {"stacktraces": [{"frames": [{"instruction_addr": 1, "function": 2}]}]},
        {"stacktraces": [{"frames": [], "registers": {"pc": []}}]},
        {"modules": [1]},
        {"modules": [{"image_addr": []}]},
        {"modules": [{"debug_id": 1}]},
        {"signal": "SIGSEGV"},
        {"options": 1},
        {"options": {"frame_order": "sideways"}},
    ],
)
def test_malformed_requests(client, document):
    assert client.post("/symbolicate", json.dumps(document)).status == 400


def test_hostile_bodies(client):
    assert client.post("/symbolicate", b"[" * 100_000).status == 400
    assert client.post("/symbolicate", b"\xff").status == 400
    assert client.post("/applecrashreport", b"x").status == 400
    odd = {"debug_id": "../../etc/passwd", "code_id": "..", "code_file": "/../..\\..\\x"}
    assert statuses(client, "0x10", modules=[{**odd, "image_addr": 1}]) == ["missing"]
    edge = {**UNKNOWN, "image_addr": (1 << 64) - 1, "image_size": (1 << 64) - 1}
    assert statuses(client, (1 << 64) - 1, modules=[edge]) == ["missing"]


def test_limits(folder):
    with running(folder, frames=2) as client:
        stack = {"frames": [{"instruction_addr": 1}] * 3}
        assert ask(client, stacktraces=[stack]).status == 413
        assert ask(client, modules=[UNKNOWN] * 3).status == 413
        assert (
            posted(client, TEXT.replace(b"Thread 0:\n", b"Thread 0:\n" + LINES))
            .json["message"]
            .startswith("more than")
        )


LINES = b"".join(b"%d   Demo  0x0000000100000f1%d 0x100000000 + 3856\n" % (at, at) for at in (0, 1))


def test_debug_ids():
    uuid = UUID("2d903291-397d-3d14-bfca-52c7fb8c5e00")
    assert parse_debug_id(str(uuid)) == DebugId(uuid, 0)
    assert parse_debug_id(f"{uuid.hex.upper()}0") == DebugId(uuid, 0)
    assert str(parse_debug_id(f"{uuid}-1a")) == f"{uuid}-1a"
    assert parse_debug_id("") is parse_debug_id("x" * 32) is None


def test_elf_images_by_their_debug_id(tmp_path):
    """It is made of the beginning of the build id."""
    build_id = "0123456789abcdef0123456789abcdef01234567"
    (tmp_path / "01" / build_id[2:]).mkdir(parents=True)
    (tmp_path / "01" / build_id[2:] / "debuginfo").write_bytes(b"")
    store = SymbolStore(tmp_path)
    swapped = UUID(bytes_le=bytes.fromhex(build_id[:32]))
    by_debug, by_code = (
        stored_module(store, DebugId(swapped, 0)),
        stored_module(store, None, build_id),
    )
    assert by_debug == by_code
    assert by_debug.identifier.hex == build_id
    assert stored_module(store, DebugId(UUID(build_id[:32]), 0)) is None


_REPOSITORY = os.environ.get("MACHTRACE_SYMBOLICATOR", "")
"""The files of Symbolicator's repository: its own bodies, symbols and answers."""
_ANSWERS = "crates/symbolicator-native/tests/integration/snapshots/integration__symbolication__"
_BODIES = {
    "add_bucket-2": (
        {"debug_id": "502fc0a5-1ec1-3e47-9998-684fa139dca7", "type": "macho"}
        | {"image_addr": "0x100000000", "image_size": 4096},
        {"instruction_addr": "0x100000fa0"},
    ),
    "source_candidates": (
        {"debug_id": "7f883fcd-c553-36d0-a809-b0150f09500b", "type": "wasm"},
        {"instruction_addr": "0x3880", "addr_mode": "rel:0"},
    ),
}


@pytest.fixture(scope="module")
def peer():
    if not _REPOSITORY:
        pytest.skip("MACHTRACE_SYMBOLICATOR does not name the files of its repository")
    yaml = pytest.importorskip("yaml")

    def answer(name):
        text = (Path(_REPOSITORY) / f"{_ANSWERS}{name}.snap").read_text()
        return without_sources(yaml.safe_load(text.split("---", 2)[2]))

    return SimpleNamespace(answer=answer, fixtures=Path(_REPOSITORY) / "tests/fixtures")


def without_sources(answer):
    """Leave out what depends on its symbol servers, and the lines of source files."""
    for module in answer["modules"]:
        module.pop("candidates", None)
        del module["features"]["has_sources"]
    for stack in answer["stacktraces"]:
        for frame in stack["frames"]:
            for name in ("pre_context", "context_line", "post_context"):
                frame.pop(name, None)
    return answer


@pytest.mark.peer
@pytest.mark.parametrize("name", _BODIES)
def test_its_own_bodies(client, peer, name):
    for path in (
        "502F/C0A5/1EC1/3E47/9998/684FA139DCA7",
        "7f/883fcdc55336d0a809b0150f09500b.debug",
    ):
        client.put("/v1/symbols", (peer.fixtures / "symbols" / path).read_bytes())
    module, frame = _BODIES[name]
    module["code_id"] = module["debug_id"].replace("-", "")
    answer = completed(client, stacktraces=[{"frames": [frame]}], modules=[module])
    assert without_sources(answer) == peer.answer(name)


@pytest.mark.peer
def test_its_own_crash_report(client, peer):
    answer = posted(client, (peer.fixtures / "apple_crash_report.txt").read_bytes()).json
    assert answer.pop("status") == "completed"
    assert without_sources(answer) == peer.answer("apple_crash_report")
