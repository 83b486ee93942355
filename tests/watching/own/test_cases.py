"""Cases of the own process, from recorded events."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from machtrace.model.arch import Arch
from machtrace.model.incident.facts import WatchedThread
from machtrace.targets.inprocess.watchdog_records import (
    WatchdogCapture,
    WatchdogCause,
    WatchdogEvent,
    WatchdogPhase,
)
from machtrace.watching.naming import Namer, RawCopy
from machtrace.watching.own.cases import Cases, NumberedPoll

MS = 1_000_000
LOCK, HANG = 1, 2


class NoPolls:
    """Events are all that was recorded."""

    def copy_of(self, capture: WatchdogCapture) -> RawCopy:
        """There is none."""
        raise AssertionError(capture)

    def polls(self, first: int) -> Iterable[NumberedPoll]:
        """There are none."""
        del first
        return ()

    def thread(self, thread: int) -> WatchedThread:
        """Without a name."""
        return WatchedThread(thread)


def event(incident: int, phase: WatchdogPhase, at_ms: int) -> WatchdogEvent:
    return WatchdogEvent(
        phase=phase,
        incident=incident,
        cause=WatchdogCause.GIL if incident == LOCK else WatchdogCause.THREAD,
        thread=20 if incident == LOCK else 10,
        began_ns=0,
        at_ns=at_ms * MS,
        boot_ns=at_ms * MS,
        last_ns=0,
        limit_ns=100 * MS,
        key=1,
        first_poll=1,
        poll=at_ms,
        waiters=1,
        waiter=10,
        label="",
    )


@pytest.mark.parametrize("first", [LOCK, HANG])
def test_a_kept_lock_is_reported_if_its_waiters_hang_is_not(first: int) -> None:
    """Nothing proves the hang, since the thread was never polled."""
    cases = Cases(NoPolls(), Namer(()), Arch.X86_64, 20 * MS)
    last = HANG if first == LOCK else LOCK
    assert not cases.take(
        event(incident, phase, at)
        for at, phase in ((60, WatchdogPhase.SUSPECTED), (100, WatchdogPhase.SEEN))
        for incident in (HANG, LOCK)
    )
    reported = [
        *cases.take([event(first, WatchdogPhase.ENDED, 300)]),
        *cases.take([event(last, WatchdogPhase.ENDED, 320)]),
    ]
    assert [case.event.incident for case in reported] == [LOCK]
