"""The line on a terminal that shows what watched threads do."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from machtrace.cli import console
from machtrace.model.incident.text import shown_bytes
from machtrace.model.text import counted

if TYPE_CHECKING:  # its package is imported when the command runs
    from machtrace.watching.watcher import Watcher

_REDRAW_NS = 500_000_000
_SHOWN = 3
"""Threads in the line."""


class LiveLine:
    """One line on a terminal with what the watched threads do; nothing elsewhere.

    Args:
        stream: standard error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_shown = stream.isatty() and not console.is_quiet()
        self._text = ""
        self._drawn_ns = 0
        self._lock = threading.Lock()

    def is_due(self) -> bool:
        """Return whether the line is drawn now: at most twice a second."""
        now = time.monotonic_ns()
        if now - self._drawn_ns < _REDRAW_NS:
            return False
        self._drawn_ns = now
        return True

    def show(self, watcher: Watcher) -> None:
        """Draw the line."""
        if not self._is_shown:
            return
        states = [f"{thread}: {state or '?'}" for thread, state in watcher.states.items()]
        more = f" and {len(states) - _SHOWN} more" if len(states) > _SHOWN else ""
        facts = [f"{'  '.join(states[:_SHOWN])}{more}"]
        for point in watcher.series[-1:]:
            if point.cpu_share is not None:
                facts.append(f"processor {100 * point.cpu_share:.0f} %")
            if point.resident is not None:
                facts.append(f"memory {shown_bytes(point.resident)}")
        facts.append(counted(len(watcher.incidents), "incident"))
        text = "  ".join(facts)
        with self._lock:
            if text != self._text:
                self._text = text
                self._draw(text)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the line until the end of the block, in which something else is printed."""
        with self._lock:
            if self._text:
                self._draw("")
            yield
            if self._text:
                self._draw(self._text)

    def clear(self) -> None:
        """Remove the line."""
        with self._lock:
            if self._text:
                self._draw("")
            self._text = ""

    def _draw(self, text: str) -> None:
        width = max(1, shutil.get_terminal_size().columns - 1)
        self._stream.write(f"\r\x1b[K{text[:width]}")
        self._stream.flush()
