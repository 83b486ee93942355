"""Runs inside gdb: loads cores in sequence and writes the stacks that it finds.

``WALKS`` names the list; see :mod:`tests.support.published.peers`.
"""

from __future__ import annotations

import json
from pathlib import Path

import gdb  # type: ignore[import-untyped, import-not-found, unused-ignore]

_MAX_STACK_LENGTH = 512


def _walk() -> list[int]:
    addresses: list[int] = []
    frame = gdb.newest_frame()
    try:
        while frame is not None and len(addresses) < _MAX_STACK_LENGTH:
            if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                addresses.append(frame.pc())
            frame = frame.older()
    except gdb.error:
        pass  # the frames so far are what it prints, too
    return addresses


def _main(listed: str) -> None:
    asked = json.loads(Path(listed).read_text())
    gdb.execute("set confirm off")
    gdb.execute("set debug-file-directory")
    gdb.execute("set backtrace past-main on")
    walks: list[list[int]] = []
    for core in asked["cores"]:
        gdb.execute(f"core-file {core}", to_string=True)
        if not walks:
            for path, slide in asked["images"]:
                gdb.execute(f"add-symbol-file {path} -o {slide:#x}", to_string=True)
        walks.append(_walk())
    Path(asked["answer"]).write_text(json.dumps(walks))


_main(WALKS)  # type: ignore[name-defined]  # noqa: F821 (set on gdb's command line)
