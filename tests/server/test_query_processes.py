"""Queries and pages run in other processes, within limits; the server answers meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from threading import Thread
from urllib.parse import urlencode

import pytest

from machtrace.server.answering import TRUNCATED
from machtrace.server.limits import RefusedError
from machtrace.server.queries import QueryPool
from machtrace.server.query_process import QueryLimits, Task
from tests.server.serving import PATIENCE, running
from tests.support.reports.samples import IPS
from tests.warehouse.receiver import report

MIB = 1 << 20
ENDLESS = "(SELECT count(*) FROM range(3000000000000)) > 0"
HEAD = "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"


def fill(client):
    for body in (IPS, report("a"), report("b")):
        client.state(client.post("/v1/reports", body).json["ids"][0])


def until(is_true):
    end = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_full(client):
    return client.service.queries._slots.locked()  # noqa: SLF001 - nobody else knows


@contextmanager
def requested(client, paths):
    """Request all of them at the same time; yield the list of statuses that arrived."""
    statuses = []
    threads = [
        Thread(target=lambda path=path: statuses.append(client.get(path).status)) for path in paths
    ]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        for thread in threads:
            thread.join()


# --- memory ---


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 2000000000)",
        "SELECT length(repeat('x', 1000000000) || repeat('y', 1000000000))",
        "SELECT list_sum(range(500000000))",
        "SELECT list(range) FROM range(1000000000)",
        "SELECT string_agg(repeat('x', 1000)) FROM range(10000000)",
    ],
)
def test_a_query_that_takes_too_much_memory_is_ended(folder, sql):
    with running(folder, query_memory=128 * MIB, query_spill=0) as client:
        answer = client.post("/v1/query", sql)
        assert answer.status == 503
        assert "memory" in answer.json["error"]
        assert "select fewer rows" in answer.json["hint"]
        assert client.rows("SELECT 1 AS one") == [{"one": 1}]


def test_a_condition_that_takes_too_much_memory_is_ended(folder):
    with running(folder, query_memory=128 * MIB, query_spill=0) as client:
        fill(client)
        where = "length(repeat(substr(app || 'x', 1, 1), 2000000000)) > 0"
        assert client.get(f"/v1/issues?{urlencode({'where': where})}").status == 503
        assert client.get("/").status == 200


# --- an answer ---


def test_rows_beyond_the_size_of_an_answer_are_left_out(folder):
    with running(folder, answer_bytes=MIB) as client:
        for text in ("'x'", "chr(1)"):  # JSON has six bytes for the second one
            sql = f"SELECT repeat({text}, 100000) AS x FROM range(100)"  # noqa: S608 - it is of here
            answer = client.post("/v1/query", sql)
            assert answer.headers[TRUNCATED] == "true"
            assert 0 < len(answer.data) <= MIB
            assert all(len(json.loads(row)["x"]) == 100000 for row in answer.data.splitlines())
        for path in ("/sql?format=json&sql=", "/sql?sql="):
            sql = "SELECT+repeat('x',2000000)"
            assert client.get(path + sql).status == 413
        assert client.post("/v1/query", "SELECT repeat('x', 2000000)").status == 413


def test_answers_that_clients_do_not_read_have_a_limit(folder):
    sql = "SELECT repeat('x', 1000) FROM range(30000)"
    rows = f"/sql?{urlencode({'format': 'json', 'sql': sql})}"
    with running(folder, sending_bytes=40 * MIB) as client:
        with socket.create_connection(("127.0.0.1", client.port)) as slow:
            slow.sendall(HEAD.format(path=rows).encode())
            until(lambda: client.service.sending.used)
            assert client.get(rows).status == 503
            assert client.get("/").status == 200
        until(lambda: not client.service.sending.used)
        assert len(client.get(rows).data) > 30 * 10**6


# --- time ---


def test_a_condition_that_takes_too_long_is_ended_at_each_address(folder):
    with running(folder, query_time=0.5) as client:
        fill(client)
        for path in ("/v1/issues", "/v1/flame", "/v1/functions", "/v1/hangs", "/v1/audit"):
            answer = client.get(f"{path}?{urlencode({'where': ENDLESS})}")
            assert (path, answer.status) == (path, 408)
            assert "0.5 seconds" in answer.json["error"]
        for path in ("/", "/flame", "/functions", "/hangs", "/audit"):
            assert (path, client.get(f"{path}?{urlencode({'where': ENDLESS})}").status) == (
                path,
                408,
            )
        for path in ("/v1/diff", "/diff"):
            assert (path, client.get(f"{path}?{urlencode({'a': ENDLESS})}").status) == (path, 408)
        assert client.get(f"/sql?{urlencode({'sql': f'SELECT {ENDLESS}'})}").status == 408
        assert client.get("/healthz").status == 200


def test_the_server_answers_while_conditions_without_an_end_run(folder):
    endless = f"/v1/issues?{urlencode({'where': ENDLESS})}"
    with running(folder, query_time=3600, queries=2) as client:
        fill(client)
        with requested(client, [endless, f"/?{urlencode({'where': ENDLESS})}"]) as statuses:
            until(lambda: is_full(client))
            assert client.get(endless).status == 503
            for path in ("/", "/v1/issues", "/flame", "/symbols", "/sql", "/healthz"):
                assert (path, client.get(path).status) == (path, 200)
            assert client.state(client.post("/v1/reports", report("c")).json["ids"][0])
            assert not statuses
            client.service.stop()  # as a signal does
        assert statuses == [503, 503]


def test_a_client_that_leaves_ends_its_query(folder):
    with running(folder, query_time=3600, queries=1) as client:
        fill(client)
        with socket.create_connection(("127.0.0.1", client.port)) as leaving:
            path = f"/v1/issues?{urlencode({'where': ENDLESS})}"
            leaving.sendall(HEAD.format(path=path).encode())
            until(lambda: is_full(client))
        until(lambda: not is_full(client))
        assert client.rows("SELECT 1 AS one") == [{"one": 1}]


@pytest.mark.peer
def test_a_signal_ends_the_server_whatever_runs(folder):
    with running(folder) as client:
        fill(client)
    command = [sys.executable, "-m", "machtrace", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        port = int(server.stdout.readline().rsplit(b":", 1)[1])
        head = HEAD.format(path=f"/v1/issues?{urlencode({'where': ENDLESS})}").encode()
        clients = []
        while not _is_refused(port, head):
            clients.append(socket.create_connection(("127.0.0.1", port)))
            clients[-1].sendall(head)
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=PATIENCE)
        for client in clients:
            assert b" 503 " in client.recv(100)
            client.close()
    assert server.returncode == -signal.SIGTERM
    assert errors == b""


def _is_refused(port, head):
    """Whether the server is full; if not, this query ends with its client."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(0.5)
        client.sendall(head)
        try:
            return b" 503 " in client.recv(100)
        except TimeoutError:
            return False


# --- processes ---


def number(_warehouse):
    """Return the number of the process."""
    return os.getpid()


def crash(_warehouse):
    """End as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def grow(_warehouse):
    """Take memory that DuckDB does not know of."""
    return sum(len(part) for part in [bytes(range(256)) * 4096 for _ in range(4096)])


def wait(_warehouse):
    """Continue, whatever is interrupted."""
    time.sleep(3600)


def spill(_warehouse, folder):
    """Leave a file, and crash."""
    (folder / f"tmp-server-{os.getpid()}-0").mkdir()
    crash(None)


@pytest.fixture
def limits(folder):
    return QueryLimits(folder, seconds=60, memory=128 * MIB, spill=0, answer=MIB, niceness=0)


async def outcomes(pool, *tasks):
    """Return the answers, or the statuses of refusals, in sequence."""
    made = []
    try:
        for work, *arguments in tasks:
            try:
                made.append(await pool.answer(Task(work, tuple(arguments))))
            except RefusedError as error:
                made.append(error.status)
    finally:
        await asyncio.to_thread(pool.close)
    return made


@pytest.mark.parametrize(
    ("work", "seconds", "status"), [(crash, 60, 503), (grow, 60, 503), (wait, 0.5, 408)]
)
def test_a_process_that_ends_is_replaced(limits, work, seconds, status):
    pool = QueryPool(limits._replace(seconds=seconds), 1, 0, idle=60)
    first, failed, last = asyncio.run(outcomes(pool, (number,), (work,), (number,)))
    assert failed == status
    assert len({first, last, os.getpid()}) == 3


def test_a_process_that_was_killed_between_tasks_is_replaced(limits):
    async def both():
        pool = QueryPool(limits, 1, 0, idle=60)
        first = await pool.answer(Task(number, ()))
        os.kill(first, signal.SIGKILL)
        pool._idle[0]._worker.process.join()  # noqa: SLF001 - until it has ended
        return first, *await outcomes(pool, (number,))

    assert len(set(asyncio.run(both()))) == 2


def test_a_task_that_is_cancelled_before_its_process_has_started_ends(limits):
    async def both():
        pool = QueryPool(limits._replace(seconds=3600), 1, 0, idle=60)
        running = asyncio.ensure_future(pool.answer(Task(wait, ())))
        await asyncio.sleep(0)  # it begins
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with pool._slots:  # noqa: SLF001 - its process has ended
            pass
        return await outcomes(pool, (number,))

    assert len(asyncio.run(both())) == 1


def test_a_process_is_used_again(limits):
    pool = QueryPool(limits, 4, 0, idle=60)
    assert len(set(asyncio.run(outcomes(pool, (number,), (number,), (number,))))) == 1


def test_a_process_without_questions_ends(limits):
    async def both():
        pool = QueryPool(limits, 1, 0, idle=0)
        first = await pool.answer(Task(number, ()))
        await asyncio.sleep(0)  # its end is due
        return first, *await outcomes(pool, (number,))

    assert len(set(asyncio.run(both()))) == 2


# --- the disk ---


def test_what_processes_store_is_removed(limits, folder):
    pool = QueryPool(limits, 1, 0, idle=60)
    assert asyncio.run(outcomes(pool, (spill, folder))) == [503]
    assert not list(folder.glob("tmp*"))


def test_what_does_not_fit_into_memory_is_stored_in_the_warehouse(folder):
    left = folder / "tmp-server-1-killed"
    left.mkdir()
    with running(folder) as client:
        sql = "SELECT name, value FROM duckdb_settings() WHERE name LIKE '%temp%directory%'"
        settings = {row["name"]: row["value"] for row in client.rows(sql)}
        assert settings["temp_directory"].startswith(str(folder.resolve() / "tmp-server-"))
        assert settings["max_temp_directory_size"].endswith("iB")
        assert not left.exists()


def test_what_is_stored_on_the_disk_has_a_limit(folder):
    sql = (
        "SELECT count(*) AS n FROM (SELECT DISTINCT repeat('x', 100) || range FROM range(2000000))"
    )
    with running(folder, query_memory=128 * MIB, query_spill=MIB) as client:
        assert client.post("/v1/query", sql).status == 503
    with running(folder, query_memory=128 * MIB) as client:
        assert client.rows(sql) == [{"n": 2_000_000}]
    assert not list(folder.glob("tmp*"))
