"""The agent, in a running program, uploads its spool to a server, which reads it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from ctypes import CDLL

import pytest

from machtrace.server.tokens import Scope, Tokens
from tests.agent.build import library
from tests.server.serving import PATIENCE, running

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sys.platform != "linux", reason="the agent is loaded as Linux does it"),
]


def test_a_finished_spool_becomes_a_report(folder, tmp_path):
    try:
        CDLL("libcurl.so.4")
    except OSError:
        pytest.skip("libcurl.so.4 is not installed")
    token, reading = Tokens(folder).create(Scope.INGEST), Tokens(folder).create(Scope.READ)
    agent = {
        **os.environ,
        "LD_PRELOAD": str(library(tmp_path)),
        "MACHTRACE_WATCH": "getenv",
        "MACHTRACE_SPOOL": str(tmp_path / "app.spool"),
    }
    with running(folder) as client:
        # A program uploads the spools that earlier ones finished.
        for _ in range(2):
            subprocess.run(["true"], check=True, env=agent)
        agent["MACHTRACE_UPLOAD"] = f"http://127.0.0.1:{client.port}/v1/reports?app=org.example.app"
        agent["MACHTRACE_UPLOAD_HEADER"] = f"Authorization: Bearer {token}"
        with subprocess.Popen(["cat"], env=agent, stdin=subprocess.PIPE) as process:
            rows = wait(client, reading)
            process.communicate()
    (row,) = rows
    assert row.items() >= {"kind": "audit", "format": "spool"}.items()


def wait(client, token):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        rows = client.rows("SELECT kind, format, app FROM reports", token=token)
        if rows:
            return rows
        time.sleep(0.05)
    raise AssertionError("no spool was uploaded")
