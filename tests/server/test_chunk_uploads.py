"""Symbols in chunks, as sentry-cli sends them: states, limits, and what attackers send."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import time
from hashlib import sha1

import pytest

from machtrace.server.chunks import CHUNK_BYTES, Chunks
from machtrace.server.limits import Limits, RefusedError
from machtrace.server.tokens import Scope, Tokens
from tests.server.serving import running
from tests.server.test_symbols import wait_for_names
from tests.support.writers.synthetic_image import synthetic_image
from tests.warehouse.test_names import crash, program

__all__ = ["program"]

CHUNKS = "/api/0/organizations/org/chunk-upload/"
ASSEMBLE = "/api/0/projects/org/app/files/difs/assemble/"
EMPTY = sha1(b"", usedforsecurity=False).hexdigest()


def digest(data: bytes) -> str:
    return sha1(data, usedforsecurity=False).hexdigest()


def form(*parts: tuple[str, str, bytes]) -> tuple[bytes, dict[str, str]]:
    """Return the body of a form, and its header."""
    body = b"".join(
        f'--X\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, file, data in parts
    )
    return body + b"--X--\r\n", {"Content_Type": "multipart/form-data; boundary=X"}


def send(client, *chunks: bytes, token: str = "", **names: str):
    parts = [("file", names.get("name") or digest(data), data) for data in chunks]
    body, headers = form(*parts)
    return client.post(CHUNKS, body, token=token, **headers)


def assemble(client, data: bytes, *chunks: bytes, name: str = "names", token: str = ""):
    file = {"name": name, "chunks": [digest(chunk) for chunk in chunks or (data,)]}
    answer = client.post(ASSEMBLE, json.dumps({digest(data): file}), token=token)
    assert answer.status == 200, answer.data
    return answer.json[digest(data)]


@pytest.fixture
def image() -> bytes:
    return synthetic_image("/usr/lib/libshared.dylib").data


def test_the_client_learns_how_to_send(client):
    options = client.get(CHUNKS).json
    assert options["url"] == CHUNKS
    assert options["hashAlgorithm"] == "sha1"
    assert options["compression"] == ["gzip"]
    assert options["chunkSize"] * 4 == options["maxRequestSize"]


def test_a_file_in_chunks(client, image):
    first, second = image[:100], image[100:]
    state = assemble(client, image, first, second, first)
    assert state["state"] == "not_found"
    assert state["missingChunks"] == [digest(first), digest(second)]
    assert send(client, second).status == 200
    assert assemble(client, image, first, second)["missingChunks"] == [digest(first)]
    body, headers = form(("file_gzip", digest(first), gzip.compress(first)))
    assert client.post(CHUNKS, body, **headers).status == 200
    answer = assemble(client, image, first, second)
    assert answer["state"] == "ok"
    assert answer["missingChunks"] == []
    assert answer["dif"]["sha1"] == digest(image)
    assert answer["dif"]["objectName"] == "names"
    # It is known from now on, without its chunks, as long as the store has it.
    for chunk in (client.service.folder / "chunks").glob("*[0-9a-f]"):
        chunk.unlink()
    assert assemble(client, image, first, second)["state"] == "ok"
    for stored in list(client.service.store.files()):
        client.service.store.remove(stored)
    assert assemble(client, image, first, second)["state"] == "not_found"


@pytest.mark.peer
def test_stored_stacks_are_named(client, program):
    client.post("/v1/reports", crash(program, "a"))
    data = program.path.read_bytes()
    send(client, data)
    dif = assemble(client, data)["dif"]
    assert dif["debugId"] == str(program.uuid)
    assert (dif["cpuName"], dif["symbolType"]) == ("arm64", "macho")
    assert wait_for_names(client) == [{"function": "stop"}]


def test_a_file_without_an_image(client):
    send(client, b"nothing")
    answer = assemble(client, b"nothing")
    assert answer["state"] == "error"
    assert answer["detail"]
    assert not list((client.service.folder / "symbols").iterdir())


def test_source_code_is_left_out(client):
    data = b"SYSB" + bytes(100)
    send(client, data)
    assert assemble(client, data)["state"] == "ok"
    assert not list((client.service.folder / "symbols").iterdir())


def test_another_sum_of_the_whole(client, image):
    send(client, image)
    file = {"name": "a", "chunks": [digest(image)]}
    answer = client.post(ASSEMBLE, json.dumps({EMPTY: file})).json[EMPTY]
    assert answer["state"] == "error"
    assert "SHA-1" in answer["detail"]
    assert not list((client.service.folder / "symbols").iterdir())


def test_a_file_without_chunks(client):
    answer = client.post(ASSEMBLE, json.dumps({EMPTY: {"name": "a", "chunks": []}})).json[EMPTY]
    assert (answer["state"], answer["missingChunks"]) == ("not_found", [])


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "..\\evil", "\0evil", ".", "x" * 5000])
def test_names_lead_nowhere(client, folder, image, name):
    send(client, image)
    before = set(folder.parent.rglob("*"))
    assert assemble(client, image, name=name)["state"] == "ok"
    assert not [path for path in set(folder.parent.rglob("*")) - before if "evil" in path.name]
    assert not list((folder / "symbols").glob(".upload-*"))


@pytest.mark.parametrize(
    "name", ["0" * 40, "../../../tokens", "A" * 40, "", digest(b"a").upper(), digest(b"a") + "\n"]
)
def test_chunks_of_other_names_are_refused(client, folder, name):
    body, headers = form(("file", name, b"a"))
    assert client.post(CHUNKS, body, **headers).status == 400
    assert not any((folder / "chunks").glob("*"))
    assert not (folder / "tokens").exists()


@pytest.mark.parametrize(
    "part",
    [gzip.compress(bytes(CHUNK_BYTES + 1)), gzip.compress(b"a" * 100)[:-20], b"no gzip", b""],
)
def test_chunks_that_are_bombs_or_damaged(client, part):
    body, headers = form(("file_gzip", digest(b""), part))
    assert client.post(CHUNKS, body, **headers).status in (400, 413)


def test_too_many_chunks_in_a_request(client):
    assert send(client, *[b"%d" % number for number in range(65)]).status == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"x": {"chunks": []}}',
        b'{"' + b"0" * 40 + b'": []}',
        b'{"' + b"0" * 40 + b'": {"chunks": "' + b"0" * 40 + b'"}}',
        b'{"' + b"0" * 40 + b'": {"chunks": ["../tokens"]}}',
        b'{"' + b"0" * 40 + b'": {"chunks": [1]}}',
        b"[" * 100_000,
    ],
)
def test_malformed_lists(client, body):
    assert client.post(ASSEMBLE, body).status == 400


def test_lists_that_are_too_long(folder):
    with running(folder, question_bytes=1000) as client:
        assert client.post(ASSEMBLE, b"{" + b" " * 1000 + b"}").status == 413


def test_a_chunk_many_times_is_no_endless_file(folder):
    chunk = bytes(1 << 16)
    with running(folder, symbols_bytes=1 << 20) as client:
        send(client, chunk)
        answer = assemble(client, bytes(1 << 16) * 1000, *[chunk] * 1000)
        assert answer["state"] == "error"
        assert "larger than" in answer["detail"]
        assert not list((folder / "symbols").iterdir())


def test_chunks_have_bounded_room(folder):
    with running(folder, chunks=3) as client:
        assert send(client, b"a", b"b").status == 200
        answer = send(client, b"c", b"d")
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) > 0
    with running(folder, chunks_bytes=10) as client:
        assert send(client, bytes(11)).status == 503


def test_chunks_that_nobody_mentions_are_removed(tmp_path):
    chunks = Chunks(tmp_path, Limits())
    chunks.put([(digest(b"a"), b"a"), (digest(b"b"), b"b")])
    old = time.time() - 2 * Limits().chunk_time
    for each in (tmp_path / "chunks").iterdir():
        os.utime(each, (old, old))
    assert chunks.missing([digest(b"a")]) == []  # it is mentioned
    chunks.put([(digest(b"c"), b"c")])
    assert chunks.missing([digest(b"a"), digest(b"b"), digest(b"c")]) == [digest(b"b")]


def test_a_chunk_with_another_sum_is_not_stored(tmp_path):
    with pytest.raises(RefusedError):
        Chunks(tmp_path, Limits()).put([(digest(b"a"), b"b")])
    assert not list((tmp_path / "chunks").iterdir())


def test_a_full_disk(folder):
    with running(folder, free_bytes=1 << 60) as client:
        assert send(client, b"a").status == 507
        assert not [path for path in (folder / "chunks").iterdir() if path.suffix != ".part"]


@pytest.mark.parametrize("scope", [Scope.INGEST, Scope.READ])
def test_tokens_of_other_scopes(folder, image, scope):
    token = Tokens(folder).create(scope)
    own = Tokens(folder).create(Scope.SYMBOLS)
    with running(folder) as client:
        for method, path in (("GET", "/api/0/"), ("GET", CHUNKS), ("POST", ASSEMBLE)):
            assert client.request(method, path, b"{}" if method == "POST" else None).status == 401
            assert client.request(method, path, b"{}", token=token).status == 403
        assert send(client, image).status == 401
        assert send(client, image, token=token).status == 403
        assert send(client, image, token=own).status == 200
        assert assemble(client, image, token=own)["state"] == "ok"


SENTRY_CLI = os.environ.get("SENTRY_CLI", "sentry-cli")


@pytest.mark.peer
@pytest.mark.skipif(shutil.which(SENTRY_CLI) is None, reason="sentry-cli is not installed")
def test_the_real_client(folder, program, tmp_path):
    token = Tokens(folder).create(Scope.SYMBOLS)
    reading = Tokens(folder).create(Scope.ADMIN)
    with running(folder) as client:
        environment = {
            "SENTRY_URL": f"http://127.0.0.1:{client.port}",
            "SENTRY_AUTH_TOKEN": token,
            "SENTRY_ORG": "org",
            "SENTRY_PROJECT": "app",
            "HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
        }
        client.post("/v1/reports", crash(program, "a"), token=reading)
        command = [SENTRY_CLI, "debug-files", "upload", "--wait", "--require-all"]
        command += ["--id", str(program.uuid), str(program.path)]
        words = []
        for _ in range(2):
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0 or "Nothing to upload" in done.stdout, done.stderr
            words.append(done.stdout)
        assert f"OK {program.uuid}" in words[0]
        assert "Nothing to upload" in words[1]
        assert wait_for_names(client, token=reading) == [{"function": "stop"}]
