"""The examples: they are built by their Makefiles, and their spools show what they did."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from machtrace.reports.spool.spool import Spool
from tests.agent.build import PROJECT, compiler, library

pytestmark = pytest.mark.live
EXAMPLES = PROJECT / "examples"


@pytest.fixture
def service(built: Path, tmp_path: Path) -> Path:
    """Build the service with its Makefile."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make")
    folder = tmp_path / "linux-service"
    shutil.copytree(EXAMPLES / "linux-service", folder)
    lib = tmp_path / "lib"
    lib.mkdir()
    shutil.copy(library(built), lib / "libmachtrace.so")
    settings = [f"CC={compiler()}", f"AGENT={lib}", f"INCLUDE={PROJECT / 'agent' / 'include'}"]
    subprocess.run([make, "-C", str(folder), *settings], check=True, capture_output=True)
    return folder / "service"


def ask(path: Path, line: str) -> str:
    """Send a line to the service and return its answer."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(f"{line}\n".encode())
        return client.recv(1024).decode()


def test_the_service_records_what_it_opens(service: Path, tmp_path: Path) -> None:
    at, spool_path = tmp_path / "socket", tmp_path / "service.spool"
    text = tmp_path / "text"
    text.write_text("first\nsecond\n")
    with subprocess.Popen([service, at, spool_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert ask(at, f"read {text}") == "first\n"
        assert ask(at, "read /no/such/file") == "No such file or directory\n"
        assert ask(at, "wait 400") == "ok\n"
        assert ask(at, "else") == "unknown: read PATH, wait MS or stop\n"
        assert ask(at, "stop") == "ok\n"
    assert process.returncode == 0
    spool = Spool.read(spool_path)
    assert spool.is_stopped
    rules = {rule.symbol: rule for rule in spool.rules}
    assert spool.calls[rules["open"].number] == 2
    assert rules["getaddrinfo"].state == 0, "nothing imports it"
    command = [sys.executable, "-m", "machtrace", "report", str(spool_path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    incident = text.partition("Incident: hang of thread")[2].partition("\n\n")[0]
    assert "wait_for" in incident, text
    (row,) = spool.sums()
    frames = [frame.image.path for frame in spool.stack(row["stack"]) if frame.image]
    assert frames[:2] == [str(service)] * 2


def test_the_service_serves_without_the_agent(service: Path, tmp_path: Path) -> None:
    """A spool that cannot be written is no reason not to start."""
    at = tmp_path / "socket"
    command = [service, at, tmp_path / "no" / "such" / "folder"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        assert ask(at, "stop") == "ok\n"
        assert "nothing is recorded" in process.stderr.read()
    assert process.returncode == 0


def test_wrong_arguments_print_the_usage(service: Path) -> None:
    done = subprocess.run([service], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "usage: service SOCKET SPOOL\n")
