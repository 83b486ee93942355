"""Root waits where names do not decide: by the order in which places are entered."""

from __future__ import annotations

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.polls import UNKNOWN_CALL, CallPlace, SystemCall
from machtrace.watching.hangs.root_waits import RootWaits
from machtrace.watching.hangs.wait_roles import NamedWait, WaitRole

READ, POLL, NANOSLEEP, RECV, FUTEX, EPOLL = 0, 7, 35, 45, 202, 232


def place_of(number: int, sp: int = 0x8000) -> CallPlace:
    return CallPlace(number, Avma(sp), Avma(0x1000))


def visited(*places: CallPlace, waits: RootWaits | None = None) -> RootWaits:
    """Return the waits of a thread that enters places in that order."""
    waits = waits or RootWaits(Arch.X86_64)
    for place in places:
        waits.visit(place)
        if waits.role(place) is None:
            waits.add(place, NamedWait(WaitRole.UNKNOWN, f"caller_{place.number}_{place.sp:x}"))
    return waits


LOOP = place_of(EPOLL, 0x9000)
TASKS = [place_of(number, 0x7000 + number) for number in (RECV, FUTEX, NANOSLEEP, READ)]


def test_the_only_wait_is_the_loops() -> None:
    assert visited(LOOP).role(LOOP) is WaitRole.ROOT


def test_a_wait_for_events_precedes_others() -> None:
    waits = visited(TASKS[0], LOOP)
    assert [waits.role(LOOP), waits.role(TASKS[0])] == [WaitRole.ROOT, WaitRole.OTHER]


def test_a_wait_that_is_entered_from_many_is_the_loops() -> None:
    """``main`` reads commands; a task of it waits for events."""
    loop, modal = place_of(READ), place_of(EPOLL)
    waits = visited(loop, modal, loop)
    assert waits.is_idle(loop)
    for task in TASKS[:3]:
        waits = visited(task, loop, waits=waits)
        assert waits.is_idle(loop)
    assert [waits.role(loop), waits.role(modal)] == [WaitRole.ROOT, WaitRole.OTHER]
    assert waits.is_proven(loop)


def test_what_was_waited_in_first_is_the_loops_until_more_is_known() -> None:
    """A task that alternates between two waits does not make either of them the loop's."""
    loop, *tasks = (place_of(number) for number in (FUTEX, RECV, READ))
    waits = visited(loop, *tasks * 20)
    assert [waits.is_idle(place) for place in (loop, *tasks)] == [True, False, False]


def test_a_loop_that_was_seen_after_a_task_is_found() -> None:
    task, loop = place_of(RECV), place_of(NANOSLEEP, 0x9000)
    waits = visited(task)
    for other in (TASKS[1], TASKS[3], place_of(FUTEX, 0x6000)):
        visited(loop, other, waits=waits)
    visited(loop, waits=waits)
    assert [waits.is_idle(loop), waits.is_idle(task)] == [True, False]


def test_a_proven_loop_stays_however_often_a_task_waits() -> None:
    waits = visited(*(place for task in TASKS for place in (LOOP, task)), LOOP)
    visited(*TASKS * 100, waits=waits)
    assert waits.is_idle(LOOP)
    assert not any(map(waits.is_idle, TASKS))


def test_a_loop_that_is_not_entered_any_more_is_forgotten() -> None:
    waits = visited(*(place for task in TASKS for place in (LOOP, task)), LOOP)
    new = place_of(READ, 0x9100)
    visited(*(place for _ in range(150) for task in TASKS for place in (new, task)), waits=waits)
    assert waits.is_idle(new)


def test_a_poll_below_the_loops_wait_is_a_tasks() -> None:
    task = place_of(POLL)
    assert visited(LOOP, task, LOOP, task).role(task) is WaitRole.OTHER


def test_the_same_loop_below_itself_is_nested() -> None:
    loop, modal = place_of(EPOLL, 0x9000), place_of(EPOLL, 0x8000)
    waits = RootWaits(Arch.X86_64)
    for place in (loop, modal):
        waits.add(place, NamedWait(WaitRole.UNKNOWN, "wait"))
    assert waits.role(modal) is WaitRole.NESTED
    assert not waits.is_idle(modal)


def test_a_known_loop_leaves_no_doubt() -> None:
    loop, task = place_of(EPOLL), place_of(POLL, 0x9000)
    waits = visited(task)
    waits.add(loop, NamedWait(WaitRole.ROOT, "uv_run"))
    assert waits.role(task) is WaitRole.OTHER


def test_the_same_python_functions_are_one_wait_wherever_the_stack_pointer_is() -> None:
    waits = RootWaits(Arch.X86_64)
    path = (("serve", "/srv/app.py", 9), ("main", "/srv/app.py", 20))
    places = [place_of(EPOLL, 0x7F00 + 8 * at) for at in range(3)]
    task = place_of(NANOSLEEP, 0x6000)
    for place in places:
        waits.visit(place)
        waits.add(place, NamedWait(WaitRole.UNKNOWN, "serve", path))
        waits.visit(task)
        waits.add(task, NamedWait(WaitRole.UNKNOWN, "work", (("work", "/srv/app.py", 3), *path)))
    assert [waits.role(place) for place in places] == [WaitRole.ROOT] * 3
    assert waits.role(task) is WaitRole.OTHER
    assert len(waits) == 2


def test_a_wait_that_continues_after_a_stop_is_the_same() -> None:
    waits = visited(LOOP)
    again = SystemCall(219, (), LOOP.sp, LOOP.pc)
    assert waits.place_of(again) == LOOP


def test_a_wait_that_was_interrupted_before_it_was_seen_can_be_a_loops() -> None:
    """Frida's attaching interrupts the main thread's wait, which restart_syscall continues."""
    waits = RootWaits(Arch.X86_64)
    place = waits.place_of(SystemCall(219, (), LOOP.sp, LOOP.pc))
    assert place.number == UNKNOWN_CALL
    waits.visit(place)
    assert waits.role(place) is None
    waits.add(place, NamedWait(WaitRole.OWN, "main"))
    assert waits.is_idle(place)


def test_registers_show_a_thread_that_is_back() -> None:
    waits = visited(LOOP, TASKS[0])
    at = [waits.is_idle_at(place.sp, place.pc) for place in (LOOP, TASKS[0])]
    assert at == [True, False]
    assert not waits.is_idle_at(None, None)


def test_no_loop_waits_for_a_file_lock_or_to_write() -> None:
    waits = RootWaits(Arch.X86_64)
    for number in (18, 73):
        place = place_of(number)
        waits.visit(place)
        assert waits.role(place) is WaitRole.OTHER


def test_a_known_loop_in_a_task_of_an_unknown_one_is_nested() -> None:
    """``run_until_complete`` in a callback of a loop around ``queue.get``."""
    serve = (("serve", "/srv/app.py", 9), ("main", "/srv/app.py", 20))
    task = (("work", "/srv/app.py", 3), ("serve", "/srv/app.py", 10), serve[1])
    waits = RootWaits(Arch.X86_64)
    loop, mutex, nested = place_of(FUTEX), place_of(RECV), place_of(EPOLL)
    for place, path, role in (
        (loop, serve, WaitRole.UNKNOWN),
        (mutex, task, WaitRole.UNKNOWN),
        (loop, serve, WaitRole.UNKNOWN),
        (nested, (("BaseEventLoop._run_once", "asyncio/base_events.py", 1), *task), WaitRole.ROOT),
        (loop, serve, WaitRole.UNKNOWN),
    ):
        waits.visit(place)
        waits.add(place, NamedWait(role, path[0][0], path))
    assert [waits.role(each) for each in (loop, nested)] == [WaitRole.ROOT, WaitRole.NESTED]


def test_a_wait_before_a_known_loop_does_not_make_it_nested() -> None:
    """``main`` sleeps once, then runs asyncio."""
    main = (("main", "/srv/app.py", 20),)
    waits = RootWaits(Arch.X86_64)
    nap, loop = place_of(NANOSLEEP), place_of(EPOLL)
    waits.visit(nap)
    waits.add(nap, NamedWait(WaitRole.OWN, "main", main))
    waits.visit(loop)
    path = (("BaseEventLoop._run_once", "asyncio/base_events.py", 1), *main)
    waits.add(loop, NamedWait(WaitRole.ROOT, "BaseEventLoop._run_once", path))
    assert [waits.role(each) for each in (nap, loop)] == [WaitRole.OTHER, WaitRole.ROOT]


PYTHON_LOOP = (("select", "selectors.py", 468), ("serve", "server.py", 3))
PYTHON_TASK = (("select", "selectors.py", 468), ("run", "base_events.py", 9), *PYTHON_LOOP[1:])


def called(waits: RootWaits, argument: int, path: tuple[tuple[str, str, int], ...]) -> CallPlace:
    """Enter a wait of Python's, and look it up if it is new."""
    place = waits.place_of(SystemCall(EPOLL, (argument, 1), Avma(0x8000), Avma(0x1000)))
    waits.visit(place)
    if waits.role(place) is None:
        role = WaitRole.UNKNOWN if path is PYTHON_LOOP else WaitRole.OTHER
        waits.add(place, NamedWait(role, path[1][0], path))
    return place


def test_a_task_of_python_that_waits_in_the_frame_of_its_loop_is_no_loop() -> None:
    """Calls from Python to Python have no frame of C, so that only arguments differ."""
    waits = RootWaits(Arch.X86_64)
    loop = called(waits, 4, PYTHON_LOOP)
    assert waits.is_idle(loop)
    task = called(waits, 7, PYTHON_TASK)
    assert [waits.is_idle(loop), waits.is_idle(task)] == [True, False]
    assert not waits.is_idle_at(task.sp, task.pc)
    assert called(waits, 4, PYTHON_LOOP) == loop
    assert waits.is_idle_at(loop.sp, loop.pc)


def test_new_locks_of_a_task_are_not_looked_up_before_it_hangs() -> None:
    waits = RootWaits(Arch.X86_64)
    task, loop = called(waits, 7, PYTHON_TASK), SystemCall(EPOLL, (9, 1), Avma(0x8000), Avma(1))
    new = waits.place_of(SystemCall(EPOLL, (8, 1), task.sp, task.pc))
    assert [waits.role(new), waits.may_be_idle(new)] == [None, False]
    assert waits.may_be_idle(waits.place_of(loop))


def test_a_new_lock_in_the_frame_of_the_loop_is_looked_up_first() -> None:
    waits = RootWaits(Arch.X86_64)
    loop = called(waits, 7, PYTHON_LOOP)
    new = waits.place_of(SystemCall(EPOLL, (8, 1), loop.sp, loop.pc))
    assert waits.may_be_idle(new)


def test_a_wait_of_python_that_was_interrupted_continues() -> None:
    waits = RootWaits(Arch.X86_64)
    called(waits, 4, PYTHON_LOOP)
    task = called(waits, 7, PYTHON_TASK)
    assert waits.place_of(SystemCall(219, (7, 1), task.sp, task.pc)) == task


def test_waits_of_the_same_python_functions_are_one_whatever_their_locks() -> None:
    waits = RootWaits(Arch.X86_64)
    loop = called(waits, 4, PYTHON_LOOP)
    for argument in range(5, 40):
        called(waits, argument, PYTHON_LOOP)
    assert {called(waits, argument, PYTHON_LOOP) for argument in range(4, 40)} == {loop}
    assert waits.is_idle(loop)
