"""Calls that `audit run gdb://` records by breakpoints: none lost, round trips and calls a second.

``MACHTRACE_BENCHMARK_HITS`` is the number of calls; 10,000 by default.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.delaying_proxy import DelayingProxy
from machtrace.audit.observed.consent import ConsentMarker, MarkerKind
from machtrace.audit.rules import load_rules
from machtrace.cli.audit.breakpoints import record_calls
from machtrace.cli.audit.run import LiveOptions
from tests.audit.observed.two_sdks import build_app
from tests.live.test_audit_breakpoints import RULES, gdb_words, lldb_words
from tests.support.stand_ins.usbmuxd import free_port

HITS = int(os.environ.get("MACHTRACE_BENCHMARK_HITS", "10000"))
THREADS = 10
FUNCTIONS = 3
"""The calls that a thread makes in one turn: by libone, by libtwo, and of its own."""


@pytest.mark.benchmark(group="calls at breakpoints, 10 threads")
@pytest.mark.parametrize("delay", [0, 0.001], ids=["local", "1 ms"])
@pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])
@pytest.mark.parametrize("command", [lldb_words, gdb_words], ids=["lldb-server", "gdbserver"])
def test_calls_at_breakpoints(benchmark, tmp_path, command, quick, delay):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    turns = -(-HITS // (THREADS * FUNCTIONS))
    program = build_app(tmp_path)
    (tmp_path / "rules.toml").write_text(RULES, encoding="utf-8")
    rules = load_rules(tmp_path / "rules.toml")
    port = free_port()
    words = [str(word) for word in command(port, (program, THREADS, turns), None)]
    stub = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while f":{port:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text():
        time.sleep(0.02)
    if delay:
        port = DelayingProxy(port, delay).port
    live = LiveOptions(ConsentMarker(MarkerKind.NEVER), (), math.inf, quick=quick)
    spec = f"gdb://127.0.0.1:{port}"
    began = time.monotonic()
    recording = benchmark.pedantic(record_calls, (spec, rules, live), rounds=1)
    seconds = time.monotonic() - began
    stub.wait()
    made = THREADS * turns * FUNCTIONS + 8
    calls = int(recording.trail.calls.calls.sum())
    facts = {
        "made": made,
        "lost": made - calls,
        "a second": round(calls / seconds),
        "costs": list(recording.costs),
        "problems": list(recording.problems),
    }
    benchmark.extra_info.update(facts)
    assert calls == made
