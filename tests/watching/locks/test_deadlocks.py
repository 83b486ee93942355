"""Cycles of waits, and what two surveys prove of them."""

from __future__ import annotations

from machtrace.model.address import Avma
from machtrace.model.incident.facts import LockOwner, WaitsFor
from machtrace.model.polls import SystemCall
from machtrace.watching.locks.deadlocks import (
    BlockedThread,
    DeadlockDetector,
    LockSurvey,
    deadlock_cycles,
    stuck_threads,
)
from machtrace.watching.locks.owners import NOT_RECORDED, OwnedWait

PROCESSES = {1: (1, 2, 3, 4)}


def blocked(thread, owner=None, *, process=None, pid=1, switches=(5, 5), value=2, **wait):
    lock_owner = NOT_RECORDED
    if owner is not None or process is not None:
        lock_owner = LockOwner(pid if process is None else process, owner, recorded=True)
    call = SystemCall(202, (0x1000 * thread, 128, value), Avma(0x7000), Avma(0x8000))
    waits_for = WaitsFor("mutex", Avma(0x1000 * thread), lock_owner)
    return BlockedThread(pid, thread, call, OwnedWait(waits_for, **wait), switches)


def survey(*threads, processes=PROCESSES):
    return LockSurvey({thread.thread: thread for thread in threads}, processes)


def proven(*surveys):
    detector = DeadlockDetector()
    results = [detector.cycles(each) for each in surveys]
    return [[thread.thread for thread in cycle.threads] for cycle in results[-1]]


RING = survey(blocked(1, 2), blocked(2, 3), blocked(3, 1))


def test_a_ring_in_two_surveys_is_a_deadlock():
    assert proven(RING, RING) == [[1, 2, 3]]


def test_one_survey_is_a_suspicion():
    detector = DeadlockDetector()
    assert detector.cycles(RING) == ()
    assert detector.is_suspicious
    assert len(detector.cycles(RING)) == 1


def test_a_thread_that_ran_meanwhile_ends_the_proof():
    ran = survey(blocked(1, 2), blocked(2, 3, switches=(6, 5)), blocked(3, 1))
    assert proven(RING, ran) == []
    assert proven(RING, ran, ran) == [[1, 2, 3]]


def test_unknown_switches_prove_nothing():
    unknown = survey(*(blocked(at, at % 3 + 1, switches=None) for at in (1, 2, 3)))
    assert proven(unknown, unknown) == []


def test_another_owner_or_call_ends_the_proof():
    assert proven(RING, survey(blocked(1, 3), blocked(2, 3), blocked(3, 1))) == []
    assert proven(RING, survey(blocked(1, 2, value=3), blocked(2, 3), blocked(3, 1))) == []


def test_a_chain_to_a_thread_that_runs():
    chain = survey(blocked(1, 2), blocked(2, 3))
    assert proven(chain, chain) == []


def test_a_wait_with_a_time_limit_or_without_an_owner():
    timed = survey(blocked(1, 2, is_timed=True), blocked(2, 1))
    assert proven(timed, timed) == []
    unowned = survey(blocked(1), blocked(2, 1))
    assert proven(unowned, unowned) == []


def test_a_thread_that_waits_for_itself():
    alone = survey(blocked(4, 4))
    assert proven(alone, alone) == [[4]]


def test_a_waiter_outside_of_the_ring_is_not_part_of_it():
    tail = survey(blocked(1, 2), blocked(2, 1), blocked(3, 1))
    assert proven(tail, tail) == [[1, 2]]


def test_two_rings_are_two_deadlocks():
    both = survey(blocked(1, 2), blocked(2, 1), blocked(3, 4), blocked(4, 3))
    assert proven(both, both) == [[1, 2], [3, 4]]
    (first, second) = deadlock_cycles(both, frozenset({1, 2, 3, 4}))
    assert first.key != second.key


def test_every_thread_of_a_process_can_release_its_file():
    processes = {1: (1,), 5: (5, 6)}
    mine, others = blocked(1, process=5), blocked(5, process=1, pid=5)
    assert stuck_threads({1: mine, 5: others}, processes) == frozenset()
    third = blocked(6, 5, pid=5)
    every = survey(mine, others, third, processes=processes)
    assert proven(every, every) == [[1, 5]]


def test_a_process_that_shares_the_open_file_can_release_it():
    processes = {1: (1,), 5: (5,), 6: (6,)}
    mine, others = blocked(1, process=5, sharers=(6,)), blocked(5, process=1, pid=5)
    assert stuck_threads({1: mine, 5: others}, processes) == frozenset()
    assert stuck_threads({1: mine, 5: others}, processes | {6: ()}) == frozenset()
    child = blocked(6, process=1, pid=6)
    assert len(stuck_threads({1: mine, 5: others, 6: child}, processes)) == 3


def test_a_waiter_for_the_interpreter_lock_wakes_from_time_to_time():
    gil = {"is_repeated": True}
    first = survey(blocked(1, 2), blocked(2, 1, switches=None, **gil))
    woken = survey(blocked(1, 2), blocked(2, 1, switches=None, value=4, **gil))
    assert proven(first, woken) == [[1, 2]]
    ran = survey(blocked(1, 2, switches=(6, 5)), blocked(2, 1, switches=None, **gil))
    assert proven(first, ran) == []
