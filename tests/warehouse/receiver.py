"""Reports that are their own incidents."""

from __future__ import annotations

import json


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
