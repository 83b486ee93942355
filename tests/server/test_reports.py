"""Reports arrive over HTTP, once, whatever encodes them, and bad ones are in quarantine."""

from __future__ import annotations

import gzip
import json
import zlib
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from machtrace.warehouse.warehouse import Warehouse
from tests.support.reports.samples import CRASH, IPS, REPORT_SAMPLES
from tests.warehouse.receiver import report


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODED = {
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "raw deflate": raw_deflate,
    "zstd": zstd,
}


def incidents(client) -> list[str]:
    return [row["incident"] for row in client.rows("SELECT incident FROM reports ORDER BY ALL")]


def test_an_acknowledged_report_is_in_the_log_and_then_in_a_segment(client, folder):
    answer = client.post("/v1/reports?app=org.example.other&build=7", report("a"))
    assert answer.status == 202
    (record,) = answer.json["ids"]
    logged = b"".join(path.read_bytes() for path in (folder / "log").iterdir())
    assert report("a") in logged
    assert client.state(record) == {"id": record, "state": "parsed"}
    rows = client.rows("SELECT incident, app, build FROM reports")
    # The report states its app, and no build.
    assert rows == [{"incident": "a", "app": "org.example.killed", "build": "7"}]


@pytest.mark.parametrize("encoding", ENCODED)
def test_encodings(client, encoding):
    body = ENCODED[encoding](report("a"))
    answer = client.post("/v1/reports", body, Content_Encoding=encoding.rpartition(" ")[2])
    assert answer.status == 202, answer.data
    client.state(answer.json["ids"][0])
    assert incidents(client) == ["a"]


def test_every_kind_of_report(client):
    for data in REPORT_SAMPLES.values():
        answer = client.post("/v1/reports", data)
        assert answer.status == 202
        assert client.state(answer.json["ids"][0])["state"] == "parsed"


def test_chunked_bodies(client):
    """Their size is unknown when they begin."""
    data = report("a")
    answer = client.post("/v1/reports", iter([data[:7], data[7:100], data[100:]]))
    assert answer.status == 202
    client.state(answer.json["ids"][0])
    assert incidents(client) == ["a"]


def test_a_report_that_is_sent_again_is_there_once(client):
    for _ in range(2):
        answer = client.post("/v1/reports", report("a"))
        assert client.state(answer.json["ids"][0])["state"] == "parsed"
    assert incidents(client) == ["a"]


def test_concurrent_requests_get_their_own_identifiers(client):
    names = [f"c{number}" for number in range(64)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda name: client.post("/v1/reports", report(name)), names))
    assert {answer.status for answer in answers} == {202}
    records = [record for answer in answers for record in answer.json["ids"]]
    assert len(set(records)) == len(names)
    for record in records:
        client.state(record)
    assert incidents(client) == sorted(names)
    with Warehouse(client.service.folder) as warehouse:
        for record, name in zip(records, names, strict=True):
            offset = int(record.partition("-")[2])
            rows = warehouse.query("SELECT incident, raw_offset FROM reports").to_pylist()
            assert {"incident": name, "raw_offset": offset} in rows


def test_what_cannot_be_read_is_in_quarantine_with_the_reason(client):
    answer = client.post("/v1/reports", b"\xff\xfe nothing that is known")
    assert answer.status == 202
    state = client.state(answer.json["ids"][0])
    assert state["state"] == "quarantined"
    assert "unknown kind of report" in state["reasons"][0]
    answer = client.post("/v1/reports", CRASH)
    assert client.state(answer.json["ids"][0])["state"] == "parsed"


def test_a_reader_that_fails_does_not_stop_the_others(monkeypatch, folder):
    def fails(_):
        raise KeyError("surprise")

    with Warehouse(folder) as warehouse:
        (record,) = warehouse.receive([("a.ips", IPS)])
        with monkeypatch.context() as patched:
            patched.setattr("machtrace.warehouse.ingest.read_source", fails)
            assert warehouse.flush().quarantined == 1
        state = warehouse.record_state(record)
        assert state == ("quarantined", ("its reader failed: KeyError: 'surprise'",))
        warehouse.receive([("a.ips", report("a"))])
        assert warehouse.flush().reports == 1


@pytest.mark.parametrize("record", ["00000001-1", "00000009-0", "x", "..%2f..%2fetc-0", "1-0"])
def test_records_that_do_not_exist(client, record):
    client.post("/v1/reports", report("a"))
    assert client.get(f"/v1/reports/{record}").status == 404


def form(*parts: tuple[str, str, bytes]) -> bytes:
    lines = b"".join(
        b'--x7\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n'
        b"Content-Type: application/json\r\n\r\n%s\r\n" % (name.encode(), file.encode(), data)
        for name, file, data in parts
    )
    return lines + b"--x7--\r\n"


def test_the_sink_of_kscrash(client):
    """It sends one part, "reports", a list of reports."""
    reports = [json.loads(report(name)) for name in ("a", "b")]
    body = form(("reports", "reports.json", json.dumps(reports).encode()))
    kind = "multipart/form-data; boundary=x7"
    answer = client.post("/v1/reports", body, Content_Type=kind)
    assert answer.status == 202
    client.state(answer.json["ids"][0])
    assert incidents(client) == ["a", "b"]


@pytest.mark.parametrize(
    "body",
    [b"", b"--x7", b"--x7--", b"--x7\r\n", b"--x7\r\n\r\n", b"--x7\r\n\r\nabc\r\n--x7", b"nothing"],
)
def test_malformed_forms(client, body):
    answer = client.post("/v1/reports", body, Content_Type="multipart/form-data; boundary=x7")
    assert answer.status == 400


def test_names_of_files_are_labels(client, folder):
    body = form(("reports", "../../../evil.json", report("a")))
    kind = "multipart/form-data; boundary=x7"
    before = {path for path in folder.parent.rglob("*") if path.is_file()}
    answer = client.post("/v1/reports", body, Content_Type=kind)
    client.state(answer.json["ids"][0])
    after = {path for path in folder.parent.rglob("*") if path.is_file()} - before
    assert not [path for path in after if "evil" in path.name]


def test_what_a_server_left_unread_is_read_by_the_next_one(folder):
    from tests.server.serving import running

    with running(folder, linger=3600) as client:
        (record,) = client.post("/v1/reports", report("a")).json["ids"]
        assert client.get(f"/v1/reports/{record}").json["state"] == "stored"
    with running(folder) as client:
        assert client.state(record)["state"] == "parsed"
