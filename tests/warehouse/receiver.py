"""Receives reports until it is killed: ``python -m tests.warehouse.receiver FOLDER SEED``.

A line is printed for each acknowledged report, with its incident. Now and then it makes segments,
and compacts.
"""

from __future__ import annotations

import json
import os
import random
import sys

from machtrace.warehouse.warehouse import Warehouse


def report(incident: str) -> bytes:
    """Return a report that is its own incident, in the form of KSCrash's."""
    document = {
        "report": {"id": incident, "type": "standard", "timestamp": "2026-11-23T10:00:00Z"},
        "process": {},
        "system": {"CFBundleIdentifier": "org.example.killed"},
        "binary_images": [],
        "crash": {
            "error": {"type": "signal", "signal": {"signal": 6, "name": "SIGABRT"}},
            "threads": [
                {
                    "index": 0,
                    "crashed": True,
                    "current_thread": True,
                    "backtrace": {
                        "contents": [{"instruction_addr": 4096 + hash(incident) % 64}],
                        "skipped": 0,
                    },
                }
            ],
        },
    }
    return json.dumps(document).encode()


def main() -> None:
    """Receive until the end."""
    chance = random.Random(int(sys.argv[2]))  # noqa: S311 - to repeat a run
    number = 0
    with Warehouse(sys.argv[1]) as warehouse:
        while True:
            incidents = [f"{os.getpid()}-{number + at}" for at in range(chance.randrange(1, 9))]
            number += len(incidents)
            warehouse.receive([(each, report(each)) for each in incidents])
            # Acknowledged: these must be there, whatever happens now.
            sys.stdout.write("".join(f"{each}\n" for each in incidents))
            sys.stdout.flush()
            if chance.random() < 0.3:
                warehouse.flush()
            if chance.random() < 0.05:
                warehouse.compact()


if __name__ == "__main__":
    main()
