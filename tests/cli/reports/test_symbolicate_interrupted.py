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
"""Far more than are read before anything is done to the command, however late this is."""
pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(
        sys.platform != "linux", reason="children are found in /proc, which only Linux has"
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Reports that take a minute."""
    head, body = (json.loads(one) for one in REPORT_SAMPLES["ips"].decode().split("\n"))
    frames = [{"imageOffset": 0x100 + 4 * n, "imageIndex": n % 2} for n in range(40)]
    body["threads"] = [{"id": n, "frames": frames} for n in range(60)]
    text = json.dumps(head) + "\n" + json.dumps(body)
    made = tmp_path_factory.mktemp("many")
    (made / "0000.ips").write_text(text)
    for number in range(1, FILES):
        os.link(made / "0000.ips", made / f"{number:04}.ips")
    return made


def started(folder, out, jobs, *words):
    """The command on its way, in a process group of its own as from a shell."""
    command = [sys.executable, "-m", "machtrace", "symbolicate", str(folder), "-o", str(out)]
    return subprocess.Popen(
        [*command, "--jobs", str(jobs), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def group(leader):
    """The processes of a group that are still there."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            fields = (one / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] != b"Z":
            found.append(int(one.name))
    return found


def wait_for(condition):
    """Until it holds, or much too long."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def assert_whole(out):
    """Whatever is there can be read, and nothing else is there."""
    if not out.exists():
        return
    for path in out.iterdir():
        assert path.suffix == ".crash", path
        assert path.read_bytes().rstrip().endswith(b"EOF")
        (report,) = read_source(ReportSource("written", path.read_bytes())).reports
        assert len(report.threads) == 60


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("files", [0, 1, 40])
def test_ctrl_c_ends_everything_at_once(folder, tmp_path, jobs, files):
    """As soon as it starts, with the first file, later: no children, no halves, no traceback."""
    out = tmp_path / "out"
    process = started(folder, out, jobs)
    if files:
        wait_for(lambda: out.exists() and len(list(out.glob("*.crash"))) >= files)
    else:
        wait_for(out.exists)
    os.killpg(process.pid, signal.SIGINT)
    said, complained = process.communicate(timeout=60)

    assert (process.returncode, said, complained) == (130, b"", b"")
    wait_for(lambda: not group(process.pid))
    assert_whole(out)
    assert len(list(out.iterdir())) < FILES


def test_children_end_with_a_parent_that_is_killed(folder, tmp_path):
    """Nobody else would end them."""
    out = tmp_path / "out"
    process = started(folder, out, 2)
    wait_for(lambda: out.exists() and any(out.glob("*.crash")))
    process.kill()
    process.communicate(timeout=60)

    wait_for(lambda: not group(process.pid))


def test_a_child_that_dies_is_said(folder, tmp_path):
    """In one line, with what to do; what was written stays."""
    out = tmp_path / "out"
    process = started(folder, out, 2)
    wait_for(lambda: out.exists() and any(out.glob("*.crash")))
    children = [
        one
        for one in group(process.pid)
        if one != process.pid and b"spawn_main" in _command_line(one)
    ]
    os.kill(children[0], signal.SIGKILL)
    said, complained = process.communicate(timeout=60)

    assert (process.returncode, said) == (1, b"")
    assert complained.count(b"\n") == 2
    assert b"try --jobs 1" in complained
    wait_for(lambda: not group(process.pid))


def test_a_child_that_is_to_end_takes_no_further_batch():
    """A pool takes what is raised in a batch for its outcome, and would go on."""
    script = (
        "import signal\n"
        "from machtrace.cli.reports import processes\n"
        "class Runner:\n"
        "    def run(self, batch):\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "processes._runner = Runner()\n"
        "signal.signal(signal.SIGTERM, processes._leave)\n"
        "try: processes._run([])\n"
        "except BaseException as error: print('went on after', repr(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def _command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_memory_does_not_grow_with_the_number_of_files(folder, tmp_path):
    """The same files four times over take about as much as once."""

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
