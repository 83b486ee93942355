"""Small reports of every kind, for tests and for the fuzzer; all of them made up here."""

from __future__ import annotations

import json
from io import StringIO
from uuid import UUID

from machtrace.render import firefox
from machtrace.render.pprof import Message
from tests.support.reports.logs import (
    BS,
    CALL_STACK_SYMBOLS,
    FOLDED,
    GDB,
    LLDB,
    SANITIZER,
    SPEEDSCOPE,
    SWIFT,
)
from tests.support.reports.models import Seen, function, profile
from tests.support.reports.sentry import SENTRY_CRASH
from tests.support.writers.spool import SPOOL

APP_UUID = UUID("82d13d98-219e-3040-b62a-07a297007a7c")
SYSTEM_UUID = UUID("a5d3b725-78c3-3e19-a765-cceb22355093")
APP_BASE = 0x1_0000_0000
SYSTEM_BASE = 0x1_8000_0000

IPS = (
    json.dumps(
        {
            "app_name": "App",
            "timestamp": "2026-02-03 04:05:06.00 +0100",
            "bug_type": "309",
            "os_version": "iPhone OS 18.3 (22D63)",
            "incident_id": "11111111-2222-3333-4444-555555555555",
            "new_key": {"kept": [1, None]},
        }
    )
    + "\n"
    + json.dumps(
        {
            "procName": "App",
            "procPath": "/private/var/App.app/App",
            "pid": 455,
            "cpuType": "ARM-64",
            "captureTime": "2026-02-03 04:05:06.7890 +0100",
            "osVersion": {"train": "iPhone OS 18.3", "build": "22D63", "isEmbedded": True},
            "bundleInfo": {"CFBundleIdentifier": "org.example.app", "DTAppStoreToolsBuild": "16"},
            "exception": {"type": "EXC_CRASH", "signal": "SIGABRT", "rawCodes": [0, 0]},
            "termination": {"namespace": "SIGNAL", "code": 6, "details": ["said", "more"]},
            "asi": {"libsystem_c.dylib": ["abort() called"]},
            "lastExceptionBacktrace": [{"imageOffset": 100, "imageIndex": 1}],
            "faultingThread": 0,
            "threads": [
                {
                    "triggered": True,
                    "id": 700,
                    "queue": "com.apple.main-thread",
                    "threadState": {
                        "x": [{"value": 1}, {"value": 2**64 - 1, "symbol": "kept"}],
                        "flavor": "ARM_THREAD_STATE64",
                        "pc": {"value": SYSTEM_BASE + 72, "matchesCrashFrame": 1},
                        "esr": {"value": 2, "description": "Address size fault"},
                    },
                    "frames": [
                        {
                            "imageOffset": 72,
                            "symbol": "__pthread_kill",
                            "symbolLocation": 8,
                            "imageIndex": 1,
                        },
                        {
                            "imageOffset": 0x1A0,
                            "symbol": "inner",
                            "inline": True,
                            "imageIndex": 0,
                            "sourceFile": "a.m",
                            "sourceLine": 3,
                        },
                        {"imageOffset": 0x1A0, "imageIndex": 0},
                        {"imageOffset": 5, "imageIndex": 99},
                    ],
                },
                {"id": 701, "name": "worker", "frames": []},
            ],
            "usedImages": [
                {
                    "source": "P",
                    "arch": "arm64",
                    "base": APP_BASE,
                    "size": 0x8000,
                    "uuid": str(APP_UUID),
                    "path": "/private/var/App.app/App",
                    "name": "App",
                },
                {
                    "source": "S",
                    "arch": "arm64e",
                    "base": SYSTEM_BASE,
                    "size": 0x4000,
                    "uuid": str(SYSTEM_UUID),
                    "path": "/usr/lib/system/libsystem_kernel.dylib",
                    "name": "libsystem_kernel.dylib",
                },
            ],
            "vmSummary": "a\nb\n",
        }
    )
).encode()

CRASH = f"""\
Incident Identifier: 11111111-2222-3333-4444-555555555555
CrashReporter Key:   abc
Hardware Model:      iPhone17,1
Process:             App [455]
Path:                /private/var/App.app/App
Identifier:          org.example.app
Version:             1.2 (34)
Code Type:           ARM-64 (Native)
Parent Process:      launchd [1]

Date/Time:           2026-02-03 04:05:06.7890 +0100
OS Version:          iPhone OS 18.3 (22D63)
Report Version:      104

Exception Type:  EXC_BAD_ACCESS (SIGSEGV)
Exception Subtype: KERN_INVALID_ADDRESS at 0x0000000000000010
Exception Codes: 0x0000000000000001, 0x0000000000000010
Termination Reason: SIGNAL 11 Segmentation fault: 11

Triggered by Thread:  0

Thread 0 name:   Dispatch queue: com.apple.main-thread
Thread 0 Crashed:
0   libsystem_kernel.dylib        \t       0x180000048 __pthread_kill + 8
1   App                           \t       0x1000001a0 0x100000000 + 416

Thread 1 name:  worker
Thread 1:
0   App                           \t       0x100000200 -[A b:] + 4 (a.m:7)

Thread 0 crashed with ARM Thread State (64-bit):
    x0: 0x0000000000000001   x1: 0x0000000000000002
    sp: 0x000000016dbcce30   pc: 0x0000000180000048 cpsr: 0x60001000
   far: 0x0000000000000010  esr: 0x92000006 (Data Abort) byte read Translation fault

Binary Images:
       0x100000000 -        0x100007fff App arm64  <{APP_UUID.hex}> /private/var/App.app/App
       0x180000000 -        0x180003fff libsystem_kernel.dylib arm64e  <{SYSTEM_UUID.hex}> /k

EOF
""".encode()


def _nested(names: list[tuple[str, UUID, int]], *, samples: int = 1) -> dict[str, object]:
    """Frames in each other, the first outermost in the file."""
    found: dict[str, object] | None = None
    for name, uuid, offset in reversed(names):
        base = APP_BASE if uuid == APP_UUID else SYSTEM_BASE
        frame: dict[str, object] = {
            "binaryUUID": str(uuid).upper(),
            "binaryName": name,
            "offsetIntoBinaryTextSegment": offset,
            "address": base + offset,
            "sampleCount": samples,
        }
        if found is not None:
            frame["subFrames"] = [found]
        found = frame
    return found or {}


METRICKIT = json.dumps(
    {
        "timeStampBegin": "2026-02-02 00:00:00",
        "timeStampEnd": "2026-02-03 00:00:00",
        "crashDiagnostics": [
            {
                "version": "1.0.0",
                "callStackTree": {
                    "callStackPerThread": True,
                    "callStacks": [
                        {
                            "threadAttributed": True,
                            "callStackRootFrames": [
                                _nested(
                                    [
                                        ("libsystem_kernel.dylib", SYSTEM_UUID, 72),
                                        ("App", APP_UUID, 0x1A0),
                                        ("dyld", UUID(int=9), 0x40),
                                    ]
                                )
                            ],
                        }
                    ],
                },
                "diagnosticMetaData": {
                    "osVersion": "iPhone OS 18.3 (22D63)",
                    "exceptionType": 6,
                    "signal": 5,
                    "unknown": "kept",
                },
            }
        ],
        "hangDiagnostics": [
            {
                "callStackTree": {
                    "callStackPerThread": True,
                    "callStacks": [
                        {
                            "callStackRootFrames": [
                                _nested(
                                    [("dyld", UUID(int=9), 0x43), ("App", APP_UUID, 0x1A3)],
                                    samples=7,
                                )
                            ]
                        }
                    ],
                },
                "diagnosticMetaData": {"hangDuration": "20 secs."},
            }
        ],
    }
).encode()

KSCRASH = json.dumps(
    {
        "report": {"id": "A", "version": "3.2.0", "timestamp": 1765315753629383},
        "binary_images": [
            {
                "image_addr": APP_BASE,
                "image_size": 0x8000,
                "name": "/private/var/App.app/App",
                "uuid": str(APP_UUID).upper(),
                "cpu_type": 0x0100000C,
                "cpu_subtype": 0,
            }
        ],
        "system": {"process_name": "App", "cpu_arch": "arm64", "time_zone": "GMT+2"},
        "crash": {
            "error": {"type": "signal", "address": 16, "signal": {"name": "SIGSEGV", "signal": 11}},
            "threads": [
                {
                    "index": 0,
                    "crashed": True,
                    "registers": {"basic": {"pc": APP_BASE + 0x1A0, "x0": 1}},
                    "backtrace": {
                        "contents": [
                            {
                                "instruction_addr": APP_BASE + 0x1A0,
                                "object_addr": APP_BASE,
                                "object_name": "App",
                                "symbol_addr": APP_BASE + 0x190,
                                "symbol_name": "main",
                            },
                            {
                                "instruction_addr": APP_BASE + 0x200,
                                "object_addr": 5,
                                "object_name": "libobjc.A.dylib",
                                "symbol_name": "GCC_except_table763",
                            },
                        ],
                        "skipped": 0,
                    },
                }
            ],
        },
        "user": {"kept": "テスト"},
    }
).encode()


def _plcrash() -> bytes:
    report, system, application, thread = Message(), Message(), Message(), Message()
    frame, symbol, register, image, code = (Message() for _ in range(5))
    signal, process = Message(), Message()
    system.number(1, 1)
    system.text(2, "18.3")
    system.number(4, 1_770_000_000)
    application.text(1, "org.example.app")
    application.text(2, "34")
    symbol.text(1, "_main")
    symbol.number(2, APP_BASE + 0x190)
    frame.number(3, APP_BASE + 0x1A0)
    frame.message(6, symbol)
    register.text(1, "pc")
    register.number(2, APP_BASE + 0x1A0)
    thread.number(3, 1)
    thread.message(2, frame)
    thread.message(4, register)
    code.number(1, 1)
    code.number(2, 0x0100000C)
    image.number(1, APP_BASE)
    image.number(2, 0x8000)
    image.text(3, "/private/var/App.app/App")
    image.message(5, code)
    signal.text(1, "SIGSEGV")
    signal.text(2, "SEGV_MAPERR")
    signal.number(3, 16)
    process.text(1, "App")
    process.number(2, 455)
    process.number(9, 3)
    for number, part in ((1, system), (2, application), (3, thread), (4, image), (6, signal)):
        report.message(number, part)
    report.message(7, process)
    return b"plcrash\x01" + bytes(report)


PLCRASH = _plcrash()

SAMPLE = f"""\
Analysis of sampling App (pid 455) every 1 millisecond
Process:         App [455]
Path:            /Applications/App.app/Contents/MacOS/App
Load Address:    0x100000000
Version:         1.2 (34)
Platform:        macOS

OS Version:      macOS 15.3 (24D60)
Report Version:  7
----

Call graph:
    100 Thread_7001   DispatchQueue_1: com.apple.main-thread  (serial)
    + 100 start  (in dyld) + 2360  [0x1800000e0]
    +   60 main  (in App) + 12  [0x1000001a0]  main.m:14
    +     ! 60 ???  (in App)  load address 0x100000000 + 0x200  [0x100000200]
    +   40 other (in it)  (in App) + 8,12,...  [0x100000300,0x100000304,...]
    100 Thread_7002: worker
      100 ???  [0x1234]

Sort by top of stack, same collapsed (when >= 5):
        other  (in App)        40

Binary Images:
       0x100000000 -        0x100007fff +App (1.2 - 34) <{str(APP_UUID).upper()}> /x/App
       0x180000000 -        0x180003fff  dyld (*) <{str(SYSTEM_UUID).upper()}> /usr/lib/dyld
""".encode()

_APP, _SYSTEM = str(APP_UUID).upper(), str(SYSTEM_UUID).upper()

SPINDUMP = f"""\
Date/Time:        2026-02-03 04:05:06.789 +0100
OS Version:       macOS 15.3 (Build 24D60)
Report Version:   60
Command:          App
PID:              455
Event:            hang
Steps:            49 (100ms sampling interval)

Heaviest stack for the main thread of the target process:
  49  start + 462 (dyld + 224) [0x1800000e0]

Process:          App [455]
UUID:             {str(APP_UUID).upper()}
Path:             /x/App.app/App

  Thread 0x2ca9e    DispatchQueue "com.apple.main-thread"(1)    49 samples (1-49)    priority 47
  <thread QoS user interactive>
  49  start + 462 (dyld + 224) [0x1800000e0] 1-49
    40  static App.main() + 35 (App.swift:31,1 in App + 416) [0x1000001a0] 1-40
     *9   ??? (kernel + 1113914) [0xffffff800031ff3a] (blocked by turnstile) 41-49

  Binary Images:
           0x100000000 -        0x100007fff  org.example.app 1.2 (34) <{_APP}> /x/App
           0x180000000 -        0x180003fff  dyld (960)      <{_SYSTEM}>  /usr/lib/dyld
   *0xffffff8000210000 -                ???  kernel (1)      <{UUID(int=7)}>  /kernel

Process:          launchd [1]
Path:             /sbin/launchd

  Thread 0x1    2 samples (1-2)    priority 37 (base 37)
  2  start + 1 (dyld + 1) [0x180000001]
""".encode()

MICROSTACKSHOT = b"""\
Date/Time:        2026-02-03 04:05:06.789 +0100
Data Source:      Microstackshots
Command:          App
PID:              455
Event:            cpu usage

Heaviest stack for the target process:
  6  a (App + 1) [0x1]


Powerstats for:   App [455]
Num samples:      6 (100%)
  6  a + 1 (App + 416) [0x1000001a0]
    2  b + 1 (App + 420) [0x1000001a4]
"""


def _pprof() -> bytes:
    written = Message()
    written.message(1, Message((1, 1), (2, 2)))
    sample = Message()
    sample.numbers(1, (2, 1))
    sample.numbers(2, (7,))
    sample.message(3, Message((1, 3), (2, 4)))
    written.message(2, sample)
    written.message(3, Message((1, 1), (2, APP_BASE), (3, APP_BASE + 0x8000), (5, 5)))
    for number, address in ((1, 0x1A0), (2, 0x300)):
        location = Message((1, number), (2, 1), (3, APP_BASE + address))
        location.message(4, Message((1, number), (2, 14)))
        written.message(4, location)
        written.message(5, Message((1, number), (2, 5 + number), (4, 8)))
    for text in ("", "samples", "count", "thread", "main [7001]", "/x/App", "main", "work", "/a.c"):
        written.text(6, text)
    return bytes(written)


PPROF = _pprof()


OTLP_BUILD_ID = "0123456789abcdef0123456789abcdef01234567"


def _otlp() -> bytes:
    """Two samples of a stack at two times, one at another thread, an interpreter's function."""
    strings = ["", "samples", "count", "cpu", "nanoseconds", "/usr/bin/app", "thread.name"]
    strings += ["worker", "process.executable.build_id.gnu", "thread.id", "run", "main.py", "work"]
    dictionary = Message()
    dictionary.message(1, Message())
    mapping = Message((1, 0x401000), (2, 0x409000), (3, 0x1000), (4, 5))
    mapping.numbers(5, (2,))
    dictionary.message(1, mapping)
    native, python = Message((1, 1), (2, 0x4011A0)), Message()
    native.message(3, Message((1, 2), (2, 14)))
    python.message(3, Message((1, 1), (2, 3)))
    for location in (Message(), native, python, Message((1, 1), (2, 0x401300))):
        dictionary.message(2, location)
    for named in (Message(), Message((1, 10), (3, 11)), Message((1, 12))):
        dictionary.message(3, named)
    for text in strings:
        dictionary.text(5, text)
    build_id, name, number = Message((1, 8)), Message((1, 6)), Message((1, 9))
    value = Message()
    value.text(1, OTLP_BUILD_ID)
    build_id.message(2, value)
    name.message(2, Message((8, 7)))
    number.message(2, Message((3, 7001)))
    for attribute in (Message(), name, build_id, number):
        dictionary.message(6, attribute)
    for locations in ((), (1, 3), (2,)):
        stack = Message()
        stack.numbers(1, locations)
        dictionary.message(7, stack)
    made = Message((3, 1_700_000_000_000_000_000), (4, 1_000_000_000), (6, 50_000_000))
    made.message(1, Message((1, 1), (2, 2)))
    made.message(5, Message((1, 3), (2, 4)))
    first, second = Message((1, 1)), Message((1, 2))
    first.numbers(2, (1, 3))
    first.numbers(5, (1_700_000_000_000_000_000, 1_700_000_000_050_000_000))
    second.numbers(4, (5,))
    made.message(2, first)
    made.message(2, second)
    scope, resource, facts, request = Message(), Message(), Message(), Message()
    scope.message(2, made)
    for key, text in (("service.name", "shop"), ("service.version", "1.2"), ("host.id", "h1")):
        pair, value = Message(), Message()
        pair.text(1, key)
        value.text(1, text)
        pair.message(2, value)
        facts.message(1, pair)
    resource.message(1, facts)
    resource.message(2, scope)
    request.message(1, resource)
    request.message(2, dictionary)
    return bytes(request)


OTLP = _otlp()


def _firefox() -> bytes:
    sink = StringIO()
    firefox.write(profile([Seen(0, [function("main"), function("work", offset=0x300)], 3)]), sink)
    return sink.getvalue().encode()


FIREFOX = _firefox()

REPORT_SAMPLES: dict[str, bytes] = {
    "ips": IPS,
    "crash": CRASH,
    "metrickit": METRICKIT,
    "kscrash": KSCRASH,
    "plcrash": PLCRASH,
    "sample": SAMPLE,
    "spindump": SPINDUMP,
    "microstackshot": MICROSTACKSHOT,
    "call-stack-symbols": CALL_STACK_SYMBOLS,
    "bs": BS,
    "folded": FOLDED,
    "speedscope": SPEEDSCOPE,
    "pprof": PPROF,
    "otlp": OTLP,
    "firefox": FIREFOX,
    "sentry": SENTRY_CRASH,
    "lldb": LLDB,
    "swift": SWIFT,
    "gdb": GDB,
    "sanitizer": SANITIZER,
    "spool": SPOOL,
}
"""By the value of :class:`~machtrace.model.report.ReportKind` that they are read as."""
