"""Spools of real programs, as reports: the calls that the programs counted, with their names."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import machtrace as mt
from machtrace.errors import FormatError, MachtraceError
from machtrace.model.report import Report
from machtrace.reports.analysis.watched_calls import watched_calls
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.spool.facts import RuleState, spool_facts
from machtrace.reports.spool.spool import Spool
from tests.agent import spool_format
from tests.agent.build import SPOOL, build, library, numbers, run
from tests.agent.readers import check_readers_agree
from tests.agent.test_hooks import linked, shared

pytestmark = pytest.mark.live


@pytest.fixture
def calls(built: Path, tmp_path: Path) -> tuple[Path, dict[str, float]]:
    """Return a spool, and what its program counted."""
    path = tmp_path / "app.spool"
    return path, numbers(run(linked(built, "calls.c", "library"), path, 4, 30_000, 5))


def machtrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "machtrace", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_every_call_of_a_program_is_in_the_report(calls: tuple[Path, dict[str, float]]) -> None:
    path, counted = calls
    spool = check_readers_agree(path)
    (report,) = mt.read_reports(path)
    facts = spool_facts(report)
    assert facts is not None
    watched, absent = facts.rules
    assert (watched.symbol, watched.state) == ("observed", RuleState.WATCHED)
    assert watched.slots > 0
    assert watched.calls == counted["first"] + counted["second"] == 120_000
    assert watched.calls - watched.timed == spool.cells["calls"].sum()
    assert (absent.symbol, absent.state, absent.calls) == ("not_there", RuleState.NOT_DEFINED, 0)
    (tree,) = report.trees
    assert (tree.name, tree.count, tree.root_samples) == ("observed", 120_000, 120_000)
    assert report.process.name is not None
    assert report.process.name.startswith("calls-")
    assert report.process.pid == spool.pid
    assert not any("the agent was not stopped" in warning for warning in report.warnings)


def named(path: Path, folder: Path) -> Report:
    """Return a report with the names that the command finds."""
    output = folder / "named.json"
    done = machtrace("symbolicate", path, "-f", "json", "-o", output)
    assert done.returncode == 0, done.stderr
    (report,) = mt.read_reports(output)
    return report


def test_stacks_have_the_names_of_the_program(
    calls: tuple[Path, dict[str, float]], tmp_path: Path
) -> None:
    path, counted = calls
    listed = watched_calls(named(path, tmp_path), 100)
    assert listed is not None
    # The two sites in `descend`, each at 1 to 5 levels of it.
    assert len(listed.stacks) == listed.functions[0].facts.stacks == 10
    by_site: dict[int | None, int] = {}
    for stack in listed.stacks:
        names = [frame.symbol.name for frame in stack.frames if frame.symbol is not None]
        assert "run" in names[1:6]
        depth = names.index("run")
        assert set(names[:depth]) == {"descend"}
        # The compiler may give both sites one line, but not one address.
        site = stack.frames[0].offset
        by_site[site] = by_site.get(site, 0) + stack.calls
        assert stack.frames[0].location is not None
    assert sorted(by_site.values()) == sorted([counted["first"], counted["second"]])
    assert [stack.calls for stack in listed.stacks] == sorted(
        (stack.calls for stack in listed.stacks), reverse=True
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("out.html", "not_there: 0 calls, not defined"),
        ("out.folded", ";observed "),
        ("out.speedscope.json", '"observed"'),
        ("out.firefox.json", '"observed"'),
        ("out.json", '"spool"'),
        ("out.crash", "observed: 120,000 calls, watched"),
    ],
)
def test_convert_writes_every_format(
    calls: tuple[Path, dict[str, float]], tmp_path: Path, name: str, content: str
) -> None:
    done = machtrace("convert", calls[0], tmp_path / name)
    assert done.returncode == 0, done.stderr
    assert content in (tmp_path / name).read_text()


def test_report_lists_functions_and_stacks(
    calls: tuple[Path, dict[str, float]], tmp_path: Path
) -> None:
    path, counted = calls
    packed = tmp_path / "app.spool.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    done = machtrace("report", packed, "--top", 3)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "120,000 calls, the agent was stopped" in lines[0]
    rows = [line.split() for line in lines]
    assert ["120,000", "10", "observed", "watched,"] in [row[:4] for row in rows]
    assert ["0", "0", "not_there", "not", "defined"] in rows
    assert sum("calls of observed, " in line for line in lines) == 3
    assert any("descend + " in line for line in lines)
    document = json.loads(machtrace("report", path, "--format", "json").stdout)
    (spool,) = document["spools"]
    assert spool["functions"][0]["calls"] == counted["first"] + counted["second"]
    assert spool["stacks"][0]["frames"][0]["name"] == "descend"


def test_a_killed_process_has_all_that_was_stored(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "app.spool"
    program = linked(built, "calls.c", "library")
    command: Sequence[object] = (program, path, 3, 1 << 40, 9)
    process = subprocess.Popen([*map(str, command)])
    while not path.exists() or not Spool.read(path).calls.any():
        time.sleep(0.02)
    running = Spool.read(path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    spool = check_readers_agree(path)
    assert not running.is_stopped
    assert not spool.is_stopped
    assert 0 < running.calls[0] <= spool.calls[0]
    (report,) = mt.read_reports(path)
    assert report.incident.kind == "killed or running"
    assert report.warnings[0].startswith("the agent was not stopped")
    assert sum(tree.root_samples for tree in report.trees) == spool.sums()["calls"].sum()


def test_records_of_a_killed_writer_are_read(built: Path, tmp_path: Path) -> None:
    seed = random.Random(7)  # noqa: S311 - when to kill is no secret
    program = build(built, "spool_writer.c", SPOOL)
    path, progress = tmp_path / "app.spool", tmp_path / "progress"
    for _ in range(12):
        progress.write_bytes(bytes(4096))
        command: Sequence[object] = (program, path, 1 << 18, progress, 1, 16)
        process = subprocess.Popen([*map(str, command)])
        while progress.read_bytes()[:8] == bytes(8):
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(seed.random() * 0.03)
        process.kill()
        process.wait()
        expected, spool = spool_format.read(path), Spool.read(path)
        # The writer's stacks have no nodes: they count as unknown ones.
        assert spool.sums()["calls"].sum() == sum(expected.sums().values())
        assert all("stack is not in the file" in problem for problem in spool.problems)
        # Its incidents are arbitrary bytes.
        assert spool.unknown_records.get(spool_format.INCIDENT, 0) == len(expected.log)


def test_images_of_several_eras_are_told_apart(built: Path, tmp_path: Path) -> None:
    plugin = shared(built, "plugin")
    path = tmp_path / "app.spool"
    run(linked(built, "scenarios.c", "library"), path, "plugins", plugin)
    spool = check_readers_agree(path)
    assert str(plugin) in {image.path for image in spool.images}
    listed = watched_calls(named(path, tmp_path), 10)
    assert listed is not None
    assert dict(listed.functions[0].callers)[plugin.name] == 30


def test_the_outer_frames_of_a_cut_stack_are_unknown(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "app.spool"
    run(linked(built, "scenarios.c", "library"), path, "deep", 64 * 16384 + 100)
    spool = check_readers_agree(path)
    assert len(spool.stack(int(spool.events["stack"][0]))) == 16384
    (report,) = mt.read_reports(path)
    symbol = report.trees[0].nodes[0].frame.symbol
    assert symbol is not None
    assert symbol.name == "[unknown callers]"
    assert "stacks without outer frames, since they were too deep: 1" in report.warnings


def test_mutated_bytes_are_a_report_or_an_error(calls: tuple[Path, dict[str, float]]) -> None:
    data = calls[0].read_bytes()
    seed = random.Random(11)  # noqa: S311 - no secret
    used = len(data.rstrip(b"\0"))
    for number in range(40):
        changed = bytearray(data)
        for _ in range(1 + number % 5):
            changed[seed.randrange(512 if number % 2 else used)] = seed.getrandbits(8)
        if number % 4 == 3:
            del changed[seed.randrange(used) :]
        try:
            spool = Spool.parse(bytes(changed), "mutated")
            (report,) = read_source(ReportSource("mutated", bytes(changed))).reports
        except MachtraceError:
            continue
        total = sum(tree.root_samples for tree in report.trees)
        assert total == sum(spool.sums()["calls"].tolist())


def test_another_version_is_an_error(calls: tuple[Path, dict[str, float]]) -> None:
    path, _ = calls
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(FormatError, match="version 9") as raised:
        mt.read_reports(path)
    assert raised.value.remedy == "read it with a machtrace that is as new as the agent"


def test_functions_that_are_only_counted_have_their_calls(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "app.spool"
    environment = {
        "LD_PRELOAD": str(library(built)),
        "MACHTRACE_COUNT": "getppid",
        "MACHTRACE_SPOOL": str(path),
    }
    program = "import os\nfor _ in range(321): os.getppid()"
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | environment)
    (report,) = mt.read_reports(path)
    assert report.application_information[0][1] == (
        "getppid: 321 calls, watched, 1 import slot, stacks are not taken",
    )
