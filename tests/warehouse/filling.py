"""Fills the disk at every step of a warehouse: ``python -m tests.warehouse.filling FOLDER STRIDE``.

The library of ``full_disk.c`` is preloaded.

Each change of a warehouse is made again and again, in a forked process, with room for one more
call each time. It succeeds, or fails with an error of ours; with room again nothing is lost, and
the same change succeeds. A JSON document with the numbers of steps and the problems is printed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import duckdb  # noqa: F401 - loaded once

from machtrace.errors import MachtraceError
from machtrace.warehouse.triage import State
from machtrace.warehouse.warehouse import Warehouse
from tests.warehouse.killing import DEMO, demo_image, report

_MAX_STEPS = 1000
"""Steps of a change."""


def incidents(warehouse: Warehouse) -> set[str]:
    """Return the stored incidents, each of which must be there once."""
    tables = [warehouse.segment(row.id).reports["incident"] for row in warehouse.segments]
    every = [name for table in tables for name in table.to_pylist()]
    assert len(every) == len(set(every)), "a report is there twice"
    return set(every)


def _receive(warehouse: Warehouse) -> None:
    image, offsets = demo_image()
    warehouse.receive([("new", report("new", "device-3-", image, offsets[0]))])


def _delete(warehouse: Warehouse) -> None:
    warehouse.delete_device("device-1-")


def _name(warehouse: Warehouse) -> None:
    warehouse.name([DEMO])


def _expire(warehouse: Warehouse) -> None:
    warehouse.expire(raw=1 << 62)


def _decide(warehouse: Warehouse) -> None:
    warehouse.regroup()
    warehouse.decide(warehouse.issues()[0].id, State.IGNORED, "a note")


CHANGES: dict[str, Callable[[Warehouse], object]] = {
    "receive": _receive,
    "flush": Warehouse.flush,
    "compact": Warehouse.compact,
    "name": _name,
    "delete": _delete,
    "expire": _expire,
    "decide": _decide,
    "retry": Warehouse.retry,
}


def prepare(folder: Path) -> None:
    """Make a warehouse with two segments, a record in quarantine, and some in the log alone."""
    image, offsets = demo_image()
    with Warehouse.create(folder) as warehouse:
        for number in range(3):
            bodies = [
                (each, report(each, f"device-{at}-", image, offsets[at]))
                for at in range(3)
                for each in [f"incident-{number}-{at}"]
            ]
            warehouse.receive(bodies)
            if number < 2:
                warehouse.flush()
            if not number:
                warehouse.receive([("bad", b"no report")])


def attempt(folder: Path, name: str, calls: int, disk: ctypes.CDLL) -> bool:
    """Make a change with room for some calls; return whether these were enough."""
    change = CHANGES[name]
    expected = {f"incident-{number}-{at}" for number in range(3) for at in range(3)}
    with Warehouse(folder) as warehouse:
        is_done = True
        disk.disk_has_room_for(ctypes.c_long(calls))
        try:
            change(warehouse)
        except MachtraceError:
            is_done = False
        is_enough = disk.disk_calls() <= calls
        disk.disk_has_room_for(ctypes.c_long(-1))
        assert is_done or not is_enough, "it fails without a reason"
        warehouse.flush()
        assert not list(warehouse.check())
        there = incidents(warehouse)
        if name == "receive":
            assert is_done == ("new" in there), "what was refused is there, or the contrary"
        if name == "delete" and not expected <= there:
            expected = {each for each in expected if not each.endswith("-1")}
        assert expected <= there, f"lost: {expected - there}"
        change(warehouse)
        assert not list(warehouse.check())
        assert name != "delete" or b"device-1-" not in b"".join(
            path.read_bytes() for path in (folder / "log").iterdir()
        )
    with Warehouse(folder) as warehouse:
        assert not list(warehouse.check())
    return is_enough


def main(folder: Path, stride: int = 1) -> dict[str, object]:
    """Return the number of steps of each change, and the problems.

    Args:
        folder: an empty one.
        stride: every how many steps the disk is full.
    """
    disk = ctypes.CDLL(None)
    prepare(folder / "prepared")
    steps: dict[str, int] = {}
    problems: list[str] = []
    for name in CHANGES:
        for calls in range(0, _MAX_STEPS, stride):
            copy = folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder / "prepared", copy)
            child = os.fork()
            if not child:
                status = 2
                try:
                    status = 0 if attempt(copy, name, calls, disk) else 1
                except BaseException:  # noqa: BLE001 - the parent states it
                    os.write(2, f"{name}, {calls} calls: {traceback.format_exc()}".encode())
                finally:
                    os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status not in (0, 1):
                problems.append(f"{name} with room for {calls} calls: status {status}")
            if status == 0:
                steps[name] = calls
                break
    return {"steps": steps, "problems": problems}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))  # noqa: T201 - the answer
