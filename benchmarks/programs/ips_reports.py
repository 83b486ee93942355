"""Many .ips files of crashes of one program, each of many threads.

Every other frame is in the program; the rest are in images of the system, with names as Apple's
own reports have them. Addresses in the program are random ones of its code, which no two files
share, or drawn from some hundred stacks, as crashes of one version of an app are.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import NamedTuple
from uuid import UUID

SYSTEM_IMAGES = 60
STACKS = 400
"""Different stacks of reports that share them."""


class Program(NamedTuple):
    """A program with the address ranges to draw from."""

    uuid: UUID
    size: int
    code: range
    """Offsets of instructions (ImageOffset)."""


def write_reports(
    program: Program, folder: Path, files: int, *, threads: int, depth: int, shared: bool
) -> list[list[int]]:
    """Write ``files`` reports of ``threads`` threads with ``depth`` frames.

    Returns:
        For each file the offsets in the program, as they are to be looked up.
    """
    random = Random(7)  # noqa: S311 (what is drawn need not be secret)
    stacks = [_stack(random, program, depth) for _ in range(STACKS)] if shared else []
    looked_up: list[list[int]] = []
    for number in range(files):
        chosen = [
            random.choice(stacks) if shared else _stack(random, program, depth)
            for _ in range(threads)
        ]
        (folder / f"{number:04}.ips").write_text(_report(program, random, number, chosen))
        looked_up.append(
            [
                frame["imageOffset"] - (place > 0)
                for stack in chosen
                for place, frame in enumerate(stack)
                if frame["imageIndex"] == 0
            ]
        )
    return looked_up


def _stack(random: Random, program: Program, depth: int) -> list[dict[str, object]]:
    return [
        {"imageOffset": random.choice(program.code), "imageIndex": 0}
        if place % 2 == 0
        else {
            "imageOffset": random.randrange(0x80_0000),
            "symbol": f"-[Class{random.randrange(500)} method:]",
            "symbolLocation": random.randrange(400),
            "imageIndex": 1 + random.randrange(SYSTEM_IMAGES),
        }
        for place in range(depth)
    ]


def _report(
    program: Program, random: Random, number: int, stacks: list[list[dict[str, object]]]
) -> str:
    images = [_image(program.uuid, "App", 0x1_0000_0000 + random.randrange(1 << 14) * 0x4000)]
    images[0]["size"] = program.size
    images += [
        _image(UUID(int=one + 1), f"Framework{one}", 0x1_8000_0000 + one * 0x100_0000)
        for one in range(SYSTEM_IMAGES)
    ]
    threads: list[dict[str, object]] = [
        {"id": 5000 + index, "queue": "org.example.queue", "frames": stack}
        for index, stack in enumerate(stacks)
    ]
    state = {"x": [{"value": 1}] * 29, "flavor": "ARM_THREAD_STATE64"}
    registers = {name: {"value": 1} for name in ("lr", "cpsr", "fp", "sp", "esr", "pc", "far")}
    threads[0] |= {"triggered": True, "threadState": state | registers}
    incident = str(UUID(int=number)).upper()
    head = {"bug_type": "309", "os_version": "iPhone OS 18.3 (22D63)", "incident_id": incident}
    body = {
        "procName": "App",
        "pid": number + 1,
        "cpuType": "ARM-64",
        "incident": incident,
        "exception": {"type": "EXC_CRASH", "signal": "SIGABRT", "codes": "0x0, 0x0"},
        "faultingThread": 0,
        "threads": threads,
        "usedImages": images,
    }
    return json.dumps(head) + "\n" + json.dumps(body)


def _image(uuid: UUID, name: str, base: int) -> dict[str, object]:
    return {
        "source": "P",
        "arch": "arm64",
        "base": base,
        "size": 0x80_0000,
        "uuid": str(uuid),
        "path": f"/System/Library/Frameworks/{name}.framework/{name}",
        "name": name,
    }
