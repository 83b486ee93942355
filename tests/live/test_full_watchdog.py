"""A watchdog whose ring is full, since nobody takes its records or one incident lasts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("machtrace._native._inprocess", reason="the extension is not built")
if sys.platform != "linux":
    pytest.skip("the watchdog is for Linux", allow_module_level=True)

from machtrace._native import _inprocess
from machtrace.targets.inprocess.beacons import deadline
from machtrace.targets.inprocess.watchdog_records import (
    WatchdogEvent,
    WatchdogPhase,
    WatchdogReader,
)

ROOM = 1 << 20
EVENT_SIZE = 176
"""At least: ``struct machtrace_watchdog_event`` with its padding."""
SPARE = 1 << 17
"""Bytes that captures leave to events."""
MS = 1_000_000


@pytest.fixture
def watchdog() -> Iterator[_inprocess.Watchdog]:
    own = _inprocess.Watchdog(2 * MS, MS, 1 << 17, 30 * MS, 2 * MS, 0, ROOM, -1, b"{}", b"")
    yield own
    own.stop()


def events(watchdog: _inprocess.Watchdog) -> list[WatchdogEvent]:
    items = WatchdogReader().read(watchdog.take())
    return [item for item in items if isinstance(item, WatchdogEvent)]


def exceed_a_deadline() -> None:
    with deadline(0.0005, "short"):
        time.sleep(0.003)


def test_every_incident_that_is_recorded_has_its_end_though_nobody_takes_records(
    watchdog: _inprocess.Watchdog,
) -> None:
    until = time.monotonic() + 60
    # Until the ring is full of captures, and then of events.
    while watchdog.counts()[-1] == 0 and time.monotonic() < until:
        exceed_a_deadline()
    for _ in range(SPARE // EVENT_SIZE // 2):
        exceed_a_deadline()
    watchdog.wait(0, 0)
    rounds = watchdog.counts()[0]
    while watchdog.counts()[0] < rounds + 2:
        time.sleep(0.001)
    recorded = events(watchdog)
    begun = {each.incident for each in recorded if each.phase is WatchdogPhase.SUSPECTED}
    ended = {each.incident for each in recorded if each.phase is WatchdogPhase.ENDED}
    assert len(begun) > 10
    assert begun == ended
    later: list[WatchdogEvent] = []
    while not later and time.monotonic() < until + 60:  # there is room again
        exceed_a_deadline()
        later = events(watchdog)
    assert {each.incident for each in later}.isdisjoint(begun)


def test_an_incident_that_lasts_does_not_keep_the_ring_full(
    watchdog: _inprocess.Watchdog,
) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id is not None
    watchdog.watch(thread.native_id)
    taken = 0
    lasting: list[WatchdogEvent] = []
    until = time.monotonic() + 60
    reader = WatchdogReader()
    while taken < 3 * ROOM and time.monotonic() < until:
        exceed_a_deadline()
        data = watchdog.take()
        taken += len(data)
        lasting += [
            item
            for item in reader.read(data)
            if isinstance(item, WatchdogEvent) and item.thread == thread.native_id
        ]
    end.set()
    thread.join()
    assert taken >= 3 * ROOM
    assert {each.incident for each in lasting} == {lasting[0].incident}
    # It is recorded again whenever its first records go.
    assert [each.phase for each in lasting].count(WatchdogPhase.SEEN) >= 2
