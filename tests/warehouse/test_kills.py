"""A writer that is killed, torn or without room loses nothing that it acknowledged.

``MACHTRACE_KILLS=10000`` sets the number of kills, ``MACHTRACE_DISK_STEPS=1`` fills the disk at
every step of a change instead of some.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from machtrace.errors import FormatError
from machtrace.warehouse.schema import TABLES
from machtrace.warehouse.segment_files import read_table
from machtrace.warehouse.warehouse import Warehouse
from tests.support.reports.samples import IPS, REPORT_SAMPLES
from tests.warehouse.filling import CHANGES, incidents

KILLS = int(os.environ.get("MACHTRACE_KILLS", "40"))
DISK_STEPS = int(os.environ.get("MACHTRACE_DISK_STEPS", "9"))
"""Every how many steps the disk is full."""
FILES = [("a.ips", IPS), ("b.txt", REPORT_SAMPLES["sample"])]
_TORN = 61
"""Every how many bytes a file is cut that takes a while to read."""


@pytest.mark.peer
@pytest.mark.timeout(120 + 10 * KILLS)
def test_sigkill_at_random_instants():
    """Each writer continues with the folder that the one before left, and compares."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    command = [sys.executable, "-m", "tests.warehouse.killing", str(KILLS), "17"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures = json.loads(done.stdout)
    assert figures["problems"] == []
    assert figures["kills"] == KILLS
    assert figures["reports"] > 0


@pytest.mark.peer
@pytest.mark.timeout(1800)
def test_a_disk_that_is_full_at_any_step(tmp_path):
    """It fails as a whole, with an error of ours; with room again nothing is lost."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the disk is filled by a preloaded library, which a C compiler makes on Linux")
    library = tmp_path / "full_disk.so"
    source = Path(__file__).with_name("full_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    folder = tmp_path / "work"
    folder.mkdir()
    command = [sys.executable, "-m", "tests.warehouse.filling", str(folder), str(DISK_STEPS)]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    answer = json.loads(done.stdout)
    assert answer["problems"] == []
    assert answer["steps"].keys() == CHANGES.keys()


def test_a_log_that_is_torn_is_read_up_to_there(tmp_path):
    """``tests.warehouse.test_log`` cuts it at every byte."""
    folder = tmp_path / "w"
    with Warehouse.create(folder) as warehouse:
        ends = [int(name.partition("-")[2]) for name in warehouse.receive(FILES)]
    log = folder / "log" / "00000001.log"
    whole = log.read_bytes()
    for size in range(0, len(whole), _TORN):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        (copy / "log" / log.name).write_bytes(whole[:size])
        with Warehouse(copy) as warehouse:
            warehouse.receive([("c.txt", REPORT_SAMPLES["spindump"])])
            added = warehouse.flush()
            assert added.quarantined == 0
            assert added.reports == 1 + sum(end <= size for end in ends[1:])
            assert not list(warehouse.check())


def test_a_segment_that_is_being_written_does_not_exist(tmp_path):
    """It has another name, or no row in the manifest; however much of it there is."""
    folder = tmp_path / "w"
    with Warehouse.create(folder) as warehouse:
        warehouse.receive(FILES[:1])
        warehouse.flush()
        segment = warehouse.segment_folder(warehouse.segments[0].id)
        for file in segment.iterdir():
            data = file.read_bytes()
            for size in (0, 1, len(data) // 2, len(data) - 1, len(data)):
                for name in (".unfinished-00000009", "00000009"):
                    torn = segment.with_name(name)
                    torn.mkdir()
                    (torn / file.name).write_bytes(data[:size])
                    warehouse.flush()
                    assert not torn.exists()
        assert not list(warehouse.check())
        assert len(incidents(warehouse)) == 1


def test_a_file_of_a_segment_that_is_cut_at_any_byte_is_damage(tmp_path):
    with Warehouse.create(tmp_path / "w") as warehouse:
        warehouse.receive(FILES[1:])
        warehouse.flush()
        segment = warehouse.segment_folder(warehouse.segments[0].id)
    torn = tmp_path / "torn.parquet"
    for name in TABLES:
        data = (segment / f"{name}.parquet").read_bytes()
        for size in range(len(data)):
            torn.write_bytes(data[:size])
            with pytest.raises(FormatError):
                read_table(torn, name)


def test_a_torn_journal_of_the_manifest_is_an_earlier_state(tmp_path):
    """SQLite cuts off the transaction that is not whole; the log has its records."""
    first = Warehouse.create(tmp_path / "w")
    first.receive(FILES)
    journal = first.folder / "manifest.sqlite-wal"
    before = journal.stat().st_size
    first.flush()
    first.receive(FILES)
    shutil.copytree(first.folder, tmp_path / "killed")
    first.close()
    data = (tmp_path / "killed" / journal.name).read_bytes()
    for size in range(before, len(data), _TORN * 16):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "killed", copy)
        (copy / journal.name).write_bytes(data[:size])
        with Warehouse(copy) as warehouse:
            warehouse.flush()
            assert not list(warehouse.check())
            assert sum(row.reports for row in warehouse.segments) == len(FILES)
