"""Policy, style sheet and landmarks of all pages."""

from __future__ import annotations

import re

import pytest

HTML = {"Accept": "text/html"}


def test_pages_load_their_own_files_alone(client):
    answer = client.get("/sign-in", **HTML)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    # A browser would send "Origin: null" with forms of a page without referrers.
    assert answer.headers["Referrer-Policy"] == "same-origin"
    text = answer.data.decode()
    assert "<style" not in text
    assert " style=" not in text
    addresses = re.findall(r'<(?:link|script)[^>]+(?:href|src)="([^"]+)"', text)
    assert addresses
    for address in addresses:
        file = client.get(address)
        assert (file.status, "immutable" in file.headers["Cache-Control"]) == (200, True)


def test_landmarks(client):
    text = client.get("/sign-in").data.decode()
    assert '<html lang="en">' in text
    assert text.count("<h1>") == text.count("<main ") == text.count("<nav ") == 1
    assert text.index('href="#main"') < text.index("<nav ")


def test_an_address_that_does_not_exist(client):
    answer = client.get("/<script>", **HTML)
    assert answer.status == 404
    assert b"<script>" not in answer.data
    assert answer.headers["Content-Type"].startswith("text/html")
    assert client.get("/nothing").json == {"error": "Not Found"}


@pytest.mark.parametrize(
    "name", ["page.py", "frame.py", "..%2fpage.css", "x.js", "..%5cx.js", ".js"]
)
def test_other_files_are_not_served(client, name):
    assert client.get(f"/static/{name}").status == 404
