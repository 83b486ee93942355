"""A process of readers that crashes or hangs costs the one record that caused it."""

from __future__ import annotations

import os
import signal
import time

import pytest

from machtrace.server import reader_process
from machtrace.server.reader_process import ReaderProcess
from machtrace.warehouse.ingest import read_batch
from machtrace.warehouse.warehouse import Warehouse
from tests.server.serving import running
from tests.warehouse.receiver import report

CRASHES, HANGS = b"crashes", b"hangs"


def read(batch):
    """Read as the real one, but for what crashes or hangs."""
    for each in batch:
        if each.record.body.endswith(CRASHES):
            os.kill(os.getpid(), signal.SIGKILL)
        if each.record.body.endswith(HANGS):
            time.sleep(3600)
    return read_batch(batch)


def serve(pipe):
    """Serve with the function above, in the new process."""
    reader_process.read_batch = read
    original(pipe)


original = reader_process._serve  # noqa: SLF001 - it is replaced


@pytest.mark.peer
@pytest.mark.parametrize(
    ("poison", "seconds", "reason"),
    [(CRASHES, 60, "its reader crashed"), (HANGS, 5, "its reader takes longer than 5 seconds")],
)
def test_poison_among_others(folder, monkeypatch, poison, seconds, reason):
    monkeypatch.setattr(reader_process, "_serve", serve)
    reader = ReaderProcess(seconds, lambda: False)
    with Warehouse(folder) as warehouse:
        bodies = [("a", report("a")), ("poison", poison), ("b", report("b"))]
        _, bad, _ = warehouse.receive(bodies)
        try:
            added = warehouse.flush(run=reader.run)
        finally:
            reader.close()
        assert (added.reports, added.quarantined) == (2, 1)
        assert warehouse.record_state(bad) == ("quarantined", (reason,))
        assert reader.restarts == 2
        assert not list(warehouse.check())


def test_nothing_is_read_when_it_is_over(folder):
    reader = ReaderProcess(60, lambda: True)
    with Warehouse(folder) as warehouse:
        warehouse.receive([("a", report("a"))])
        assert warehouse.flush(run=reader.run).reports == 0
        assert warehouse.flush().reports == 1


def test_a_process_that_ends_between_reports_is_replaced(folder):
    with running(folder) as client:
        for name in ("a", "b"):
            (record,) = client.post("/v1/reports", report(name)).json["ids"]
            assert client.state(record)["state"] == "parsed"
            process = client.service.writer._reader._worker.process  # noqa: SLF001
            process.kill()
            process.join()
