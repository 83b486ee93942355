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

EVENT_ID = "9ec79c33ec9942ab8353589fcb2e04dc"


def envelope(*items: tuple[dict[str, object], bytes], event_id: str = EVENT_ID) -> bytes:
    lines = [json.dumps({"event_id": event_id, "dsn": "https://key@localhost/1"}).encode()]
    for head, payload in items:
        lines += [json.dumps(head).encode(), payload]
    return b"\n".join(lines) + b"\n"


EVENT = json.dumps(
    {
        "event_id": EVENT_ID,
        "platform": "native",
        "contexts": {"app": {"app_identifier": "org.example.app", "app_build": "42"}},
        "debug_meta": {"images": [{"type": "macho", "image_addr": "0x1000"}]},
    }
).encode()
ITEMS = (
    ({"type": "session"}, b"{}"),
    ({"type": "event", "length": len(EVENT)}, EVENT),
    ({"type": "attachment", "length": len(CRASH), "filename": "a.crash"}, CRASH),
    ({"type": "client_report", "length": 2}, b"{}"),
)


def test_events_and_attachments_are_stored():
    made = read_envelope(envelope(*ITEMS), "1", 10)
    assert made.id == EVENT_ID
    assert [body.data for body in made.bodies] == [EVENT, CRASH]
    assert made.bodies[0][2:] == ("org.example.app", "42")
    assert made.ignored == ("session", "client_report")


def test_an_envelope_over_http(client):
    answer = client.post(
        "/api/1/envelope/", gzip.compress(envelope(*ITEMS)), Content_Encoding="gzip"
    )
    assert (answer.status, answer.json) == (200, {"id": EVENT_ID})
    # The event has no reader yet: its bytes and the reason are there.
    client.state("00000001-0")
    assert client.rows("SELECT count(*) AS n FROM reports")[0]["n"] == 1
    from machtrace.warehouse.warehouse import Warehouse

    with Warehouse(client.service.folder) as warehouse:
        (row,) = warehouse.quarantined
        assert row.name == f"sentry/1/{EVENT_ID}/event.json"


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
