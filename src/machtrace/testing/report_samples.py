"""Small reports of every kind, for tests and for the fuzzer; all of them made up here."""

from __future__ import annotations

import json
from uuid import UUID

from machtrace.report.protobuf import Message

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

CALL_STACK_SYMBOLS = b"""\
2026-02-03 App[455:1] caught: (
\t0   CoreFoundation                      0x00007fff204a0d8b __exceptionPreprocess + 242
\t1   An App With A Very Long Name That I 0x0000000100003f50 -[Foo bar:] + 16,
\t2   App                                 0x0000000100000200 App + 512
\t3   App                                 0x0000000100000300 -[Foo baz] + 16
\t4   libsystem.dylib  0x0000000180000048 A5D3B725-78C3-3E19-A765-CCEB22355093 + 72
\t5   ???                                 0x0000000000000010 0x0 + 16
)
./prog(func+0x12) [0x4005d4]
"""

LLDB = b"""\
(lldb) bt all
* thread #1, queue = 'com.apple.main-thread', stop reason = breakpoint 1.1
  * frame #0: 0x0000000100003f50 my app`foo [inlined] bar(x=5) at a.c:3:4 [opt]
    frame #1: 0x0000000100003f50 my app`foo(p=0x0000) at a.c:19:7 [opt]
    frame #2: 0x00007fff20338f3d libdyld.dylib`start + 1
  thread #2, name = 'worker'
    frame #0: 0x00000001b4a1d000 libsystem_kernel.dylib`__workq_kernreturn + 10
"""

SWIFT = """\
About to crash

*** Signal 11: Backtracing from 0x55d1cfc75746... done ***

*** Program crashed: Bad pointer dereference at 0x0000000000000004 ***

Platform: x86_64 Linux (Ubuntu 24.04.4 LTS)

Thread 0 "prog" crashed:

0 [inlined] [system] 0x000055d1cfc75746 Swift runtime failure: overflow in my prog at /<generated>
1                    0x000055d1cfc75746 closure #1 in level(at:) + 37 in my prog at /a at b.c:39:15
2 [ra] [thunk]       0x000055d1cfc75760 thunk for @callee_guaranteed () -> () + 2 in my prog
3 [async]            0x000055d1cfc75800 static Main.main() in my prog at /src/main.swift:3
4                    ...
9 [ra] [system]      0x00007f8605975117 <unknown> in libc.so.6

Thread 1:

0 0x00007f8605975100


Registers:

rax 0x0000000000000000  0
rsp 0x00007ffdb22578b0  03 00 00 00 00 00 00 00 80 0c be ee 9b 55 00 00  ········¾î·U··

rflags 0x0000000000000246  ZF PF

cs 0x0033  fs 0x0000  gs 0x0000


Images (19 omitted):

0x000055d1cfc70000–0x000055d1cfc7fff0 <no build ID>                    my prog   /src/my prog
0x00007f8605900000–0x00007f8605aaf5cf 8e9fd827446c24067541ac5390e6f527 libc.so.6 /lib/libc.so.6
0x00007f8605b00000–0x00007f8605baf5cf 446c24067541ac5390               libm.so.6 /lib/libm.so.6

Backtrace took 0.05s
""".encode()

GDB = b"""\
Core was generated by `/tmp/prog -x'.
Program terminated with signal SIGABRT, Aborted.
#0  raise_it (id=<optimized out>) at ./nptl/pthread_kill.c:44
44\t./nptl/pthread_kill.c: No such file or directory.
[Current thread is 1 (Thread 0x7ffff7dd1740 (LWP 21548))]

Thread 2 (Thread 0x7ffff7dd06c0 (LWP 21560) "wai ter"):
#0  0x00007ffff7ea7df2 in pause () from /lib/libc.so.6
#1  0x00005555555551a2 in ?? ()
Backtrace stopped: previous frame inner to this frame (corrupt stack?)

Thread 1 (Thread 0x7ffff7dd1740 (LWP 21548)):
#0  raise_it (id=<optimized out>) at ./nptl/pthread_kill.c:44
#1  0x00005555555551c1 in innermost (s=0x1 "a (text) at x:1", n=40)
    at g.c:6
#2  middle (n=n@entry=39) at g.c:7
        local = {a = 1, b = "#3"}
#3  0x00005555555551d4 in std::function<void (int)>::operator()(int) const (c=40 '(') at a b.cc:9
#4  <signal handler called>
#5  waiting () at g.c:44
#6  0x0000555555555237 in main () at g.c:11
"""

SANITIZER = b"""\
ready
=================================================================
==22535==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000014 at pc 0x561f38dda1ac
READ of size 4 at 0x602000000014 thread T0
    #0 0x561f38dda1ab in use(int*) /src/a b.c:2:7
    #1 0x561f38dda1c9 in wraps /src/a b.c:3
    #2 0x561f38dda1c9 in main ../src/a.c:4
    #3 0x7f01d7e45249  (/lib/libc.so.6+0x27249) (BuildId: 446c24067541ac5390)

0x602000000014 is located 4 bytes inside of 8-byte region [0x602000000010,0x602000000018)
freed by thread T0 here:
    #0 0x561f38dda1b6 in main (/src/my prog+0x11b6)

SUMMARY: AddressSanitizer: heap-use-after-free /src/a b.c:2 in use
==================
WARNING: ThreadSanitizer: data race (pid=22561)
  Write of size 4 at 0x5570baf1f04c by main thread:
    #0 main main.m:3 (App:arm64+0x10000121d) (BuildId: 6fdbb104c032301189bae26d5506e11a)
"""

REPORT_SAMPLES: dict[str, bytes] = {
    "ips": IPS,
    "crash": CRASH,
    "metrickit": METRICKIT,
    "kscrash": KSCRASH,
    "plcrash": PLCRASH,
    "sample": SAMPLE,
    "spindump": SPINDUMP,
    "call-stack-symbols": CALL_STACK_SYMBOLS,
    "lldb": LLDB,
    "swift": SWIFT,
    "gdb": GDB,
    "sanitizer": SANITIZER,
}
"""By the value of :class:`~machtrace.model.report.ReportKind` that they are read as."""
