"""The agent's watchdog: what hangs, burns processor time or takes memory, and what does not."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from machtrace.model.incident.facts import IncidentKind, Verdict
from machtrace.reports.spool.spool import Spool
from tests.agent import spool_format
from tests.agent.build import LINKED, build, compiler, library, run
from tests.agent.spool_format import ENDED, LASTS, SEEN, Incident, Nodes, incidents

pytestmark = pytest.mark.live

HANG, CPU, MEMORY = 1, 2, 3
BLOCKED = 1
SEARCHED = 1


def program(built: Path) -> Path:
    return build(built, "hangs.c", LINKED)


def functions(path: Path) -> list[tuple[int, str]]:
    """Return the program's functions by address."""
    text = subprocess.run(
        ["nm", "--defined-only", str(path)], check=True, capture_output=True, text=True
    ).stdout
    rows = [line.split() for line in text.splitlines()]
    return sorted((int(row[0], 16), row[2]) for row in rows if row[1] in "tT")


def names(path: Path, nodes: Nodes, node: int) -> list[str]:
    """Return the functions of the program in a stack, innermost first."""
    table = functions(path)
    result = []
    while node:
        image, offset = nodes.frames[node]
        if image and nodes.images[image].path == str(path):
            below = [name for address, name in table if address < offset]
            result.append(below[-1].partition(".")[0])
        node = nodes.parents[node]
    return result


def observed(built: Path, folder: Path, how: str) -> tuple[Path, Nodes, list[Incident]]:
    path = program(built)
    assert run(path, folder / "a.spool", how) == "0\n"
    spool = spool_format.read(folder / "a.spool")
    assert spool.incomplete == []
    assert spool.losses["log_full"] == 0
    return path, Nodes(spool), incidents(spool)


@pytest.mark.parametrize("how", ["blocked", "busy", "loop"])
def test_hangs(built: Path, tmp_path: Path, how: str) -> None:
    path, nodes, rows = observed(built, tmp_path, how)
    assert rows
    first = rows[0]
    assert (first.phase, first.kind) == (SEEN, HANG)
    assert {row.phase for row in rows} == {SEEN, LASTS, ENDED}
    own = [row for row in rows if row.number == first.number]
    assert [row.phase for row in own] == [SEEN, *[LASTS] * (len(own) - 2), ENDED]
    assert own[-1].value >= first.limit == 300_000_000
    is_blocked = how != "busy"
    proven = [row for row in own if row.verdict == BLOCKED and row.certain]
    assert bool(proven) == is_blocked
    stacks = [stack for row in own for stack in row.stacks if stack.thread == first.thread]
    assert stacks
    assert all(row.time >= first.began for row in stacks)
    inner = ["wait_for_answer"] if is_blocked else []
    expected = [*inner, "handle_request", "main"]
    # The function that runs is missing where the vDSO, without a frame, runs.
    assert any(names(path, nodes, stack.node)[-len(expected) :] == expected for stack in stacks)
    assert all(row.turns == 0 for row in proven)
    assert all(stack.flags & SEARCHED for row in proven for stack in row.stacks)


def test_incidents_of_a_spool_are_those_of_watchers(built: Path, tmp_path: Path) -> None:
    _, nodes, rows = observed(built, tmp_path, "blocked")
    spool = Spool.read(tmp_path / "a.spool")
    incident = spool.incidents[0]
    facts = incident.facts(spool.pid)
    assert (facts.kind, facts.verdict) == (IncidentKind.HANG, Verdict.BLOCKED)
    assert facts.thread is not None
    assert facts.thread.is_main
    assert facts.seen_ns == rows[0].at
    assert facts.duration_ns == incident.last - rows[0].began
    for row in incident.stacks:
        frames = [
            (frame.image.number if frame.image else 0, frame.offset)
            for frame in spool.stack(row.stack)
        ]
        assert frames == [nodes.frames[node] for node in path_of(nodes, row.stack)]


def path_of(nodes: Nodes, node: int) -> list[int]:
    result = []
    while node:
        result.append(node)
        node = nodes.parents[node]
    return [row for row in result if nodes.frames[row][0] or nodes.frames[row][1] >= 1 << 16]


def test_many_short_tasks_are_no_hang(built: Path, tmp_path: Path) -> None:
    _, _, rows = observed(built, tmp_path, "tasks")
    # A task of 20 ms takes longer only if the machine does not let it run.
    assert not [row for row in rows if row.verdict == BLOCKED]


def test_threads_that_register(built: Path, tmp_path: Path) -> None:
    path, nodes, rows = observed(built, tmp_path, "threads")
    pid = spool_format.read(tmp_path / "a.spool").pid
    assert len({row.thread for row in rows}) == 1
    assert rows[0].thread != pid
    assert any(row.verdict == BLOCKED and row.certain for row in rows)
    stacks = [names(path, nodes, stack.node) for row in rows for stack in row.stacks]
    assert ["wait_for_answer", "handle_request", "serve"] in stacks


def test_processor(built: Path, tmp_path: Path) -> None:
    path, nodes, rows = observed(built, tmp_path, "processor")
    assert rows
    assert {row.kind for row in rows} == {CPU}
    assert rows[0].phase == SEEN
    assert rows[0].value >= rows[0].limit == 20
    stacks = [stack for row in rows for stack in row.stacks]
    assert any("burn" in names(path, nodes, stack.node) for stack in stacks)


def test_memory(built: Path, tmp_path: Path) -> None:
    path, nodes, rows = observed(built, tmp_path, "memory")
    assert rows
    assert {row.kind for row in rows} == {MEMORY}
    assert rows[0].phase == SEEN
    assert rows[0].value >= rows[0].limit == 128 << 20
    stacks = [stack for row in rows for stack in row.stacks]
    assert any("allocate" in names(path, nodes, stack.node) for stack in stacks)


def test_a_hang_is_in_the_spool_of_a_killed_process(built: Path, tmp_path: Path) -> None:
    path, spool = program(built), tmp_path / "a.spool"
    process = subprocess.Popen([str(path), str(spool), "killed"], stderr=subprocess.PIPE)
    try:
        rows: list[Incident] = []
        while not rows:
            assert process.poll() is None
            time.sleep(0.01)
            if spool.exists() and spool.read_bytes()[:8] == b"mtspool\n":
                rows = incidents(spool_format.read(spool))
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    read = spool_format.read(spool)
    assert read.state == 1
    assert read.incomplete == []
    rows = incidents(read)
    assert rows[0].phase == SEEN
    assert ENDED not in {row.phase for row in rows}
    nodes = Nodes(read)
    known = [stack.node for row in rows for stack in row.stacks if stack.node in nodes.frames]
    for node in known:
        assert nodes.stack(node)


def test_a_thread_that_hangs_can_execute_another_program(built: Path, tmp_path: Path) -> None:
    """A signal that was to copy it is pending then, and would end the other one."""
    if tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2]) < (4, 14):
        pytest.skip("before 4.14 signals of timers cannot be sent as such")
    assert run(program(built), tmp_path / "a.spool", "replaced") == "0\n"


def test_the_environment_starts_it(built: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.c"
    plain.write_text("#include <unistd.h>\nint main(void) { sleep(1); return 0; }\n")
    output, spool = tmp_path / "plain", tmp_path / "a.spool"
    command = [compiler(), "-fno-omit-frame-pointer", str(plain), "-o", str(output)]
    subprocess.run(command, check=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(built)),
        "MACHTRACE_HANG": "250ms",
        "MACHTRACE_CPU": "80%/60s",
        "MACHTRACE_MEMORY": "500MB",
        "MACHTRACE_SPOOL": str(spool),
    }
    done = subprocess.run([str(output)], check=True, capture_output=True, env=environment)
    assert done.stderr == b""
    rows = incidents(spool_format.read(spool))
    assert {row.kind for row in rows} == {HANG}
    assert rows[0].limit == 250_000_000


@pytest.mark.parametrize(
    ("text", "limit"), [("1", 1), ("4KB", 4000), ("64KiB", 65536), ("1MiB", 1 << 20)]
)
def test_units_of_memory(built: Path, tmp_path: Path, text: str, limit: int) -> None:
    spool = tmp_path / "a.spool"
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(built)),
        "MACHTRACE_MEMORY": text,
        "MACHTRACE_SPOOL": str(spool),
    }
    command = ["/bin/sleep", "1"]
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    assert done.stderr == b""
    rows = incidents(spool_format.read(spool))
    assert {(row.kind, row.limit) for row in rows} == {(MEMORY, limit)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("HANG", text) for text in ("250 parsecs", "250", "5000000s", "ms")),
        *(("CPU", text) for text in ("80", "80%/x", "80%/0s", "0%")),
        *(("MEMORY", text) for text in ("-", "-1", "1GiBs", "9999999999GiB")),
    ],
)
def test_invalid_variables_are_named(built: Path, tmp_path: Path, name: str, text: str) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(built)),
        f"MACHTRACE_{name}": text,
        "MACHTRACE_SPOOL": str(tmp_path / "a.spool"),
    }
    done = subprocess.run(["/bin/true"], check=True, capture_output=True, env=environment)
    assert done.stderr.decode() == f"machtrace: MACHTRACE_{name} is invalid\n"
    assert not (tmp_path / "a.spool").exists()


def test_large_limits_are_valid(built: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(built)),
        "MACHTRACE_CPU": "80%",
        "MACHTRACE_MEMORY": "8589934592",
        "MACHTRACE_SPOOL": str(tmp_path / "a.spool"),
    }
    done = subprocess.run(["/bin/true"], check=True, capture_output=True, env=environment)
    assert done.stderr == b""
    assert incidents(spool_format.read(tmp_path / "a.spool")) == []
