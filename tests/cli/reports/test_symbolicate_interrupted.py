"""``machtrace symbolicate`` when it is interrupted, or when one of its processes dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from tests.support.reports.samples import REPORT_SAMPLES

FILES = 3000
"""Far more than are read before a test interrupts the command, even on a slow machine."""
pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(
        sys.platform != "linux", reason="children are found in /proc, which only Linux has"
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of reports that take a minute."""
    head, body = (json.loads(part) for part in REPORT_SAMPLES["ips"].decode().split("\n"))
    frames = [{"imageOffset": 0x100 + 4 * n, "imageIndex": n % 2} for n in range(40)]
    body["threads"] = [{"id": n, "frames": frames} for n in range(60)]
    text = json.dumps(head) + "\n" + json.dumps(body)
    made = tmp_path_factory.mktemp("many")
    (made / "0000.ips").write_text(text)
    for number in range(1, FILES):
        os.link(made / "0000.ips", made / f"{number:04}.ips")
    return made


def started(folder, out, jobs, *words):
    """Start the command in its own process group, as a shell does."""
    command = [sys.executable, "-m", "machtrace", "symbolicate", str(folder), "-o", str(out)]
    return subprocess.Popen(
        [*command, "--jobs", str(jobs), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def group(leader):
    """Return the ids of a group's running processes."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] != b"Z":
            pids.append(int(process.name))
    return pids


def wait_for(condition):
    """Wait until ``condition`` holds, at most a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def assert_whole(out):
    """Check that the folder has complete reports only."""
    if not out.exists():
        return
    for path in out.iterdir():
        assert path.suffix == ".crash", path
        assert path.read_bytes().rstrip().endswith(b"EOF")
        (report,) = read_source(ReportSource("written", path.read_bytes())).reports
        assert len(report.threads) == 60


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("files", [0, 1, 40])
def test_ctrl_c_ends_everything_at_once(folder, tmp_path, jobs, files):
    """At the start, at the first file or later: no children, no partial files, no traceback."""
    out = tmp_path / "out"
    process = started(folder, out, jobs)
    if files:
        wait_for(lambda: out.exists() and len(list(out.glob("*.crash"))) >= files)
    else:
        wait_for(out.exists)
    os.killpg(process.pid, signal.SIGINT)
    out_bytes, err_bytes = process.communicate(timeout=60)

    assert (process.returncode, out_bytes, err_bytes) == (130, b"", b"")
    wait_for(lambda: not group(process.pid))
    assert_whole(out)
    assert len(list(out.iterdir())) < FILES


def test_children_end_with_a_parent_that_is_killed(folder, tmp_path):
    out = tmp_path / "out"
    process = started(folder, out, 2)
    wait_for(lambda: out.exists() and any(out.glob("*.crash")))
    process.kill()
    process.communicate(timeout=60)

    wait_for(lambda: not group(process.pid))


def test_a_child_that_dies_is_an_error(folder, tmp_path):
    """The error has a hint; files that were written stay."""
    out = tmp_path / "out"
    process = started(folder, out, 2)
    wait_for(lambda: out.exists() and any(out.glob("*.crash")))
    children = [
        pid
        for pid in group(process.pid)
        if pid != process.pid and b"spawn_main" in _command_line(pid)
    ]
    os.kill(children[0], signal.SIGKILL)
    out_bytes, err_bytes = process.communicate(timeout=60)

    assert (process.returncode, out_bytes) == (1, b"")
    assert err_bytes.count(b"\n") == 2
    assert b"try --jobs 1" in err_bytes
    wait_for(lambda: not group(process.pid))


def test_a_terminated_child_takes_no_further_batch():
    """A pool records an exception in a batch as its outcome, and continues."""
    script = (
        "import signal\n"
        "from machtrace.engines import processes\n"
        "def end(batch):\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "processes._run_batch = end\n"
        "signal.signal(signal.SIGTERM, processes._leave)\n"
        "try: processes._run([])\n"
        "except BaseException as error: print('continued after', repr(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def _command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_memory_does_not_grow_with_the_number_of_files(folder, tmp_path):
    """Five times as many files take about as much memory."""

    def most(*folders):
        script = (
            "import resource, sys; from machtrace.cli.main import main\n"
            "try: main()\nexcept SystemExit: pass\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        words = ["symbolicate", *map(str, folders), "-o", str(tmp_path / "out"), "--jobs", "1"]
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, check=True, timeout=300
        )
        return int(done.stdout)

    def part(count):
        made = tmp_path / f"{count} files"
        made.mkdir()
        for number in range(count):
            os.link(folder / f"{number:04}.ips", made / f"{number}.ips")
        return made

    assert most(part(200)) < 1.3 * most(part(40))
