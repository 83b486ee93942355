"""A made fleet: reports of a few problems from builds, systems and devices, the same every time."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID, uuid5

_SPACE = UUID("6d3b4a52-8f41-4d30-9d0c-2f6c8a7f1e10")
START = datetime(2026, 10, 1, tzinfo=UTC)
BUILDS = ("811", "812", "815", "820")
SYSTEMS = ("iPhone OS 18.6.2 (22G100)", "iPhone OS 26.0 (23A341)", "iPhone OS 26.1 (23B85)")
SYSTEM_IMAGES = ("libsystem_kernel.dylib", "libsystem_pthread.dylib", "UIKitCore", "CoreFoundation")
_TAIL = ("UIKitCore:-[UIApplication _run]", "UIKitCore:UIApplicationMain", "Wanderer:main")


class Problem(NamedTuple):
    """A crash that a fleet has."""

    exception: str
    signal: str
    stack: tuple[str, ...]
    """Innermost first: image, colon, function, and file and line if they are known."""
    builds: tuple[str, ...]
    share: int


PROBLEMS = (
    Problem(
        "EXC_CRASH",
        "SIGABRT",
        (
            "libsystem_kernel.dylib:__pthread_kill",
            "libsystem_pthread.dylib:pthread_kill",
            "Wanderer:specialized RouteStore.restore(from:)|RouteStore.swift:218",
            "Wanderer:closure #1 in RouteStore.load()|RouteStore.swift:84",
            "MapEngine:mapengine::TileCache::evict(std::chrono::seconds)|tile_cache.cpp:311",
            "CoreFoundation:__CFRUNLOOP_IS_SERVICING_THE_MAIN_DISPATCH_QUEUE__",
        ),
        BUILDS,
        9,
    ),
    Problem(
        "EXC_BAD_ACCESS",
        "SIGSEGV",
        (
            "MapEngine:mapengine::Renderer::draw(mapengine::Frame const&)|renderer.cpp:902",
            "MapEngine:mapengine::Renderer::present()|renderer.cpp:118",
            "Wanderer:MapView.draw(_:)|MapView.swift:57",
        ),
        BUILDS[1:],
        6,
    ),
    Problem(
        "EXC_BREAKPOINT",
        "SIGTRAP",
        (
            "Wanderer:TripList.subscript.getter|TripList.swift:31",
            "Wanderer:TripListView.body.getter|TripListView.swift:44",
        ),
        BUILDS[3:],
        4,
    ),
    Problem("EXC_BAD_ACCESS", "SIGBUS", ("AdKit:", "AdKit:", "Wanderer:AdSlot.show()"), BUILDS, 3),
    Problem(
        "EXC_CRASH",
        "SIGKILL",
        (
            "libsystem_kernel.dylib:__psynch_mutexwait",
            "libsystem_pthread.dylib:_pthread_mutex_firstfit_lock_wait",
            "Wanderer:Settings.synchronize()|Settings.swift:129",
            "Wanderer:AppDelegate.applicationWillResignActive(_:)|AppDelegate.swift:63",
        ),
        BUILDS[:2],
        2,
    ),
)


def image_uuid(image: str, build: str) -> UUID:
    """Return the UUID of an image in a build of the app, or in any of the system."""
    return uuid5(_SPACE, image if image in SYSTEM_IMAGES else f"{image}-{build}")


def report(
    problem: Problem,
    build: str = BUILDS[0],
    *,
    number: int = 0,
    system: str = SYSTEMS[0],
    device: str = "device-0",
    time: datetime = START,
    threads: int = 6,
) -> bytes:
    """Return a report in Apple's format."""
    stack = (*problem.stack, *_TAIL)
    names = list(dict.fromkeys(frame.partition(":")[0] for frame in stack))
    images = [
        {
            "source": "P",
            "arch": "arm64",
            "base": (index + 1) << 32,
            "size": 1 << 24,
            "uuid": str(image_uuid(name, build)),
            "path": f"/usr/lib/{name}"
            if name in SYSTEM_IMAGES
            else f"/private/var/containers/Bundle/Application/A/Wanderer.app/{name}",
            "name": name,
        }
        for index, name in enumerate(names)
    ]
    frames = [_frame(frame, names, build) for frame in stack]
    waiting = [
        {
            "imageOffset": 0x4A1C,
            "symbol": "__workq_kernreturn",
            "symbolLocation": 8,
            "imageIndex": 0,
        }
    ]
    others = [{"id": 800 + at, "name": f"worker {at}", "frames": waiting} for at in range(threads)]
    stamp = f"{time:%Y-%m-%d %H:%M:%S}.00 +0000"
    head = {
        "app_name": "Wanderer",
        "timestamp": stamp,
        "bug_type": "309",
        "os_version": system,
        "incident_id": str(uuid5(_SPACE, f"incident-{problem.stack[0]}-{number}")),
    }
    body = {
        "procName": "Wanderer",
        "pid": 400 + number % 600,
        "cpuType": "ARM-64",
        "captureTime": stamp,
        "crashReporterKey": device,
        "modelCode": f"iPhone17,{1 + number % 4}",
        "osVersion": {"train": system.partition(" (")[0], "build": system[-7:-1]},
        "bundleInfo": {
            "CFBundleIdentifier": "org.example.wanderer",
            "CFBundleVersion": build,
            "CFBundleShortVersionString": f"5.{BUILDS.index(build) if build in BUILDS else 0}",
        },
        "exception": {"type": problem.exception, "signal": problem.signal},
        "faultingThread": 0,
        "threads": [
            {"id": 700, "triggered": True, "queue": "com.apple.main-thread", "frames": frames},
            *others,
        ],
        "usedImages": images,
    }
    return json.dumps(head).encode() + b"\n" + json.dumps(body).encode()


def reports(count: int) -> Iterator[bytes]:
    """Yield reports of all problems over eight weeks."""
    chance = random.Random(7)  # noqa: S311 - to have the same again
    every = [problem for problem in PROBLEMS for _ in range(problem.share)]
    for number in range(count):
        problem = chance.choice(every)
        at = chance.randrange(len(problem.builds))
        build = problem.builds[at]
        week = 2 * BUILDS.index(build) + chance.random() * 3
        yield report(
            problem,
            build,
            number=number,
            system=chance.choice(SYSTEMS),
            device=f"device-{chance.randrange(count // 3 + 1)}",
            time=START + timedelta(weeks=week * 0.9),
            threads=chance.randrange(3, 9),
        )


def _frame(written: str, names: list[str], build: str) -> dict[str, object]:
    image, _, rest = written.partition(":")
    name, _, place = rest.partition("|")
    moved = 16 * BUILDS.index(build) if build in BUILDS and image not in SYSTEM_IMAGES else 0
    frame: dict[str, object] = {
        "imageOffset": 0x1000
        + zlib.crc32(written.encode("utf-8", "replace")) % 0x10_0000 * 4
        + moved,
        "imageIndex": names.index(image),
    }
    if name:
        frame |= {"symbol": name, "symbolLocation": 44}
    if place:
        file, _, line = place.rpartition(":")
        frame |= {"sourceFile": file, "sourceLine": int(line)}
    return frame
