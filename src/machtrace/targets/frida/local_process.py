"""Checks of a Linux process of this machine before Frida attaches and after it detached."""

from __future__ import annotations

import re
import time
from pathlib import Path

from machtrace.errors import TargetError

_LEAVING = 2.0
"""Seconds that Frida may take to clean up."""
_STEP = 0.002
_CODE = re.compile(r"^([0-9a-f]+)-[0-9a-f]+ r[w-]xp [0-9a-f]+ 00:00 0 *$", re.MULTILINE)
"""Anonymous code: Frida's loader is such, and is removed last."""
_TRACER = re.compile(r"^TracerPid:\t([1-9][0-9]*)$", re.MULTILINE)


def check_runs(pid: int) -> None:
    """Check by ``/proc`` that a process is not stopped: Frida would resume it.

    Raises:
        TargetError: it is.
    """
    if _text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] in (["T"], ["t"]):
        raise TargetError(
            f"process {pid} is stopped, and Frida would resume it",
            remedy=f"use the target {pid}, which leaves it stopped; or resume the process",
        )


class FridaTraces:
    """Frida's mappings and tracers in a process, to wait until they are gone.

    Frida removes its library by ptrace(2), from this very process and a little after it reported
    that it has detached. If this process is the parent, it would take such a stop for the
    process's end, and Frida would wait for it in vain.

    Args:
        pid: of a process that Frida is not yet in.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._code()
        self._tracers = self._traced_by()
        self._added: set[str] = set()

    def look(self) -> None:
        """Record what Frida has mapped."""
        self._added = self._code() - self._before

    def wait_until_gone(self) -> None:
        """Wait briefly until that is gone and nothing traces the process any more."""
        deadline = time.monotonic() + _LEAVING
        # In this order: threads traced during the removal are released afterwards.
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
