"""speedscope, the Firefox Profiler and pprof, run on exported reports.

speedscope and the profiler are npm packages: `npm install speedscope
@firefox-devtools/profiler-cli` in a folder, whose ``node_modules`` MACHTRACE_NODE_MODULES names.
speedscope runs in Chromium.
"""

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from machtrace.reports.writers import write_reports
from tests.support.peers.chromium import chromium_page, chromium_program
from tests.support.peers.npm import PeerMissingError, firefox_profiler, npm_package
from tests.support.reports.models import made_report, made_thread, made_tree

CRASH = made_report(
    made_thread(0, ["system:abort", "kit:fail", "run", "main"], crashed=True),
    made_thread(1, ["system:wait", "loop"]),
)
SAMPLED = made_report(
    trees=[
        made_tree([(None, 10, "main"), (0, 7, "kit:draw"), (1, 5, "system:copy")], thread=5),
        made_tree([(None, 10, "start"), (0, 10, "system:wait")], thread=6),
    ]
)
REPORTS = pytest.mark.parametrize("report", [CRASH, SAMPLED], ids=["threads", "trees"])


def test_speedscope_loads_them(tmp_path):
    """Its page takes the file, shows its name, and complains of nothing."""
    if chromium_program() is None:
        pytest.skip("no Chromium (Debian: chromium)")
    try:
        index = npm_package("speedscope") / "dist" / "release" / "index.html"
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    with chromium_page(tmp_path / "browser") as page:
        for number, report in enumerate((CRASH, SAMPLED)):
            data = base64.b64encode(write_reports([report], "speedscope")).decode()
            local = tmp_path / f"profile-{number}.js"
            local.write_text(f"speedscope.loadFileFromBase64('{number}.json', '{data}')")
            page.open(index, f"#localProfilePath={local}")
            title = page.wait_for("document.title.includes('Demo') && document.title")
            assert title.startswith("Demo [42]")
            page.wait_for("document.querySelector('canvas')?.width > 0")
            page.open(Path("/dev/null"))  # another page: the next one is loaded again
        assert page.complaints == []


@REPORTS
def test_the_firefox_profiler_s_functions_are_the_report_s(report, tmp_path):
    """Each function of the first thread has the same own and total samples."""
    path = tmp_path / "demo.json"
    path.write_bytes(write_reports([report], "firefox"))
    try:
        with firefox_profiler(path, tmp_path) as ask:
            functions = json.loads(ask("thread", "functions", "--thread", "t-0", "--json"))
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    shares = {
        function["name"].rpartition("!")[2]: (function["selfSamples"], function["totalSamples"])
        for function in functions["functions"]
    }
    if report is CRASH:
        assert shares == {"abort": (1, 1), "fail": (0, 1), "run": (0, 1), "main": (0, 1)}
    else:
        assert shares == {"copy": (5, 5), "draw": (2, 7), "main": (3, 10)}


@pytest.mark.peer
def test_go_s_pprof_counts_the_report_s_samples(tmp_path):
    """Each function has the same own and total samples."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go (Debian: golang-go)")
    path = tmp_path / "demo.pb.gz"
    path.write_bytes(write_reports([SAMPLED], "pprof"))
    command = [go, "tool", "pprof", "-top", "-sample_index=samples", "-nodecount=50", str(path)]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PPROF_TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    totals = {row[5]: (row[0], row[3]) for row in rows if len(row) > 5 and row[0].isdecimal()}

    assert totals == {
        "copy": ("5", "5"),
        "draw": ("2", "7"),
        "main": ("3", "10"),
        "wait": ("10", "10"),
        "start": ("0", "10"),
    }
