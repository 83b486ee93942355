"""Sentry's own client for Python sends to a server: only the address is another."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from machtrace.server.tokens import Scope, Tokens
from tests.server.serving import PATIENCE, running

PROGRAM = """
import sys
import sentry_sdk

def price(item):
    return {}[item]

def sell(item):
    return price(item)

sentry_sdk.init(sys.argv[1], release="shop@1.0+7", default_integrations=False)
sentry_sdk.set_user({"id": "someone@example.org"})
try:
    sell("book")
except KeyError as error:
    sentry_sdk.capture_exception(error)
sentry_sdk.capture_message("no stack")
sentry_sdk.flush(60)
"""


@pytest.mark.peer
@pytest.mark.skipif(find_spec("sentry_sdk") is None, reason="sentry-sdk is not installed")
def test_the_client_for_python(folder):
    token, reading = Tokens(folder).create(Scope.INGEST), Tokens(folder).create(Scope.READ)
    with running(folder) as client:
        address = f"http://{token}@127.0.0.1:{client.port}/1"
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, address],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        rows = all_reports(client, 2, token=reading)
        for row in rows:
            assert (row["app"], row["build"], row["format"]) == ("shop", "7", "sentry")
            assert "someone" not in row["device"]
        assert {row["kind"] for row in rows} == {"stacks"}  # a handled error, and a message
        tops = client.rows("SELECT function FROM stack_tops", token=reading)
        assert "__main__.price" in {row["function"] for row in tops}


def all_reports(client, number: int, **options):
    """Return the reports when all have been read."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        sql = "SELECT app, build, device, format, kind FROM reports"
        rows = client.rows(sql, **options)
        if len(rows) == number:
            return rows
        time.sleep(0.05)
    raise AssertionError("they were never read")
