"""Further small reports, of forms that few files have; all of them made up here."""

from __future__ import annotations

import json

from tests.support.reports.samples import APP_BASE, APP_UUID, SYSTEM_BASE, SYSTEM_UUID
from tests.support.reports.sentry import (
    SENTRY_CHUNK,
    SENTRY_EXCEPTION,
    SENTRY_HANG,
    SENTRY_NATIVE,
    SENTRY_PROFILE,
    SENTRY_PYTHON,
)

STORE_LOGS = json.dumps(
    {
        "productData": [
            {
                "signatureId": "s1",
                "diagnosticInsights": [{"insightsCategory": "SQLiteSpill"}],
                "diagnosticLogs": [
                    {
                        "diagnosticMetaData": {
                            "event": "disk writes",
                            "osVersion": "iPhone OS 18.3 (22D63)",
                            "deviceType": "iPhone17,1",
                        },
                        "callStackTree": [
                            {
                                "callStacks": [
                                    {
                                        "callStackRootFrames": [
                                            {
                                                "offsetIntoBinaryTextSegment": "",
                                                "offsetIntoSymbol": "32",
                                                "symbolName": "_dispatch_call",
                                                "address": hex(SYSTEM_BASE + 0x84),
                                                "binaryUUID": str(SYSTEM_UUID).upper(),
                                                "binaryName": "libdispatch.dylib",
                                                "isBlameFrame": False,
                                                "lineNumber": "1466",
                                                "fileName": "init.c",
                                                "sampleCount": 51,
                                                "subFrames": [
                                                    {
                                                        "symbolName": "-[Writer write]",
                                                        "offsetIntoSymbol": "112",
                                                        "address": hex(APP_BASE + 0x1A0),
                                                        "binaryUUID": str(APP_UUID).upper(),
                                                        "binaryName": "App",
                                                        "isBlameFrame": True,
                                                        "sampleCount": 51,
                                                    }
                                                ],
                                            }
                                        ]
                                    }
                                ]
                            }
                        ],
                    }
                ],
            }
        ]
    }
).encode()
"""App Store Connect's: numbers are text, and roots are outermost frames."""


def _profile_frame(name: str, offset: int) -> dict[str, object]:
    return {
        "instruction_addr": APP_BASE + offset,
        "object_addr": APP_BASE,
        "object_name": "App",
        "object_uuid": str(APP_UUID).upper(),
        "symbol_addr": APP_BASE + offset - 16,
        "symbol_name": name,
    }


KSCRASH_PROFILE = json.dumps(
    {
        "report": {"id": "B", "version": "3.7.0", "type": "standard", "monitor_id": "profile"},
        "crash": {
            "error": {
                "type": "profile",
                "profile": {
                    "name": "launch",
                    "time_units": "nanoseconds",
                    "expected_sample_interval": 10_000_000,
                    "frames": [
                        _profile_frame("main", 0x100),
                        _profile_frame("work", 0x200),
                        _profile_frame("leaf", 0x300),
                    ],
                    "samples": [
                        {"time_start_uptime": 10, "duration": 3, "frames": [2, 1, 0]},
                        {"time_start_uptime": 20, "duration": 3, "frames": [1, 0]},
                        {"time_start_uptime": 30, "duration": 3, "frames": [2, 1, 0]},
                        {"time_start_uptime": 40, "duration": 3, "frames": [9, 0]},
                    ],
                },
            }
        },
        "system": {},
    }
).encode()
"""Sampled stacks, innermost frame first; images are in the frames alone."""

KSCRASH_RECRASH = json.dumps(
    {
        "report": {"id": "C", "version": "2.3.0"},
        "crash": {
            "error": {"type": "signal", "signal": {"name": "SIGBUS", "signal": 10}},
            "threads": [],
        },
        "binary_images": [
            {
                "image_addr": APP_BASE,
                "image_size": 0x8000,
                "name": "/x/App",
                "uuid": str(APP_UUID).upper(),
                "cpu_type": 0x0100000C,
                "cpu_subtype": 2,
            }
        ],
        "recrash_report": {
            "report": {"id": "D"},
            "crash": {
                "error": {
                    "type": "nsexception",
                    "nsexception": {"name": "NSRangeException", "reason": "index 5"},
                    "reason": "index 5",
                },
                "threads": [
                    {
                        "index": 0,
                        "crashed": True,
                        "backtrace": {"contents": [{"instruction_addr": APP_BASE + 0x104}]},
                    },
                    {
                        "index": 1,
                        "crashed": False,
                        "backtrace": {
                            "contents": [
                                {"instruction_addr": APP_BASE + 0x108},
                                {"instruction_addr": 0x0011_0000_0000_0000 | APP_BASE + 0x10C},
                            ]
                        },
                    },
                ],
            },
        },
    }
).encode()
"""KSCrash crashed while it wrote a report of an exception."""

PROCESS_BLOCKS = f"""\
Process:          adid [99159] [unique pid 696637]
UUID:             {str(APP_UUID).upper()}
Path:             /usr/libexec/adid
Num samples:      9 (1-9)

  Thread 0x3461855    9 samples (1-9)    priority 4 (base 4)
  9  start + 462 (dyld + 224) [0x1800000e0]
    6  <patched truncated backtrace>
      6  kevent64 + 10 (Framework + 416) [0x1000001a0]
        6  <Kernel mode, Effective Thread QoS User Interactive>
    3  ??? (Framework + 432) [0x1000001b0]

  Binary Images:
           0x100000000 -        0x100007fff  org.example.Framework 6.9 (1863) \
<{str(APP_UUID).upper()}> /x/Framework.framework/Framework
           0x180000000 -                ???  dyld (957) <{str(SYSTEM_UUID).upper()}> /usr/lib/dyld
""".encode()
"""Blocks that were copied out of a spindump, without what is before them."""

SWIFT_ARRAY = (
    b'symbols: ["0   App                                 0x0000000100003f50 $s3App3fooyyF + 4", '
    b'"1   dyld                                0x00000001800000e0 start + 2360"]\n'
)
"""What Swift prints of an array, in one line."""

OLD_LLDB = b"""\
* thread #1: tid = 0x1c03, 0x0000000100000f50 a.out`main + 16 at main.c:5, \
queue = 'com.apple.main-thread', stop reason = EXC_BAD_ACCESS (code=1, address=0x10)
    frame #2: 0x0000000100000f50 a.out`main + 16 at main.c:5 [opt] [artificial]
"""
"""A heading as lldb had it until 2014, and frames from the third one on."""

REPORT_VARIANTS: dict[str, bytes] = {
    "App Store Connect": STORE_LOGS,
    "a profile of KSCrash": KSCRASH_PROFILE,
    "a crash in KSCrash": KSCRASH_RECRASH,
    "an exception of Sentry": SENTRY_EXCEPTION,
    "a hang of Sentry": SENTRY_HANG,
    "a Linux crash of Sentry": SENTRY_NATIVE,
    "an error of Sentry in Python": SENTRY_PYTHON,
    "a profile of Sentry": SENTRY_PROFILE,
    "a chunk of Sentry's profiles": SENTRY_CHUNK,
    "blocks of a spindump": PROCESS_BLOCKS,
    "an array of Swift": SWIFT_ARRAY,
    "an old lldb": OLD_LLDB,
}
"""By what they are."""
