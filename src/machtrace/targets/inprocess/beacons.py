"""Statements of this process's threads about themselves: idle waits and deadlines.

They cost a store each, whether a watcher reads them or not. Where the package was installed without
its extensions, or on another system than Linux, nothing is stated.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from machtrace.errors import ArgumentError

try:
    from machtrace._native import _inprocess
except ImportError:
    _CAN_STATE = False
else:
    _CAN_STATE = hasattr(_inprocess, "Scope")

SILENT = -1
"""``MACHTRACE_BEACON_SILENT``: the thread states nothing."""

_MAX_SECONDS = 1e9


def deadline(seconds: float, name: str = "") -> AbstractContextManager[object]:
    """Return a scope that the calling thread should leave in time.

    A watcher of this process reports a hang if it does not, with the thread's stacks, whatever the
    thread does meanwhile. Scopes can be nested; they cost less than a microsecond, and nothing is
    reported without a watcher.

        >>> import machtrace as mt
        >>> with mt.deadline(0.2, "parse"):
        ...     document = 6 * 7

    Args:
        seconds: the time from entering the scope to leaving it.
        name: what the scope does, which incidents state; its first 23 bytes.

    Raises:
        ArgumentError: it is no time.
    """
    if not 0 < seconds < _MAX_SECONDS:
        raise ArgumentError(
            f"invalid deadline: {seconds!r} seconds", remedy="pass more than 0 seconds"
        )
    return _inprocess.Scope(seconds, name) if _CAN_STATE else nullcontext()


def idle_wait(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function whose calls are the calling thread's idle wait, such as a ``select``."""
    return _inprocess.IdleWait(function) if _CAN_STATE else function


def stated_by(thread: int) -> tuple[int, int] | None:
    """Return since when a thread is busy (0: it is idle), and its task; None if it is silent."""
    stated = _inprocess.beacon_state(thread) if _CAN_STATE else None
    return None if stated is None or stated[0] == SILENT else stated


def silence(thread: int) -> None:
    """State that a thread left its loop."""
    if _CAN_STATE:
        _inprocess.beacon_silence(thread)
