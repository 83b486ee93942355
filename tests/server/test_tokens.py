"""Only tokens of the right scope get in, and the folder does not have them."""

from __future__ import annotations

import json

import pytest

from machtrace.errors import FormatError
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


def test_a_damaged_list_of_tokens_opens_nothing(folder):
    Tokens(folder).create(Scope.READ)
    with running(folder) as client:
        (folder / "tokens").write_text("{}\n")
        assert client.get("/v1/issues").status == 500
    with pytest.raises(FormatError):
        Tokens(folder)


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
