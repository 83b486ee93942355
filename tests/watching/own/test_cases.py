"""Cases of the own process, from recorded events."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from machtrace.model.arch import Arch
from machtrace.model.incident.facts import WatchedThread
from machtrace.targets.inprocess.records import RecordedCapture
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
WATCHER = 30


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

    def is_watcher(self, thread: int) -> bool:
        """One thread is."""
        return thread == WATCHER


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


def capture_of(incident: int) -> WatchdogCapture:
    recorded = RecordedCapture(
        tick=incident,
        began_ns=0,
        ended_ns=0,
        listed=0,
        threads=(),
        images_changed=False,
        mappings=(),
    )
    return WatchdogCapture(
        incident=incident,
        is_all=False,
        is_late=False,
        recorded=recorded,
        chains={},
        code=(),
        code_count=0,
    )


def test_a_damaged_record_has_no_more_captures_and_incidents_than_a_watchdog_makes() -> None:
    """Each takes time to name, and a record has room for many thousands without threads."""
    cases = Cases(NoPolls(), Namer(()), Arch.X86_64, 20 * MS)
    begun = [event(number, WatchdogPhase.SUSPECTED, 60) for number in range(LOCK, 5000)]
    cases.take([*begun, *(capture_of(4999) for _ in range(5000))])
    assert len(cases.suspected()) < 1100
    (case,) = cases.take([event(4999, WatchdogPhase.SEEN, 100)._replace(cause=WatchdogCause.SCOPE)])
    assert len(case.captures) < 100


def test_a_lock_that_the_watcher_holds_is_no_incident_of_the_program() -> None:
    cases = Cases(NoPolls(), Namer(()), Arch.X86_64, 20 * MS)
    seen = event(LOCK, WatchdogPhase.SEEN, 100)
    assert not cases.take([seen._replace(thread=WATCHER)])
    assert cases.take([seen._replace(incident=3)])


def test_an_incident_that_is_recorded_again_was_seen_the_first_time() -> None:
    cases = Cases(NoPolls(), Namer(()), Arch.X86_64, 20 * MS)
    (case,) = cases.take([event(LOCK, WatchdogPhase.SEEN, at) for at in (100, 9000)])
    assert case.seen == event(LOCK, WatchdogPhase.SEEN, 100)


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
