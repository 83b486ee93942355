"""Records stacks of a main thread each 20 ms.

``python -m tests.support.hangs.recorder PID c|python`` prints lines
``[CLOCK_BOOTTIME nanoseconds, [innermost function, its caller, …]]``.
It ends with the process that it records, or with its standard input.
"""

from __future__ import annotations

import json
import select
import sys
import time

import machtrace as mt
from machtrace.errors import MachtraceError
from tests.support.hangs.truth import boot_ns

INTERVAL = 0.02
_FRAMES = 40


def main(arguments: list[str]) -> int:
    """Record until the process is gone."""
    pid, program = int(arguments[0]), arguments[1]
    is_python = program == "python"
    deadline = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        began = boot_ns()
        try:
            stacks = mt.backtraces(
                pid,
                threads="main",
                lines=False,
                python="only" if is_python else False,
                limit=_FRAMES,
            )
        except MachtraceError:
            return 0
        names = [
            name
            for stack in stacks
            for frame in stack.frames
            for name in (
                *(function.name for function in frame.python),
                frame.symbol.name if frame.symbol and not frame.is_python else "",
            )
            if name
        ]
        print(json.dumps([(began + boot_ns()) // 2, names]), flush=True)  # noqa: T201
        deadline = max(deadline + INTERVAL, time.monotonic())
        time.sleep(max(0.0, deadline - time.monotonic()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
