"""Waiting for what cannot be cancelled: what comes too late is undone when it comes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[_Result]):
    found: _Result | None
    failure: BaseException | None


def within(
    seconds: float, work: Callable[[], _Result], undo: Callable[[_Result], object] | None = None
) -> _Result:
    """What ``work`` gives, done by a thread of its own.

    Args:
        seconds: how long it may take.
        work: what it raises is raised here.
        undo: called with what comes after the time is over, or after Ctrl-C.

    Raises:
        TimeoutError: it did not come in time.
    """
    done: queue.SimpleQueue[_Outcome[_Result]] = queue.SimpleQueue()
    turn, left = threading.Lock(), threading.Event()

    def take_back(outcome: _Outcome[_Result]) -> None:
        if undo is not None and outcome.found is not None:
            undo(outcome.found)

    def run() -> None:
        try:
            outcome = _Outcome(work(), None)
        except BaseException as error:  # noqa: BLE001 - raised again, in the caller's thread
            outcome = _Outcome(None, error)
        with turn:
            if not left.is_set():
                done.put(outcome)
                return
        take_back(outcome)

    threading.Thread(target=run, name="machtrace frida", daemon=True).start()
    try:
        outcome = done.get(timeout=seconds)
    except BaseException as error:
        with turn:
            left.set()
        if not done.empty():
            take_back(done.get())
        if isinstance(error, queue.Empty):
            raise TimeoutError from None
        raise
    if outcome.failure is not None:
        raise outcome.failure
    return outcome.found  # type: ignore[return-value]  # what `work` gave, None included
