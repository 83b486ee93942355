"""Ctrl-C as a wish to end, and not to break off."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_by_ctrl_c() -> Iterator[Callable[[], bool]]:
    """What it yields says whether Ctrl-C was pressed; pressed again it interrupts, as always.

    Where SIGINT is ignored, as in what a shell runs in the background, it stays so.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or before is None:
        yield lambda: False
        return
    pressed = False

    def press(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
