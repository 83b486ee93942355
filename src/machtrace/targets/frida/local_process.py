"""What Linux tells of a process of this machine before Frida comes to it, and after it left."""

from __future__ import annotations

import re
import time
from pathlib import Path

from machtrace.errors import TargetError

_LEAVING = 2.0
"""Seconds that Frida may take to tidy up."""
_STEP = 0.002
_CODE = re.compile(r"^([0-9a-f]+)-[0-9a-f]+ r[w-]xp [0-9a-f]+ 00:00 0 *$", re.MULTILINE)
"""Code that is of no file: what Frida loads its library with is such, and goes last."""
_TRACER = re.compile(r"^TracerPid:\t([1-9][0-9]*)$", re.MULTILINE)


def check_runs(pid: int) -> None:
    """See that a process is not stopped, where Linux tells: Frida would continue it.

    Raises:
        TargetError: it is.
    """
    if _text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] in (["T"], ["t"]):
        raise TargetError(
            f"process {pid} is stopped, and Frida would resume it",
            remedy=f"use the target {pid}, which leaves it stopped; or resume the process",
        )


class FridaTraces:
    """What Frida has in a process of this machine, to see that it is gone.

    Frida takes its library out by ptrace(2), from this very process and a little after it said
    that it has detached. Who started the process, if it is this one, would take such a stop for
    the process' end, and Frida would wait for it in vain.

    Args:
        pid: of a process that Frida is not yet in.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._code()
        self._tracers = self._traced_by()
        self._added: set[str] = set()

    def look(self) -> None:
        """Take note of what Frida has brought."""
        self._added = self._code() - self._before

    def wait_until_gone(self) -> None:
        """Wait, but not for long, until that is gone, and nobody traces the process any more."""
        deadline = time.monotonic() + _LEAVING
        # In this order: what is traced while that goes is let go of afterwards.
        while (self._added & self._code()) or (self._traced_by() - self._tracers):
            if time.monotonic() >= deadline:
                return
            time.sleep(_STEP)

    def _code(self) -> set[str]:
        return set(_CODE.findall(_text(f"/proc/{self._pid}/maps")))

    def _traced_by(self) -> set[str]:
        try:
            tasks = list(Path(f"/proc/{self._pid}/task").iterdir())
        except OSError:
            return set()
        return {one for task in tasks for one in _TRACER.findall(_text(f"{task}/status"))}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
