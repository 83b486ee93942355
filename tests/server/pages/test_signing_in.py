"""Signing in: a token becomes a cookie, which pages of other sites cannot use."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from machtrace.server.tokens import Scope, Tokens
from tests.server.serving import running

HTML = {"Accept": "text/html"}


@pytest.fixture
def tokens(folder):
    return {scope: Tokens(folder).create(scope) for scope in Scope}


@pytest.fixture
def guarded(folder, tokens):  # noqa: ARG001 - they exist before it starts
    with running(folder, is_local=False) as client:
        yield client


def signed_in(client, token, after="/", **headers):
    body = urlencode({"token": token, "next": after})
    return client.post("/sign-in", body, **headers)


def cookie(answer):
    return answer.headers["Set-Cookie"].partition(";")[0]


def test_a_page_without_a_token_leads_to_the_sign_in(guarded):
    answer = guarded.get("/sql?sql=SELECT%201", **HTML)
    assert answer.status == 303
    assert answer.headers["Location"] == "/sign-in?next=%2Fsql%3Fsql%3DSELECT%25201"
    assert guarded.get("/sign-in", **HTML).status == 200


def test_only_a_token_shows_what_is_served(folder, guarded, tokens):
    name = f"<bdi>{folder.name}</bdi>".encode()
    assert name not in guarded.get("/sign-in", **HTML).data
    assert name not in guarded.get("/nothing", **HTML).data
    assert name in guarded.get("/sql", token=tokens[Scope.READ], **HTML).data


def test_a_link_on_another_site_is_followed_with_the_cookie(guarded):
    """A browser leaves a strict cookie out when another site's page leads here: once."""
    answer = guarded.get("/sql", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document", **HTML)
    assert answer.status == 200
    assert b'http-equiv="refresh" content="0;url=/sql"' in answer.data


def test_a_token_becomes_a_cookie_that_no_script_reads(guarded, tokens):
    answer = signed_in(guarded, tokens[Scope.READ], after="/sql")
    assert (answer.status, answer.headers["Location"]) == (303, "/sql")
    attributes = {part.strip().lower() for part in answer.headers["Set-Cookie"].split(";")[1:]}
    assert {"httponly", "path=/", "samesite=strict"} <= attributes
    assert "secure" not in attributes
    assert guarded.get("/v1/issues", Cookie=cookie(answer)).status == 200


def test_over_tls_the_cookie_is_for_tls_alone(guarded, tokens):
    host = f"127.0.0.1:{guarded.port}"
    answer = signed_in(guarded, tokens[Scope.READ], Origin=f"https://{host}")
    assert answer.headers["Set-Cookie"].startswith("__Host-")
    assert "secure" in answer.headers["Set-Cookie"].lower()
    assert guarded.get("/v1/issues", Cookie=cookie(answer)).status == 200
    # A client's word about the proxy changes nothing.
    forwarded = signed_in(guarded, tokens[Scope.READ], X_Forwarded_Proto="https")
    assert "secure" not in forwarded.headers["Set-Cookie"].lower()


@pytest.mark.parametrize(
    "after", ["//evil.example", "/\\evil.example", "https://evil.example", "/\r\nX: y", ""]
)
def test_a_sign_in_leads_to_this_server_alone(guarded, tokens, after):
    answer = signed_in(guarded, tokens[Scope.READ], after=after)
    assert (answer.status, answer.headers["Location"]) == (303, "/")


@pytest.mark.parametrize("token", ["", "x", "mt_read_" + 64 * "0"])
def test_an_invalid_token_gets_a_page_in_words(guarded, token):
    answer = signed_in(guarded, token)
    assert answer.status == 401
    assert b"This token is not valid." in answer.data
    assert "Set-Cookie" not in answer.headers


def test_a_token_of_another_scope_gets_a_page_in_words(guarded, tokens):
    answer = signed_in(guarded, tokens[Scope.INGEST])
    assert answer.status == 403
    assert b"can send reports only" in answer.data
    symbols = cookie(signed_in(guarded, tokens[Scope.SYMBOLS]))
    refused = guarded.get("/sql", Cookie=symbols, **HTML)
    assert refused.status == 403
    assert refused.headers["Content-Type"].startswith("text/html")
    assert "The token&#x27;s scope is symbols, not admin or read." in refused.data.decode()
    assert b"Sign in with another token" in refused.data
    assert b"Sign out" in refused.data


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[bad"},
        {},
    ],
)
def test_a_cookie_sends_nothing_for_pages_of_other_sites(guarded, tokens, headers):
    admin = cookie(signed_in(guarded, tokens[Scope.ADMIN]))
    assert guarded.post("/v1/query", "SELECT 1", Cookie=admin, **headers).status == 403


def test_a_cookie_sends_for_pages_of_this_server(guarded, tokens):
    admin = cookie(signed_in(guarded, tokens[Scope.ADMIN]))
    for headers in (
        {"Sec_Fetch_Site": "same-origin"},
        {"Origin": f"http://127.0.0.1:{guarded.port}"},
    ):
        assert guarded.post("/v1/query", "SELECT 1", Cookie=admin, **headers).status == 200


def test_another_site_signs_nobody_in_or_out(guarded, tokens):
    forged = signed_in(guarded, tokens[Scope.READ], Sec_Fetch_Site="cross-site")
    assert forged.status == 403
    assert guarded.post("/sign-out", b"", Origin="https://evil.example").status == 403


def test_signing_out_removes_the_cookie(guarded):
    answer = guarded.post("/sign-out", b"")
    assert answer.headers["Location"] == "/sign-in"
    removed = answer.headers.get_all("Set-Cookie")
    assert all("max-age=0" in each.lower() for each in removed)
    assert {each.partition("=")[0] for each in removed} == {"machtrace", "__Host-machtrace"}


def test_another_site_embeds_nothing_of_an_open_server(client):
    assert client.get("/v1/issues", Sec_Fetch_Site="cross-site").status == 403
    answer = client.get("/v1/issues", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")
    assert answer.status == 200


def test_a_damaged_list_of_tokens_leaves_pages_as_they_were(guarded, folder):
    (folder / "tokens").write_text("{}\n")
    assert [guarded.get(path, **HTML).status for path in ("/", "/sql")] == [303, 303]
    answer = guarded.get("/sign-in", **HTML)
    assert answer.status == 200
    assert b'type="password"' in answer.data
