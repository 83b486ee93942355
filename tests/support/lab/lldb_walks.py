"""Runs inside lldb: loads cores in sequence and writes the stacks that it finds.

``command script import`` this file, then ``walk_cores LISTED``; see
:mod:`tests.support.lab.lldb`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MAX_STACK_LENGTH = 512


def walk_cores(debugger: Any, command: str, result: Any, _: dict[str, Any]) -> None:
    """Walk the cores that the file ``command`` lists."""
    del result
    asked = json.loads(Path(command.strip()).read_text())
    walks = []
    for core in asked["cores"]:
        target = debugger.CreateTarget("")
        process = target.LoadCore(core)
        for path, slide in asked["images"]:
            module = target.AddModule(path, None, None)
            target.SetModuleLoadAddress(module, slide)
        thread = process.GetThreadAtIndex(0)
        count = min(thread.GetNumFrames(), _MAX_STACK_LENGTH)
        frames = [thread.GetFrameAtIndex(index) for index in range(count)]
        walks.append([frame.GetPC() for frame in frames if not frame.IsArtificial()])
        debugger.DeleteTarget(target)
    Path(asked["answer"]).write_text(json.dumps(walks))


def __lldb_init_module(debugger: Any, _: dict[str, Any]) -> None:
    debugger.HandleCommand(f"command script add -f {__name__}.walk_cores walk_cores")
