"""Processes in containers that mount empty files over those of ``/proc``."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import pytest

from machtrace.errors import TargetAccessError
from machtrace.targets.linux.identity import read_mappings
from machtrace.targets.linux.polls import LinuxPolls
from machtrace.targets.linux.process_polls import ProcessPolls
from machtrace.targets.linux.procfs import ProcessDirectory

STAT = "1 (x) R " + " ".join("0" for _ in range(10)) + " 150 50 " + " ".join(["0"] * 35)
STATUS = (
    "Name:\tx\nState:\tR (running)\nTracerPid:\t0\nUid:\t0\t0\t0\t0\n"
    "voluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n"
)
FILES = {
    "stat": STAT,
    "status": STATUS,
    "syscall": "running",
    "schedstat": "1000 2000 3",
    "statm": "20 10 5 1 0 4 0",
    "maps": "",
    "cgroup": "",
}


class Folder(ProcessDirectory):
    """A process whose files are those of a folder."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self._directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._close = weakref.finalize(self, os.close, self._directory)


def process(folder: Path, *hidden: str) -> Folder:
    """Return a running process whose ``hidden`` files are empty."""
    task = folder / "task" / str(os.getpid())
    task.mkdir(parents=True)
    for name, text in FILES.items():
        for place in (folder, task):
            (place / name).write_text("" if name in hidden else text)
    return Folder(folder)


def test_a_hidden_state_is_read_from_the_status(tmp_path: Path) -> None:
    with process(tmp_path, "stat") as directory:
        assert directory.state(directory.pid) == "R"
        assert directory.live_thread() == directory.pid
        assert not directory.is_kernel_thread()


def test_a_thread_without_states_is_taken_for_a_live_one(tmp_path: Path) -> None:
    with process(tmp_path, "stat", "status") as directory:
        assert directory.live_thread() == directory.pid


def test_a_hidden_memory_map_is_a_denial(tmp_path: Path) -> None:
    with process(tmp_path) as directory, pytest.raises(TargetAccessError, match="hidden"):
        read_mappings(directory)


@pytest.mark.parametrize("text", ["", "0 0 0 0 0 0 0"])
def test_hidden_memory_is_unknown(tmp_path: Path, text: str) -> None:
    with process(tmp_path) as directory:
        (tmp_path / "task" / str(directory.pid) / "statm").write_text(text)
        polls = ProcessPolls(directory)
        poll = polls.poll(with_threads=True)
        polls.close()
    assert (poll.resident, poll.virtual) == (None, None)
    assert [*(poll.threads or ())] == [directory.pid]


@pytest.mark.parametrize(
    ("hidden", "word"),
    [("syscall", "system calls"), ("schedstat", "schedstat"), ("status", "states")],
)
def test_each_hidden_file_is_stated(tmp_path: Path, hidden: str, word: str) -> None:
    with process(tmp_path, hidden) as directory:
        polls = LinuxPolls(directory)
        poll = polls.poll(directory.pid, with_status=True)
        (sentence,) = polls.missing
        polls.close()
    assert word in sentence
    assert poll.is_running
    assert poll.state == (None if hidden == "status" else "R")


def test_clock_ticks_replace_a_hidden_schedstat(tmp_path: Path) -> None:
    with process(tmp_path, "schedstat") as directory:
        polls = LinuxPolls(directory)
        poll = polls.poll(directory.pid, with_status=False)
        polls.close()
    assert poll.run_ns == 200 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert poll.delay_ns is None


def test_system_calls_are_not_read_without_stacks(tmp_path: Path) -> None:
    with process(tmp_path) as directory:
        polls = LinuxPolls(directory, has_calls=False)
        poll = polls.poll(directory.pid, with_status=False)
        polls.close()
    assert poll.call is None
    assert poll.is_running  # by its state
    assert "blocked threads are not reported" in polls.missing[0]
