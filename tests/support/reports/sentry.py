"""Events and profiles of Sentry's clients, made up here in the shapes of their sources."""

from __future__ import annotations

import json
from typing import Any

BASE = 0x1_0000_0000
SYSTEM_BASE = 0x1_8000_0000
EVENT_ID = "9ec79c33ec9942ab8353589fcb2e04dc"
APP_UUID = "82d13d98-219e-3040-b62a-07a297007a7c"
BUILD_ID = "a322d6d8819513093d11ba849b997e3a27dcab4c"

IMAGES: list[dict[str, Any]] = [
    {
        "type": "macho",
        "debug_id": APP_UUID.upper(),
        "code_file": "/private/var/App.app/App",
        "image_addr": f"{BASE:#018x}",
        "image_size": 0x8000,
        "image_vmaddr": "0x0000000100000000",
    },
    {
        "type": "macho",
        "debug_id": "A5D3B725-78C3-3E19-A765-CCEB22355093",
        "code_file": "/usr/lib/system/libsystem_kernel.dylib",
        "image_addr": f"{SYSTEM_BASE:#018x}",
        "image_size": 0x30000,
    },
]


def frame(address: int, base: int = BASE, **more: Any) -> dict[str, Any]:
    """Return a frame as sentry-cocoa writes it."""
    package = IMAGES[0 if base == BASE else 1]["code_file"]
    return {
        "instruction_addr": f"{address:#018x}",
        "image_addr": f"{base:#018x}",
        "package": package,
        "in_app": base == BASE,
        **more,
    }


CRASHED = {
    "frames": [frame(BASE + 0x200), frame(BASE + 0x1A0)],  # outermost first
    "registers": {"pc": f"{BASE + 0x1A0:#018x}", "x0": "0x0000000000000001"},
}
OTHER = {"frames": [frame(BASE + 0x400), frame(SYSTEM_BASE + 0x100, SYSTEM_BASE)]}
CONTEXTS = {
    "app": {
        "app_name": "App",
        "app_identifier": "org.example.app",
        "app_version": "2.1",
        "app_build": "42",
        "app_start_time": "2026-11-23T10:00:00Z",
        "type": "app",
    },
    "device": {"model": "iPhone14,2", "arch": "arm64e", "family": "iOS", "free_memory": 5},
    "os": {"name": "iOS", "version": "26.1", "build": "23B85", "rooted": False},
}


def event(**more: Any) -> bytes:
    """Return an event of an app on an iPhone."""
    body = {
        "event_id": EVENT_ID,
        "timestamp": 1763892000.25,
        "platform": "cocoa",
        "level": "fatal",
        "release": "org.example.app@2.1+42",
        "dist": "42",
        "tags": {"screen": "start"},
        "user": {"id": "someone@example.org", "email": "someone@example.org"},
        "sdk": {"name": "sentry.cocoa", "version": "8.57.0"},
        "contexts": CONTEXTS,
        "debug_meta": {"images": IMAGES},
        **more,
    }
    return json.dumps(body).encode()


THREADS = {
    "values": [
        {"id": 0, "crashed": False, "current": False, "main": True, "stacktrace": OTHER},
        {"id": 3, "name": "work", "crashed": True, "current": True, "stacktrace": CRASHED},
    ]
}
SENTRY_CRASH = event(
    exception={
        "values": [
            {
                "type": "EXC_BAD_ACCESS",
                "value": "Exception 1, Code 1, Subcode 16",
                "thread_id": 3,
                "stacktrace": CRASHED,
                "mechanism": {
                    "type": "mach",
                    "handled": False,
                    "data": {"relevant_address": "0x0000000000000010"},
                    "meta": {
                        "signal": {"number": 11, "code": 0, "code_name": "NOOP"},
                        "mach_exception": {
                            "name": "EXC_BAD_ACCESS",
                            "exception": 1,
                            "code": 1,
                            "subcode": 16,
                        },
                    },
                },
            }
        ]
    },
    threads=THREADS,
)
SENTRY_EXCEPTION = event(
    exception={
        "values": [
            {
                "type": "NSInvalidArgumentException",
                "value": "unrecognized selector",
                "thread_id": 3,
                "stacktrace": CRASHED,
                "mechanism": {"type": "nsexception", "handled": False},
            }
        ]
    },
    threads=THREADS,
)
SENTRY_HANG = event(
    level="error",
    exception={
        "values": [
            {
                "type": "App Hang Fully Blocked",
                "value": "App hanging between 2.0 and 2.4 seconds.",
                "mechanism": {"type": "AppHang"},
                "stacktrace": OTHER | {"snapshot": True},
            }
        ]
    },
    threads={
        "values": [
            {"id": 0, "crashed": False, "current": True, "main": True, "stacktrace": OTHER},
            {"id": 1, "crashed": False, "current": False, "stacktrace": CRASHED},
        ]
    },
)
SENTRY_NATIVE = json.dumps(
    {
        "event_id": EVENT_ID,
        "timestamp": "2026-11-23T10:00:00.000Z",
        "platform": "native",
        "level": "fatal",
        "contexts": {"os": {"name": "Linux", "version": "6.8.0", "build": "#1 SMP"}},
        "exception": {
            "values": [
                {
                    "type": "SIGSEGV",
                    "value": "Segfault",
                    "mechanism": {
                        "type": "signalhandler",
                        "synthetic": True,
                        "handled": False,
                        "meta": {"signal": {"name": "SIGSEGV", "number": 11}},
                    },
                    "stacktrace": {
                        "frames": [
                            {"instruction_addr": "0x55d0c0001200"},
                            {"instruction_addr": "0x55d0c0001100"},
                        ],
                        "registers": {"rip": "0x55d0c0001100"},
                    },
                }
            ]
        },
        "debug_meta": {
            "images": [
                {
                    "type": "elf",
                    "code_id": BUILD_ID,
                    "debug_id": "d8d622a3-9581-0913-3d11-ba849b997e3a",
                    "code_file": "/usr/bin/app",
                    "image_addr": "0x55d0c0000000",
                    "image_size": 20480,
                },
                {"type": "sourcemap", "debug_id": APP_UUID},
            ]
        },
    }
).encode()
SENTRY_PYTHON = json.dumps(
    {
        "event_id": EVENT_ID,
        "timestamp": "2026-11-23T10:00:00.000000Z",
        "platform": "python",
        "release": "shop@1.0",
        "exception": {
            "values": [
                {"type": "KeyError", "value": "'a'", "stacktrace": {"frames": []}},
                {
                    "type": "ValueError",
                    "value": "no price",
                    "module": None,
                    "mechanism": {"type": "excepthook", "handled": False},
                    "stacktrace": {
                        "frames": [
                            {
                                "function": "<module>",
                                "module": "__main__",
                                "filename": "shop.py",
                                "abs_path": "/srv/shop.py",
                                "lineno": 9,
                                "in_app": True,
                                "vars": {"card": "'4111'"},
                            },
                            {
                                "function": "price",
                                "module": "shop.prices",
                                "filename": "shop/prices.py",
                                "abs_path": "/srv/shop/prices.py",
                                "lineno": 5,
                                "in_app": True,
                            },
                        ]
                    },
                },
            ]
        },
    }
).encode()
_PROFILE: dict[str, Any] = {
    "frames": [
        {"instruction_addr": f"{BASE + 0x1A0:#018x}", "function": "work"},
        {"instruction_addr": f"{BASE + 0x200:#018x}"},
        {"instruction_addr": f"{SYSTEM_BASE + 0x100:#018x}"},
    ],
    "stacks": [[0, 1], [2, 0, 1]],  # innermost first
    "thread_metadata": {"259": {"name": "main", "priority": 31}, "771": {"name": "net"}},
}
SENTRY_PROFILE = json.dumps(
    {
        "version": "1",
        "event_id": EVENT_ID,
        "profile_id": "0" * 31 + "1",
        "platform": "cocoa",
        "timestamp": "2026-11-23T10:00:00.000Z",
        "release": "org.example.app@2.1+42",
        "device": {"architecture": "arm64e", "model": "iPhone14,2", "is_emulator": False},
        "os": {"name": "iOS", "version": "26.1", "build_number": "23B85"},
        "debug_meta": {"images": IMAGES},
        "transaction": {"active_thread_id": 259, "id": EVENT_ID, "name": "start"},
        "profile": {
            **_PROFILE,
            "samples": [
                {"stack_id": stack, "thread_id": thread, "elapsed_since_start_ns": str(time)}
                for time, (stack, thread) in enumerate(
                    [(0, "259"), (1, "259"), (0, "259"), (1, "771")]
                )
            ],
            "queue_metadata": {"0x1": {"label": "com.apple.main-thread"}},
        },
    }
).encode()
SENTRY_CHUNK = json.dumps(
    {
        "version": "2",
        "chunk_id": "0" * 31 + "2",
        "profiler_id": "0" * 31 + "3",
        "platform": "cocoa",
        "release": "org.example.app@2.1+42",
        "client_sdk": {"name": "sentry.cocoa", "version": "8.57.0"},
        "debug_meta": {"images": IMAGES},
        "profile": {
            **_PROFILE,
            "samples": [
                {"stack_id": 1, "thread_id": "259", "timestamp": 1763892000.5},
                {"stack_id": 0, "thread_id": "259", "timestamp": 1763892000.51},
            ],
        },
    }
).encode()
