"""The agent, loaded into a running process by Frida with the script of docs/agent.md."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from machtrace.reports.spool.spool import Spool
from tests.agent.build import PROJECT, library

frida = pytest.importorskip("frida", reason="Frida is not installed")
pytestmark = pytest.mark.live

PROGRAM = """
import os, time
print("ready", flush=True)
while True:
    os.close(os.open("/dev/null", os.O_RDONLY))
    time.sleep(0.001)
"""
LIMIT_S = 60


def test_calls_are_recorded_from_then_on(built: Path, tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "agent.md").read_text()
    (script,) = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    script = script.replace("/opt/machtrace/libmachtrace.so", str(library(built)))
    script = re.sub(r"'[^']*/app-%p.spool'", f"'{tmp_path}/app-%p.spool'", script)
    script = script.replace("rpc.exports = {", "rpc.exports = { count: () => count('open64'),")
    script += """
const state = new NativeFunction(agent.getExportByName('machtrace_function_state'), 'int',
                                 ['pointer', 'pointer']);
const calls = Memory.alloc(8);
const count = name =>
  state(Memory.allocUtf8String(name), calls) < 0 ? -1 : calls.readU64().toNumber();
"""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            try:
                session = frida.attach(process.pid)
            except frida.PermissionDeniedError as error:
                pytest.skip(f"Frida cannot attach here: {error}")
            loaded = session.create_script(script)
            loaded.load()
            deadline = time.monotonic() + LIMIT_S
            while (seen := loaded.exports_sync.count()) < 10:
                assert time.monotonic() < deadline, seen
            assert loaded.exports_sync.stop() == 0
            session.detach()
            assert process.poll() is None, "the process runs on"
        finally:
            process.kill()
    spool = Spool.read(tmp_path / f"app-{process.pid}.spool")
    assert spool.is_stopped
    number = next(rule.number for rule in spool.rules if rule.symbol == "open64")
    assert spool.calls[number] >= seen
    rows = spool.sums()
    assert int(rows["calls"][rows["rule"] == number].sum()) == spool.calls[number]
