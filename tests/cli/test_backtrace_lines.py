"""``machtrace backtrace`` with source lines, without them, and where they cannot be read."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.command_line import run_command
from tests.support.compilers.debug_programs import debug_file

pytestmark = pytest.mark.live

SOURCE = """\
#include <unistd.h>
__attribute__((noinline)) int wait_there(int n) {
  pause();
  return n;
}
int main(int count, char **words) {
  write(1, "ready\\n", 6);
  int result = wait_there(count);
  return result + 1;
}
"""

SHT_SYMTAB = 2

if sys.platform != "linux":
    pytest.skip("captures a Linux process", allow_module_level=True)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Return a program compiled with debug information."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("waiting")
    (folder / "waiting.c").write_text(SOURCE)
    flags = ["-g", "-O1", "-Wl,--build-id"]
    subprocess.run([compiler, *flags, "waiting.c", "-o", "waiting"], cwd=folder, check=True)
    return folder / "waiting"


def backtrace(program, *arguments):
    """Run the command for a process that runs ``program``."""
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        stat = Path(f"/proc/{process.pid}/stat")
        while process.poll() is None and stat.read_text().rpartition(") ")[2][0] != "S":
            time.sleep(0.01)  # what it printed comes before it waits
        done = run_command("backtrace", process.pid, *arguments)
        process.kill()
    return done


def test_lines_are_printed(program):
    """The program's own frames have them."""
    done = backtrace(program)

    assert done.returncode == 0, done.stderr
    assert "at waiting.c:8" in done.stdout


@pytest.mark.parametrize("arguments", [("--no-lines",), ("--no-names",), ("--format", "bs")])
def test_lines_are_left_out(program, arguments, tmp_path, monkeypatch):
    """No index is built for them."""
    monkeypatch.setenv("MACHTRACE_CACHE", str(tmp_path))

    done = backtrace(program, *arguments)

    assert done.returncode == 0, done.stderr
    assert "waiting.c" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_debug_information_that_cannot_be_read_is_reported_and_costs_no_names(program, tmp_path):
    """The status is 0, since the stacks are complete."""
    file = debug_file(program)
    section = file.contents.image.section(".debug_info")
    data = bytearray(file.data)
    data[section.offset : section.offset + section.size] = b"\xff" * section.size
    bad = tmp_path / "waiting"
    bad.write_bytes(data)
    bad.chmod(0o755)

    done = backtrace(bad, "--format", "json")

    assert done.returncode == 0, done.stderr
    assert str(bad) in done.stderr
    assert "debug information" in done.stderr
    document = json.loads(done.stdout)
    (problem,) = document["problems"]
    assert problem["thread"] is None
    assert "debug information" in problem["error"]
    names = [frame["symbol"] for frame in document["threads"][0]["frames"]]
    assert "main" in names


def test_a_malformed_symbol_table_is_reported_and_costs_no_stacks(program, tmp_path):
    """The status is 0."""
    data = bytearray(program.read_bytes())
    headers = int.from_bytes(data[0x28:0x30], "little")
    for at in range(headers, len(data), 64):
        if data[at + 4] == SHT_SYMTAB:
            data[at + 0x28 : at + 0x2C] = b"\xff" * 4  # sh_link: its strings
    bad = tmp_path / "waiting"
    bad.write_bytes(data)
    bad.chmod(0o755)

    done = backtrace(bad, "--no-lines")

    assert done.returncode == 0, done.stderr
    fact, hint = done.stderr.splitlines()
    assert fact.startswith("machtrace: ")
    assert str(bad) in fact
    assert hint.startswith("hint: ")
