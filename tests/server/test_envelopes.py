"""Envelopes of Sentry's clients: events and attachments are stored, the rest is left out."""

from __future__ import annotations

import gzip
import json

import pytest

from machtrace.server.envelopes import envelope_key, read_envelope
from machtrace.server.limits import RefusedError
from machtrace.server.tokens import Scope, Tokens
from tests.server.serving import running
from tests.support.reports.samples import CRASH
from tests.support.reports.sentry import (
    EVENT_ID,
    SENTRY_CHUNK,
    SENTRY_CRASH,
    SENTRY_EXCEPTION,
    SENTRY_HANG,
    SENTRY_NATIVE,
    SENTRY_PROFILE,
    SENTRY_PYTHON,
)


def envelope(*items: tuple[dict[str, object], bytes], event_id: str = EVENT_ID) -> bytes:
    lines = [json.dumps({"event_id": event_id, "dsn": "https://key@localhost/1"}).encode()]
    for head, payload in items:
        lines += [json.dumps(head).encode(), payload]
    return b"\n".join(lines) + b"\n"


ITEMS = (
    ({"type": "session"}, b"{}"),
    ({"type": "event", "length": len(SENTRY_CRASH)}, SENTRY_CRASH),
    ({"type": "attachment", "length": len(CRASH), "filename": "a.crash"}, CRASH),
    ({"type": "profile"}, SENTRY_PROFILE),
    ({"type": "client_report", "length": 2}, b"{}"),
    ({"type": "attachment", "length": 4, "attachment_type": "event.minidump"}, b"MDMP"),
    ({"type": "attachment", "length": 1, "content_type": "image/png"}, b"P"),
)


def test_events_profiles_and_attachments_are_stored():
    made = read_envelope(envelope(*ITEMS), "1", 10)
    assert made.id == EVENT_ID
    assert [body.data for body in made.bodies] == [SENTRY_CRASH, CRASH, SENTRY_PROFILE]
    assert made.bodies[0].name == f"sentry/1/{EVENT_ID}/event.json"
    assert made.ignored == ("session", "client_report", "event.minidump", "attachment")


def test_an_envelope_over_http(client):
    answer = client.post(
        "/api/1/envelope/", gzip.compress(envelope(*ITEMS)), Content_Encoding="gzip"
    )
    assert (answer.status, answer.json) == (200, {"id": EVENT_ID})
    client.state("00000001-0")
    rows = client.rows("SELECT kind, format, app, build, incident FROM reports ORDER BY format")
    assert [(row["kind"], row["format"]) for row in rows] == [
        ("crash", "crash"),
        ("crash", "sentry"),
        ("profile", "sentry"),
    ]
    assert (rows[1]["app"], rows[1]["build"], rows[1]["incident"]) == (
        "org.example.app",
        "42",
        EVENT_ID,
    )


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (SENTRY_CRASH, "crash"),
        (SENTRY_EXCEPTION, "crash"),
        (SENTRY_NATIVE, "crash"),
        (SENTRY_PYTHON, "crash"),
        (SENTRY_HANG, "hang"),
        (SENTRY_CHUNK, "profile"),
    ],
)
def test_kinds_of_events(client, data, kind):
    item = {"type": "profile_chunk" if data is SENTRY_CHUNK else "event"}
    client.post("/api/1/envelope/", envelope((item, data)))
    client.state("00000001-0")
    (row,) = client.rows("SELECT kind, device FROM reports")
    assert row["kind"] == kind
    assert "someone" not in row["device"]


def test_an_identifier_that_is_no_text(client):
    answer = client.post("/api/1/store/", json.dumps({"event_id": "\ud800", "message": "a"}))
    assert client.state(answer.json["id"])["state"] == "parsed"


def test_an_event_that_is_sent_alone(client):
    answer = client.post("/api/1/store/", SENTRY_CRASH)
    assert client.state(answer.json["id"])["state"] == "parsed"
    assert client.post("/api/1/store/", b"").status == 400


def test_a_client_that_is_to_wait(folder):
    with running(folder, memory_bytes=10) as client:
        answer = client.post("/api/1/envelope/", envelope(*ITEMS))
        assert answer.status == 429
        seconds, *categories = answer.headers["X-Sentry-Rate-Limits"].split(":")
        assert int(seconds) >= int(answer.headers["Retry-After"])
        assert categories == ["", "organization"]


def test_an_envelope_without_anything_to_store(client):
    answer = client.post("/api/1/envelope/", envelope(({"type": "session"}, b"{}")))
    assert answer.status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}\nnothing",
        b'{}\n{"type":"event","length":100}\nshort',
        b'{}\n{"type":"event","length":-1}\n',
        b'{}\n{"type":"event","length":true}\nx',
        b'{}\n{"type":"event","length":"1"}\nx',
        b"[" * 100_000,
    ],
)
def test_malformed_envelopes(data):
    with pytest.raises(RefusedError) as refused:
        read_envelope(data, "1", 10)
    assert refused.value.status == 400


def test_too_many_items():
    with pytest.raises(RefusedError) as refused:
        read_envelope(envelope(*ITEMS * 3), "1", 10)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "header",
    [
        "Sentry sentry_version=7, sentry_client=a/1, sentry_key=mt_x",
        "Sentry sentry_key=mt_x,sentry_version=7",
        "sentry_key=mt_x",
    ],
)
def test_keys(header):
    assert envelope_key(header) == "mt_x"
    assert envelope_key(header.replace("sentry_key", "other_key")) == ""


def test_the_key_of_a_client_is_its_token(folder):
    token, other = Tokens(folder).create(Scope.INGEST), Tokens(folder).create(Scope.READ)
    with running(folder) as client:
        body = envelope()
        address = "/api/1/envelope/"
        assert client.post(address, body).status == 401
        assert client.post(f"{address}?sentry_key={token}", body).status == 200
        assert client.post(f"{address}?sentry_key={other}", body).status == 403
        header = f"Sentry sentry_version=7, sentry_key={token}"
        assert client.post(address, body, X_Sentry_Auth=header).status == 200
