"""The agent, loaded into a running process by Frida with the script of docs/agent.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from machtrace.reports.spool.spool import Spool
from tests.agent.build import PROJECT, library

pytest.importorskip("frida", reason="Frida is not installed")
pytestmark = pytest.mark.live

PROGRAM = """
import os, time
print("ready", flush=True)
while True:
    os.close(os.open("/dev/null", os.O_RDONLY))
    time.sleep(0.001)
"""
COUNT = """
const state = new NativeFunction(agent.getExportByName('machtrace_function_state'), 'int',
                                 ['pointer', 'pointer']);
const calls = Memory.alloc(8);
const count = name =>
  state(Memory.allocUtf8String(name), calls) < 0 ? -1 : calls.readU64().toNumber();
"""
# In a process of its own: Frida's threads stay, and block signals.
LOADER = """
import sys, time, frida
try:
    session = frida.attach(int(sys.argv[1]))
except frida.PermissionDeniedError as error:
    sys.exit(f"refused: {error}")
script = session.create_script(sys.argv[2])
script.load()
deadline = time.monotonic() + 60
while (seen := script.exports_sync.count()) < 10 and time.monotonic() < deadline:
    pass
stopped = script.exports_sync.stop()
session.detach()
print(seen, stopped)
"""


def test_calls_are_recorded_from_then_on(built: Path, tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "agent.md").read_text()
    (script,) = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    script = script.replace("/opt/machtrace/libmachtrace.so", str(library(built)))
    script = re.sub(r"'[^']*/app-%p.spool'", f"'{tmp_path}/app-%p.spool'", script)
    script = script.replace("rpc.exports = {", "rpc.exports = { count: () => count('open64'),")
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            loader = [sys.executable, "-c", LOADER, str(process.pid), script + COUNT]
            done = subprocess.run(loader, check=False, capture_output=True, text=True, timeout=300)
            if "refused: " in done.stderr:
                pytest.skip(f"Frida cannot attach here: {done.stderr}")
            assert done.returncode == 0, done.stderr
            seen, stopped = map(int, done.stdout.split())
            assert seen >= 10
            assert stopped == 0
            assert process.poll() is None, "the process runs on"
        finally:
            process.kill()
    spool = Spool.read(tmp_path / f"app-{process.pid}.spool")
    assert spool.is_stopped
    number = next(rule.number for rule in spool.rules if rule.symbol == "open64")
    assert spool.calls[number] >= seen
    rows = spool.sums()
    assert int(rows["calls"][rows["rule"] == number].sum()) == spool.calls[number]
