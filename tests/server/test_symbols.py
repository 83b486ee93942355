"""Symbols that are sent name what is stored, and archives of attackers do nothing."""

from __future__ import annotations

import time
import zipfile
from io import BytesIO

import pytest

from machtrace.symbolstore.adding import InputFile, SymbolAdder
from machtrace.symbolstore.store import SymbolStore
from machtrace.warehouse.warehouse import Warehouse
from tests.server.serving import PATIENCE, running
from tests.warehouse.test_names import crash, program

__all__ = ["program"]


def archive(**members: bytes) -> bytes:
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(name, data)
    return stream.getvalue()


def wait_for_names(client, **options) -> list[dict[str, object]]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        rows = client.rows(
            "SELECT DISTINCT function FROM stack_tops WHERE function IS NOT NULL", **options
        )
        if rows:
            return rows
        time.sleep(0.05)
    raise AssertionError("nothing was named")


@pytest.mark.peer
@pytest.mark.parametrize("is_packed", [False, True])
def test_symbols_that_arrive_late(client, program, is_packed):
    record = client.post("/v1/reports", crash(program, "a")).json["ids"][0]
    client.state(record)
    (wanted,) = client.get("/v1/symbols/wanted").json["wanted"]
    assert wanted["uuid"] == program.uuid.hex
    data = program.path.read_bytes()
    answer = client.put("/v1/symbols?name=names", archive(names=data) if is_packed else data)
    assert answer.status == 200
    assert {row["id"] for row in answer.json["stored"]} == {program.uuid.hex}
    assert wait_for_names(client) == [{"function": "stop"}]
    assert client.get("/v1/symbols/wanted").json == {"wanted": []}


@pytest.mark.peer
def test_symbols_that_a_killed_server_did_not_use(folder, program):
    """They were stored, and it was killed before it named frames by them."""
    with Warehouse(folder) as warehouse:
        warehouse.receive([("a.ips", crash(program, "a"))])
        warehouse.flush()
    (folder / "symbols").mkdir()
    adder = SymbolAdder(SymbolStore(folder / "symbols"))
    assert list(adder.add(InputFile(program.path, program.path.stat().st_size, is_named=True)))
    with running(folder) as client:
        assert wait_for_names(client) == [{"function": "stop"}]


@pytest.mark.peer
def test_symbols_that_come_first(client, program):
    assert client.put("/v1/symbols", program.path.read_bytes()).status == 200
    client.post("/v1/reports", crash(program, "a"))
    assert wait_for_names(client) == [{"function": "stop"}]


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "..\\..\\evil", "%2e%2e%2fevil", ".upload-", "\x00evil"]
)
def test_paths_in_names_and_archives_lead_nowhere(client, folder, name):
    before = set(folder.parent.rglob("*"))
    members = {name.replace("\x00", ""): b"\xcf\xfa\xed\xfe" + bytes(64)}
    from urllib.parse import quote

    answer = client.put(f"/v1/symbols?name={quote(name)}", archive(**members))
    assert answer.status == 200
    assert answer.json["stored"] == []
    assert str(folder) not in answer.data.decode()
    after = set(folder.parent.rglob("*")) - before
    assert not [path for path in after if "evil" in path.name]
    assert not list((folder / "symbols").iterdir())


def test_an_archive_that_is_a_bomb(folder):
    member = b"\xcf\xfa\xed\xfe" + bytes(1 << 20)
    with running(folder, unpacked_symbols_bytes=1 << 20) as client:
        answer = client.put("/v1/symbols", archive(a=member, b=member))
        assert answer.json["stored"] == []
        assert [row["reason"] for row in answer.json["skipped"]] == ["beyond a limit"] * 2


def test_a_file_that_is_too_large(folder):
    with running(folder, symbols_bytes=1 << 16) as client:
        assert client.put("/v1/symbols", iter([bytes(1 << 15)] * 3)).status == 413
        assert not list((folder / "symbols").iterdir())


def test_uploads_that_were_cut_are_removed(folder):
    with running(folder):
        pass
    (folder / "symbols" / ".upload-x").mkdir()
    (folder / "symbols" / ".upload-x" / "part").write_bytes(b"x")
    with running(folder) as client:
        assert client.get("/healthz").status == 200
        assert not list((folder / "symbols").iterdir())
