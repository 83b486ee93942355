"""Kills writers of a warehouse at random instants: ``python -m tests.warehouse.killing N SEED``.

Each writer is forked from this process, which has everything loaded. It first recovers, and
compares what is there with what earlier ones acknowledged. Then one of its threads receives while
another one flushes, names, joins, deletes, decides and groups, until it is killed. Some are
killed while they recover. A JSON document with the figures is printed at the end.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import duckdb  # noqa: F401 - loaded once for all writers

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.warehouse.triage import State
from machtrace.warehouse.warehouse import Warehouse

DEMO = Path(__file__).parents[2] / "src" / "machtrace" / "targets" / "emulator" / "demo.macho"
_ROUNDS = 100
"""Kills of one warehouse, which grows with each."""
_STACKS = 2
"""Stacks of a report: the crashed thread's, and the subject."""


def report(incident: str, device: str, image: str, offset: int) -> bytes:
    """Return a report of a crash, in the form of Apple's, with a frame of an image."""
    head = {"incident_id": incident, "bug_type": "309"}
    body = {
        "procName": "Demo",
        "crashReporterKey": device,
        "incident": incident,
        "exception": {"type": "EXC_CRASH"},
        "faultingThread": 0,
        "threads": [{"triggered": True, "frames": [{"imageOffset": offset, "imageIndex": 0}]}],
        "usedImages": [{"base": 4096, "size": 1 << 20, "uuid": image, "name": "Demo"}],
    }
    return json.dumps(head).encode() + b"\n" + json.dumps(body).encode()


def demo_image() -> tuple[str, list[int]]:
    """Return the UUID of a program, and the offsets of its functions."""
    contents = MachOFileContents(DEMO.read_bytes(), str(DEMO))
    start = contents.image.text_segment.vmaddr
    return str(contents.image.uuid), [
        each - start for each in parse_symbols(contents).n_value.tolist()
    ]


@dataclass
class Known:
    """All that writers stated so far."""

    sent: dict[str, str] = field(default_factory=dict)
    """By incident: the device."""
    stored: set[str] = field(default_factory=set)
    """Incidents that were acknowledged."""
    deleting: set[str] = field(default_factory=set)
    """Devices whose deletion began."""
    deleted: set[str] = field(default_factory=set)
    """Devices whose deletion was acknowledged."""
    decisions: dict[str, str] = field(default_factory=dict)
    """By note: the issue."""

    def read(self, line: str) -> None:
        """Apply a line of a writer's."""
        match line.split(" "):
            case ["sent", incident, device]:
                self.sent[incident] = device
            case ["stored", incident]:
                self.stored.add(incident)
            case ["deleting", device]:
                self.deleting.add(device)
            case ["deleted", device]:
                self.deleted.add(device)
            case ["there", device]:
                self.deleting.discard(device)
            case ["decided", note, issue]:
                self.decisions[note] = issue


class Writer:
    """The process that is killed."""

    def __init__(self, folder: Path, known: Known, out: int, name: str) -> None:
        self._known = known
        self._out = out
        self._name = name
        self._chance = random.Random(name)  # noqa: S311 - to repeat a run
        self._image, self._offsets = demo_image()
        self._warehouse = Warehouse(folder)
        complete = set(known.sent.values()) - known.deleting
        self._mine = sorted(complete)  # nobody sends more of these

    def run(self) -> None:
        """Recover, compare, and write until the end."""
        began = time.monotonic()
        self._warehouse.flush()
        recovered = time.monotonic() - began
        self._compare()
        self._say(f"ready {recovered:.4f}")
        Thread(target=self._receive, daemon=True).start()
        while True:
            self._chance.choices(
                (self._flush, self._name_frames, self._join, self._delete, self._decide, self._old),
                (40, 8, 14, 10, 10, 3),
            )[0]()

    def _compare(self) -> None:
        known, warehouse = self._known, self._warehouse
        problems = [str(each) for each in warehouse.check()]
        problems += [row.reason for row in warehouse.quarantined]
        there: list[str] = []
        stacks = 0
        for row in warehouse.segments:
            segment = warehouse.segment(row.id)
            there += segment.reports["incident"].to_pylist()
            stacks += segment.occurrences.num_rows
        problems += [] if len(there) == len(set(there)) else ["a report is there twice"]
        problems += [] if stacks == _STACKS * len(there) else ["stacks are missing"]
        of_device: dict[str, list[str]] = {}
        for incident in known.stored:
            of_device.setdefault(known.sent[incident], []).append(incident)
        logs = b"".join(path.read_bytes() for path in (warehouse.folder / "log").iterdir())
        now = set(there)
        for device, incidents in of_device.items():
            left = now.intersection(incidents)
            is_gone = device in known.deleted or (device in known.deleting and not left)
            if is_gone and (left or device.encode() in logs):
                problems.append(f"{device} was deleted, and is there")
            if not is_gone and len(left) != len(incidents):
                problems.append(f"{device} has lost {set(incidents) - left}")
            if device in known.deleting - known.deleted:
                self._say(f"deleted {device}" if is_gone else f"there {device}")
        problems += [f"nobody sent {each}" for each in now - known.sent.keys()]
        for incident in now - known.stored:  # it was written, and not acknowledged
            self._say(f"stored {incident}")
        notes = {row.note for rows in warehouse.decisions().values() for row in rows}
        problems += [f"the decision {key} is lost" for key in known.decisions.keys() - notes]
        for problem in problems:
            self._say(f"problem {problem}")

    def _receive(self) -> None:
        chance = random.Random(f"{self._name} receive")  # noqa: S311 - to repeat a run
        for number in range(1 << 30):
            device = f"device-{self._name}-{number // 2}-"
            incidents = [f"{device}{number}-{at}" for at in range(chance.randrange(1, 6))]
            bodies = [
                (incident, report(incident, device, self._image, chance.choice(self._offsets)))
                for incident in incidents
            ]
            self._say(*(f"sent {incident} {device}" for incident in incidents))
            self._warehouse.receive(bodies)
            self._say(*(f"stored {incident}" for incident in incidents))
            if number % 2:
                self._mine.append(device)  # no report of it follows
            time.sleep(chance.random() * 0.02)

    def _flush(self) -> None:
        self._warehouse.flush()

    def _name_frames(self) -> None:
        self._warehouse.name([DEMO])

    def _join(self) -> None:
        self._warehouse.compact()

    def _delete(self) -> None:
        if self._mine:
            device = self._mine.pop(self._chance.randrange(len(self._mine)))
            self._say(f"deleting {device}")
            self._warehouse.delete_device(device)
            self._say(f"deleted {device}")

    def _old(self) -> None:
        self._warehouse.expire(raw=time.time_ns() - self._chance.randrange(10**9))

    def _decide(self) -> None:
        self._warehouse.regroup()
        issues = [each.id for each in self._warehouse.issues()]
        if issues:
            note = f"note-{self._name}-{self._chance.random()}"
            issue = self._warehouse.decide(self._chance.choice(issues), State.RESOLVED, note)
            self._say(f"decided {note} {issue}")

    def _say(self, *lines: str) -> None:
        os.write(self._out, "".join(f"{line}\n" for line in lines).encode())


def kill_one(folder: Path, known: Known, chance: random.Random, name: str) -> tuple[str, float]:
    """Fork a writer, kill it, and return what it wrote that was wrong, and its recovery's time."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            Writer(folder, known, writing, name).run()
        except BaseException:  # noqa: BLE001 - the parent states it
            os.write(writing, f"problem {traceback.format_exc()!r}\n".encode())
        finally:
            os._exit(1)
    os.close(writing)
    is_early = chance.random() < 0.2
    left = chance.random() * (0.06 if is_early else 0.4)
    end = time.monotonic() + (left if is_early else 120)
    data, is_ready = b"", is_early
    while (wait := end - time.monotonic()) > 0:
        if not select.select([reading], [], [], wait)[0]:
            break
        part = os.read(reading, 1 << 16)
        data += part
        if not part or b"\nproblem " in data:
            break
        if not is_ready and (data.startswith(b"ready ") or b"\nready " in data):
            is_ready, end = True, time.monotonic() + left
    os.kill(child, signal.SIGKILL)
    while part := os.read(reading, 1 << 16):
        data += part
    os.close(reading)
    os.waitpid(child, 0)
    lines = data.decode().split("\n")[:-1]
    for line in lines:
        known.read(line)
    problems = [line for line in lines if line.startswith("problem ")]
    times = [float(line.split()[1]) for line in lines if line.startswith("ready ")]
    if not is_ready:
        problems.append("it was never ready")
    return "; ".join(problems), times[0] if times else 0.0


def main(count: int, seed: int) -> dict[str, object]:
    """Kill some writers, and return the figures."""
    chance = random.Random(seed)  # noqa: S311 - to repeat a run
    figures = {"kills": 0, "while_recovering": 0, "reports": 0, "deleted": 0, "decisions": 0}
    slowest, problems = 0.0, []
    began = time.monotonic()
    while figures["kills"] < count and not problems:
        folder = Path(tempfile.mkdtemp(prefix="machtrace-kills-")) / "w"
        Warehouse.create(folder).close()
        known = Known()
        for _ in range(min(_ROUNDS, count - figures["kills"])):
            wrong, recovery = kill_one(folder, known, chance, f"{seed}-{figures['kills']}")
            figures["kills"] += 1
            figures["while_recovering"] += recovery == 0.0
            slowest = max(slowest, recovery)
            if wrong:
                problems.append(wrong)
                break
        figures["reports"] += len(known.stored)
        figures["deleted"] += len(known.deleted)
        figures["decisions"] += len(known.decisions)
        if not problems:
            shutil.rmtree(folder.parent)
        else:
            problems.append(f"the warehouse is at {folder}")
    seconds = round(time.monotonic() - began, 1)
    return {**figures, "slowest_recovery": slowest, "seconds": seconds, "problems": problems}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))  # noqa: T201 - the answer
