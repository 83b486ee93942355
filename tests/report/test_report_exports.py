"""What speedscope, the Firefox Profiler and pprof make of reports: the programs themselves.

speedscope and the profiler are npm packages: `npm install speedscope
@firefox-devtools/profiler-cli` in a folder, whose ``node_modules`` MACHTRACE_NODE_MODULES names.
speedscope runs in Chromium.
"""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from machtrace.report.formats import write_reports
from machtrace.testing.headless_chromium import chromium_page, chromium_program
from machtrace.testing.made_reports import made_report, made_thread, made_tree

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


@pytest.fixture
def package():
    """Where an npm package is."""
    modules = os.environ.get("MACHTRACE_NODE_MODULES")
    if modules is None:
        pytest.skip("MACHTRACE_NODE_MODULES does not name a folder with npm packages")

    def folder(name):
        found = Path(modules) / name
        if not found.exists():
            pytest.skip(f"the npm package {name} is not in MACHTRACE_NODE_MODULES")
        return found

    return folder


def test_speedscope_loads_them(package, tmp_path):
    """Its page takes the file, shows its name, and complains of nothing."""
    if chromium_program() is None:
        pytest.skip("no Chromium (Debian: chromium)")
    index = package("speedscope") / "dist" / "release" / "index.html"
    with chromium_page(tmp_path / "browser") as page:
        for number, report in enumerate((CRASH, SAMPLED)):
            data = base64.b64encode(write_reports([report], "speedscope")).decode()
            local = tmp_path / f"profile-{number}.js"
            local.write_text(f"speedscope.loadFileFromBase64('{number}.json', '{data}')")
            page.open(index, f"#localProfilePath={local}")
            title = page.wait_for("document.title.includes('Demo') && document.title")
            assert title.startswith("Demo [42]")
            page.wait_for("document.querySelector('canvas')?.width > 0")
            page.open(Path("/dev/null"))  # another page: the next one is loaded anew
        assert [] == page.complaints


@REPORTS
def test_the_firefox_profiler_s_functions_are_the_report_s(report, package, tmp_path):
    """The samples of each function of the first thread, own and total."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    program = package("@firefox-devtools/profiler-cli") / "dist" / "profiler-cli.js"
    path = tmp_path / "demo.json"
    path.write_bytes(write_reports([report], "firefox"))
    environment = os.environ | {
        "HOME": str(tmp_path),
        "PROFILER_CLI_SESSION_DIR": str(tmp_path / "sessions"),
        "PROFILER_CLI_NO_SYMBOLICATE": "1",
    }

    def ask(*words, times=1):
        command = [node, str(program), *words]
        for _ in range(times):
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment, timeout=120
            )
            if done.returncode == 0:
                return done.stdout
        pytest.fail(done.stdout + done.stderr)

    try:
        ask("load", str(path), times=5)  # its daemon must answer within half a second
        functions = json.loads(ask("thread", "functions", "--thread", "t-0", "--json"))
    finally:
        ask("stop", "--all")
    shares = {
        one["name"].rpartition("!")[2]: (one["selfSamples"], one["totalSamples"])
        for one in functions["functions"]
    }
    if report is CRASH:
        assert {"abort": (1, 1), "fail": (0, 1), "run": (0, 1), "main": (0, 1)} == shares
    else:
        assert {"copy": (5, 5), "draw": (2, 7), "main": (3, 10)} == shares


def test_go_s_pprof_counts_the_report_s_samples(tmp_path):
    """What ended in each function, and what went through it."""
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
    found = {row[5]: (row[0], row[3]) for row in rows if len(row) > 5 and row[0].isdecimal()}

    assert {
        "copy": ("5", "5"),
        "draw": ("2", "7"),
        "main": ("3", "10"),
        "wait": ("10", "10"),
        "start": ("0", "10"),
    } == found
