"""Hostile bodies are refused, with memory bounded, and the server continues."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from machtrace.errors import FileAccessError
from machtrace.server.bodies import decoded
from machtrace.server.limits import Limits, Memory, RefusedError
from machtrace.warehouse.warehouse import Warehouse
from tests.server.serving import running
from tests.server.test_reports import zstd
from tests.warehouse.receiver import report

MIB = 1 << 20


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstd)]
)
def test_decompression_bombs(client, encoding, pack):
    """Each is a thousandth of its contents, and they are refused long before these exist."""
    answer = client.post("/v1/reports", pack(bytes(64 * MIB)), Content_Encoding=encoding)
    assert answer.status == 413
    assert "decompressed" in answer.json["error"]
    assert client.post("/v1/reports", report("a")).status == 202
    assert client.service.memory.used == 0


def test_memory_is_reserved_before_it_is_used():
    memory = Memory(3 * MIB)
    with memory.reservation() as room, pytest.raises(RefusedError) as refused:
        decoded(gzip.compress(bytes(8 * MIB)), "gzip", Limits(ratio=10**6), room)
    assert refused.value.status == 429
    assert memory.used == 0


def test_many_members_of_a_gzip_file_are_one_body(client):
    body = b"".join(gzip.compress(part) for part in (report("a")[:50], report("a")[50:]))
    answer = client.post("/v1/reports", body, Content_Encoding="gzip")
    assert client.state(answer.json["ids"][0])["state"] == "parsed"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("body", [b"not packed", b"\x1f\x8b\x08", b"\x78\x9c", b"\x28\xb5\x2f\xfd"])
def test_damaged_encodings(client, encoding, body):
    assert client.post("/v1/reports", body, Content_Encoding=encoding).status == 400


def test_unknown_encodings(client):
    assert client.post("/v1/reports", b"x", Content_Encoding="br").status == 415
    assert client.post("/v1/reports", b"x", Content_Encoding="gzip, gzip").status == 415


def test_a_body_that_is_too_large(folder):
    with running(folder, packed_bytes=MIB) as client:
        head = b"POST /v1/reports HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        answer = client.raw(head % (MIB + 1))
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer.lower()


def test_an_endless_body_is_cut_at_the_limit(folder):
    with running(folder, packed_bytes=MIB) as client:
        head = b"POST /v1/reports HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        answer = client.raw(head, *[piece] * 1024)  # far more than sockets buffer
        assert answer.startswith(b"HTTP/1.1 413 ") or answer == b""
        assert client.service.memory.used == 0
        assert client.post("/v1/reports", report("a")).status == 202


def test_a_body_that_is_cut_is_not_stored(client, folder):
    head = b"POST /v1/reports HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    client.raw(head + report("a")[:100])
    assert client.post("/v1/reports", report("b")).status == 202
    logged = b"".join(path.read_bytes() for path in (folder / "log").iterdir())
    assert report("a")[:100] not in logged.replace(report("b"), b"")


def test_headers_without_an_end(client):
    line = b"X: " + b"x" * 4000 + b"\r\n"
    answer = client.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", *[line] * 4096)
    assert b"200 OK" not in answer
    assert client.get("/healthz").status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Content-Length: +5\r\n",
    ],
)
def test_smuggled_requests(client, head):
    """A second request inside a body of two lengths is never answered."""
    start = b"POST /v1/reports HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n"
    answer = client.raw(start + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b'"status":"ok"' not in answer


def test_too_many_bodies_at_a_time(folder):
    with running(folder, memory_bytes=100) as client:
        answer = client.post("/v1/reports", report("a"))
        assert answer.status == 429
        assert int(answer.headers["Retry-After"]) > 0


def test_a_log_that_is_too_long(folder):
    with running(folder, unread_bytes=10, linger=3600) as client:
        assert client.post("/v1/reports", report("a")).status == 202
        answer = client.post("/v1/reports", report("b"))
        assert answer.status == 429
        assert int(answer.headers["Retry-After"]) > 0


def test_a_full_disk(folder):
    with running(folder, free_bytes=1 << 62) as client:
        answer = client.post("/v1/reports", report("a"))
        assert answer.status == 507
        assert client.put("/v1/symbols", b"x").status == 507
        assert client.rows("SELECT * FROM reports") == []  # reading continues


def test_a_log_that_cannot_be_written(client, monkeypatch):
    def full(*_):
        raise FileAccessError("log", "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, "receive_each", full)
        assert client.post("/v1/reports", report("a")).status == 507
    assert client.post("/v1/reports", report("a")).status == 202


def test_one_server_writes(client):
    from machtrace.server.service import Service

    second = Service(client.service.folder, is_local=True)
    with pytest.raises(FileAccessError, match="another process writes"):
        second.writer.open()


def test_errors_are_json_with_a_hint(client):
    answer = client.post("/v1/query", "SELECT nothing")
    assert answer.status == 400
    assert set(json.loads(answer.data)) == {"error", "hint"}


def test_no_pattern_of_scrubbing_stops_the_server(folder):
    pytest.importorskip("re2")
    (folder / "scrub.toml").write_text("version = 1\npatterns = ['(a+)+$x']\n")
    with running(folder) as client:
        answer = client.post("/v1/reports", b"a" * 100_000 + b"b")
        assert answer.status == 202
        assert client.state(answer.json["ids"][0])["state"] == "quarantined"


def test_what_takes_too_long_to_scrub_is_refused_and_not_stored(folder, monkeypatch, capsys):
    (folder / "scrub.toml").write_text("version = 1\nremove = ['secret']\n")
    monkeypatch.setattr("machtrace.warehouse.scrubbing.scrubber._SECONDS", -1.0)
    monkeypatch.setattr("machtrace.warehouse.scrubbing.scrubber._SECONDS_A_BYTE", 0.0)
    with running(folder) as client:
        for _ in range(2):
            answer = client.post("/v1/reports", b'{"secret": "word"}')
            assert answer.status == 413
            assert "takes too long" in answer.json["error"]
        assert client.post("/v1/reports", b"nothing").status == 202
        assert "'secret' of scrub.toml takes too long" in client.get("/healthz").json["problems"][0]
        assert "machtrace_unscrubbed_total 2" in client.get("/metrics").data.decode()
    assert b"word" not in b"".join(each.read_bytes() for each in (folder / "log").iterdir())
    assert capsys.readouterr().err.count("takes too long") == 1
