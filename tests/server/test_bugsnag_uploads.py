"""Forms with a dSYM, as bugsnag-cli sends them: the file first, then the key."""

from __future__ import annotations

import pytest

from machtrace.server.tokens import Scope, Tokens
from tests.server.serving import running
from tests.support.writers.synthetic_image import synthetic_image

IMAGE = synthetic_image("/usr/lib/libshared.dylib").data


def form(*, key: str = "", data: bytes | None = None, name: str = "App") -> bytes:
    """Return a form as Go's mime/multipart writes it."""
    parts = []
    if data is not None:
        parts.append(
            f'--b\r\nContent-Disposition: form-data; name="dsym"; filename="{name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n".encode()
            + data
            + b"\r\n"
        )
    for field, value in {"projectRoot": "/x", "apiKey": key}.items():
        head = f'--b\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        parts.append(head.encode())
    return b"".join(parts) + b"--b--\r\n"


def post(client, body: bytes, path: str = "/dsym"):
    return client.post(path, body, Content_Type="multipart/form-data; boundary=b")


def stored(folder) -> int:
    return len(list((folder / "symbols").glob("??/*")))


@pytest.mark.parametrize("name", ["App", "../../evil", ""])
def test_a_dsym_without_tokens(client, folder, name):
    answer = post(client, form(data=IMAGE, name=name))
    assert (answer.status, answer.json) == (200, {"status": "ok", "skipped": []})
    assert stored(folder) == 1
    assert not list(folder.parent.rglob("*evil*"))


@pytest.mark.parametrize("is_in_address", [False, True])
def test_the_key_is_the_token(folder, is_in_address):
    own, other = Tokens(folder).create(Scope.SYMBOLS), Tokens(folder).create(Scope.READ)

    def answered(client, key: str) -> int:
        path = f"/{key}/dsym" if is_in_address else "/dsym"
        return post(client, form(key="x" if is_in_address else key, data=IMAGE), path).status

    with running(folder) as client:
        assert answered(client, "wrong") == 401
        assert answered(client, other) == 403
        assert stored(folder) == 0
        assert not list((folder / "symbols").iterdir())
        assert answered(client, own) == 200
        assert stored(folder) == 1


def test_the_key_is_the_projects_though_the_header_is_another(folder):
    token = Tokens(folder).create(Scope.READ)
    with running(folder) as client:
        headers = {"Content_Type": "multipart/form-data; boundary=b"}
        body = form(key=Tokens(folder).create(Scope.SYMBOLS), data=IMAGE)
        assert client.post("/dsym", body, token=token, **headers).status == 403


def test_what_is_no_image_is_skipped_with_the_reason(client, folder):
    answer = post(client, form(data=b"nothing"))
    assert answer.status == 200
    assert answer.json["skipped"][0]["reason"] == "no image"
    assert stored(folder) == 0


@pytest.mark.parametrize("body", [b"", b"--b--\r\n", b"nothing", form(), form(data=b"")])
def test_forms_without_a_file(client, body):
    assert post(client, body).status == 400


def test_a_form_that_is_too_large(folder):
    with running(folder, symbols_bytes=1 << 10) as client:
        assert post(client, form(data=bytes(1 << 11))).status == 413
        assert not list((folder / "symbols").iterdir())
