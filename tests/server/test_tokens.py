"""Only tokens of the right scope get in, and the folder does not have them."""

from __future__ import annotations

import json
import os

import pytest

from machtrace.errors import FileAccessError, FormatError
from machtrace.server.endpoints import ENDPOINTS
from machtrace.server.tokens import Scope, Tokens
from tests.server.serving import running
from tests.support.command_line import run_command as machtrace
from tests.warehouse.receiver import report

GUARDED = [each for each in ENDPOINTS if each.scopes is not None and "{token}" not in each.path]
NAMES = [f"{each.method} {each.path}" for each in GUARDED]


def path(endpoint) -> str:
    return endpoint.path.replace("{record}", "00000001-0").replace("{project}", "1")


@pytest.fixture
def tokens(folder):
    return {scope: Tokens(folder).create(scope) for scope in Scope}


@pytest.fixture
def guarded(folder, tokens):  # noqa: ARG001 - they exist before it starts
    with running(folder, is_local=False) as client:
        yield client


@pytest.mark.parametrize("endpoint", GUARDED, ids=NAMES)
def test_each_endpoint_is_for_its_scopes_alone(guarded, tokens, endpoint):
    def status(token: str) -> int:
        return guarded.request(endpoint.method, path(endpoint), token=token).status

    assert status("") == 401
    assert status("mt_admin_" + 64 * "0") == 401
    assert status(tokens[Scope.ADMIN][:-1]) == 401
    for scope, token in tokens.items():
        is_allowed = scope is Scope.ADMIN or scope in endpoint.scopes
        assert (status(token) == 403) is not is_allowed, scope
        assert status(token) != 401


def test_the_folder_has_no_token(folder, tokens):
    every = b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())
    for token in tokens.values():
        assert token.encode() not in every
        assert token.rpartition("_")[2].encode() not in every
    assert (folder / "tokens").stat().st_mode & 0o077 == 0


def test_a_token_that_is_deleted_is_invalid_at_once(guarded, folder, tokens):
    token = tokens[Scope.READ]
    assert guarded.get("/v1/issues", token=token).status == 200
    lines = (folder / "tokens").read_text().splitlines(keepends=True)
    left = [line for line in lines if json.loads(line)["scope"] != "read"]
    (folder / "tokens").write_text("".join(left))
    assert guarded.get("/v1/issues", token=token).status == 401


def test_a_server_for_others_is_closed_without_tokens(folder):
    with running(folder, is_local=False) as client:
        assert client.get("/v1/issues").status == 401
        assert client.get("/healthz").status == 200


def remove(file) -> None:
    file.unlink()


def replace_by_nothing(file) -> None:
    other = file.with_suffix(".new")
    other.touch()
    other.replace(file)


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b""), remove, replace_by_nothing])
def test_without_its_tokens_a_server_lets_nobody_in(folder, damage, capsys):
    token = Tokens(folder).create(Scope.READ)
    with running(folder) as client:
        assert client.get("/v1/issues", token=token).status == 200
        damage(folder / "tokens")
        for path in ("/v1/issues", "/v1/issues", "/"):
            assert client.get(path, Accept="application/json").status in (401, 303)
        assert client.get("/v1/issues", token=token).status == 401
        assert client.post("/v1/reports", report("a")).status == 401
        health = client.get("/healthz").json
        assert "nobody gets in" in health["problems"][0]
    assert capsys.readouterr().err.count("nobody gets in") == 1
    # A revoked token stays revoked, and the server closed, when it starts again.
    with running(folder) as client:
        assert client.get("/v1/issues").status == 401
        assert client.get("/v1/issues", token=token).status == 401
        token = Tokens(folder).create(Scope.READ)
        assert client.get("/v1/issues", token=token).status == 200
        assert "problems" not in client.get("/healthz").json


DIGEST = b'"sha256": "' + 64 * b"0" + b'"'
DAMAGES = {
    "no token": b"{}\n",
    "cut": b'{"scope": "read", "sha',
    "not text": b"\xff\xfe\n",
    "a list": b"[]\n",
    "an unknown scope": b'{"scope": "all", ' + DIGEST + b"}\n",
    "a hash that is none": '{"scope": "read", "sha256": "é"}\n'.encode(),
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_list_leaves_the_last_good_one(folder, damage, capsys):
    revoked, token = (Tokens(folder).create(Scope.READ) for _ in range(2))
    good = (folder / "tokens").read_bytes().splitlines(keepends=True)[1]
    with running(folder) as client:
        (folder / "tokens").write_bytes(good)
        assert client.get("/v1/issues", token=revoked).status == 401
        (folder / "tokens").write_bytes(good + damage)
        for _ in range(2):
            assert client.get("/v1/issues").status == 401
            assert client.get("/v1/issues", token=revoked).status == 401
            assert client.get("/v1/issues", token=token).status == 200
        health = client.get("/healthz")
        assert health.status == 200
        assert "line 2 is damaged" in health.json["problems"][0]
        assert "1 earlier token" in health.json["problems"][0]
        assert str(folder) not in health.data.decode()
        (folder / "tokens").write_bytes(good)
        assert client.get("/v1/issues", token=token).status == 200
        assert "problems" not in client.get("/healthz").json
    assert capsys.readouterr().err.count("cannot be read") == 1


def test_a_damaged_list_is_read_once(folder, monkeypatch):
    token = Tokens(folder).create(Scope.READ)
    path = folder / "tokens"
    path.write_bytes(path.read_bytes() * 2)
    tokens = Tokens(folder)
    path.write_bytes(path.read_bytes() + b"{}\n")
    reads, read = [], type(path).read_bytes

    def counted(file) -> bytes:
        reads.append(file)
        return read(file)

    monkeypatch.setattr("pathlib.Path.read_bytes", counted)
    for _ in range(3):
        assert tokens.scope(token) is Scope.READ
        assert "line 3 is damaged" in tokens.problem
    assert reads == [path]


def link_of_tokens(folder) -> None:
    (folder / "tokens").symlink_to(folder / "secrets" / "tokens")


def link_of_the_mark(folder) -> None:
    (folder / "tokens.required").symlink_to(folder / "nowhere" / "tokens.required")


@pytest.mark.parametrize("make", [link_of_tokens, link_of_the_mark])
def test_a_link_to_nothing_opens_nothing(folder, make):
    make(folder)
    with running(folder) as client:
        assert client.get("/v1/issues").status == 401
        assert "nobody gets in" in client.get("/healthz").json["problems"][0]
    (folder / "tokens").unlink(missing_ok=True)
    assert not Tokens(folder).is_open  # it is known that there was a link


@pytest.mark.parametrize("make", [link_of_tokens, lambda folder: (folder / "tokens").mkdir()])
def test_what_takes_the_place_of_tokens_closes_an_open_server(client, folder, make):
    assert client.get("/v1/issues").status == 200
    make(folder)
    assert client.get("/v1/issues").status == 401
    assert (folder / "tokens.required").is_file()


def test_a_list_behind_a_link_is_read_when_it_is_there(folder):
    token = Tokens(folder).create(Scope.READ)
    data = (folder / "tokens").read_bytes()
    (folder / "tokens").unlink()
    link_of_tokens(folder)
    with running(folder) as client:
        assert client.get("/v1/issues", token=token).status == 401
        (folder / "secrets").mkdir()
        (folder / "secrets" / "tokens").write_bytes(data)
        assert client.get("/v1/issues", token=token).status == 200
        assert "problems" not in client.get("/healthz").json


def test_a_running_server_writes_again_that_it_had_tokens(folder, monkeypatch):
    token = Tokens(folder).create(Scope.READ)
    mark = folder / "tokens.required"
    with running(folder) as client:
        mark.unlink()
        assert client.get("/v1/issues", token=token).status == 200
        assert mark.is_file()

        def refuse(*_: object) -> int:
            raise FileAccessError(str(mark), "No space left on device")

        mark.unlink()
        with monkeypatch.context() as patch:
            patch.setattr("machtrace.server.tokens.replace_file", refuse)
            (folder / "tokens").write_bytes(b"")  # is read all the same
            assert client.get("/v1/issues", token=token).status == 401
        assert client.get("/v1/issues").status == 401
        assert mark.is_file()


@pytest.mark.parametrize("kind", ["directory", "pipe", "unreadable"])
def test_a_list_that_is_no_file_opens_nothing(folder, kind, monkeypatch):
    token = Tokens(folder).create(Scope.READ)
    path = folder / "tokens"
    data = path.read_bytes()
    with running(folder) as client:
        assert client.get("/v1/issues", token=token).status == 200
        path.unlink()
        if kind == "directory":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:

            def refuse(*_: object) -> bytes:
                raise PermissionError(13, "Permission denied")

            path.write_bytes(data)
            monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
        assert client.get("/v1/issues").status == 401
        assert client.get("/v1/issues", token=token).status == 200
        assert "1 earlier token" in client.get("/healthz").json["problems"][0]


def test_a_list_that_is_damaged_at_the_start_is_refused(folder):
    (folder / "tokens").write_text("{}\n")
    with pytest.raises(FormatError, match="line 1"):
        Tokens(folder)
    (folder / "tokens").unlink()
    assert not Tokens(folder).is_open


def test_a_token_is_added_behind_a_line_without_an_end(folder):
    first = Tokens(folder).create(Scope.READ)
    path = folder / "tokens"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    tokens = Tokens(folder)
    second = tokens.create(Scope.ADMIN)
    assert [tokens.scope(each) for each in (first, second)] == [Scope.READ, Scope.ADMIN]


def test_a_server_that_never_had_tokens_becomes_closed_by_the_first(client, folder):
    assert client.get("/v1/issues").status == 200
    token = Tokens(folder).create(Scope.READ)
    assert client.get("/v1/issues").status == 401
    assert client.get("/v1/issues", token=token).status == 200
    (folder / "tokens").unlink()
    (folder / "tokens.required").unlink()
    assert Tokens(folder).is_open


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.0.0.1", "localhost.evil"])
def test_a_name_that_resolves_to_this_machine_does_not_get_in(client, host):
    """A page of another site could make its own name one of this machine."""
    assert client.get("/v1/issues", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "[::1]:80"])
def test_this_machine_gets_in(client, host):
    assert client.get("/v1/issues", Host=host).status == 200


def test_pages_of_other_sites_do_not_get_in(client):
    assert client.post("/v1/reports", report("a"), Origin="https://evil.example").status == 403
    assert client.post("/v1/reports", report("a"), Origin="http://localhost:80").status == 202


def test_a_token_in_an_address_is_for_sending_alone(guarded, tokens):
    token = tokens[Scope.ADMIN]
    assert guarded.post(f"/v1/reports?token={token}", report("a")).status == 202
    assert guarded.get(f"/v1/issues?token={token}").status == 401


def test_administration_is_logged(folder):
    made = machtrace("serve", folder, "--new-token", "admin")
    assert made.returncode == 0
    token = made.stdout.strip()
    with running(folder) as client:
        client.put("/v1/symbols?name=a.zip", b"nothing", token=token)
        answer = client.get("/v1/administration", token=token)
    rows = [json.loads(line) for line in answer.data.splitlines()]
    assert [row["action"] for row in rows] == ["token", "symbols"]
    assert rows[0]["token"] == rows[1]["token"]
    assert token not in answer.data.decode()


def test_the_command_refuses_to_be_open_to_others(folder):
    result = machtrace("serve", folder, "--host", "0.0.0.0")  # noqa: S104 - it is refused
    assert result.returncode == 1
    assert "--new-token" in result.stderr


def test_the_command_needs_a_warehouse(tmp_path):
    result = machtrace("serve", tmp_path)
    assert result.returncode == 1
    assert "warehouse init" in result.stderr
