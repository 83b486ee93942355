"""Root waits: the places where a thread's own loop waits for the next thing to do.

A thread there is idle, everywhere else it is away. Each new place is looked up once: the wait is a
loop's own if only the loop's machinery lies between them
(:mod:`machtrace.watching.hangs.wait_roles`). Where names do not decide, recurrence does: a loop's
wait is entered from many others, a task's mostly from the loop's.
"""

from __future__ import annotations

from typing import NamedTuple

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.polls import UNKNOWN_CALL, CallPlace, SystemCall
from machtrace.watching.hangs.wait_roles import UNDECIDED, NamedWait, WaitRole

_MAX_PLACES = 1000
"""Places that are counted; a thread that waits in more of them has no loop."""
_MAX_ORIGINS = 16
_PROVEN_ORIGINS = 3
_LEAD = 2
"""Origins by which one wait precedes another, whatever calls they are."""
_MAX_ARGUMENTS = 8
"""Arguments of one call of Python's that are distinguished: locks may be new in each wait."""
_FORGOTTEN = 500
"""Entries to other places after which a loop's wait is not its wait any more."""

_EVENT_CALLS = {
    Arch.X86_64: frozenset({7, 23, 34, 43, 128, 130, 208, 232, 270, 271, 281, 288, 426, 441}),
    Arch.ARM64: frozenset({4, 22, 72, 73, 133, 137, 202, 242, 426, 441}),
}
"""Numbers of system calls that wait for events, connections or signals: poll, select, pause,
accept, rt_sigtimedwait, rt_sigsuspend, io_getevents, epoll_wait, pselect6, ppoll, epoll_pwait,
accept4, io_uring_enter and epoll_pwait2."""

_LOOP_CALLS = {
    Arch.X86_64: frozenset({232, 281, 426, 441}),
    Arch.ARM64: frozenset({22, 426, 441}),
}
"""Those of event loops alone: epoll_wait, epoll_pwait, io_uring_enter and epoll_pwait2."""

_QUEUE_CALLS = {
    Arch.X86_64: frozenset(
        {0, 16, 19, 35, 45, 47, 61, 65, 70, 202, 220, 230, 243, 247, 299, 449, 455}
    ),
    Arch.ARM64: frozenset(
        {29, 63, 65, 95, 98, 101, 115, 183, 188, 192, 193, 207, 212, 243, 260, 449, 455}
    ),
}
"""Further calls in which loops wait: read, readv, ioctl, recvfrom, recvmsg, recvmmsg, futex,
futex_wait, futex_waitv, nanosleep, clock_nanosleep, wait4, waitid, semop, semtimedop, msgrcv and
mq_timedreceive."""
_RESTART = {Arch.X86_64: 219, Arch.ARM64: 128}
"""restart_syscall: the wait before it continues after a signal or a stop."""


class _Place:
    __slots__ = ("caller", "is_event", "order", "origins", "path", "role", "turns")

    def __init__(self, order: int, *, is_event: bool) -> None:
        self.role: WaitRole | None = None
        self.caller = ""
        self.path: tuple[tuple[str, str, int | None], ...] = ()
        """Its Python functions, innermost first."""
        self.order = order
        self.is_event = is_event
        self.turns = 0
        """The times that it was entered after another place."""
        self.origins: set[CallPlace | None] = set()
        """The places from which it was entered; None of the one that was seen first."""


class _Candidate(NamedTuple):
    place: CallPlace
    known: _Place


class RootWaits:
    """The places where one thread waits, and their roles.

    Args:
        arch: of the process, which numbers its system calls.
    """

    def __init__(self, arch: Arch) -> None:
        table = Arch.ARM64 if arch.is_arm64 else Arch.X86_64
        self._events, self._loops = _EVENT_CALLS[table], _LOOP_CALLS[table]
        self._queues, self._restart = _QUEUE_CALLS[table], _RESTART[table]
        self._places: dict[CallPlace, _Place] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        """The call at each place that was not a continued one."""
        self._last: CallPlace | None = None
        self._current: SystemCall | None = None
        """The call of the last poll in a wait."""
        self._loop: CallPlace | None = None
        """The root wait that recurrence has proven."""
        self._since_loop = 0
        self._named: dict[CallPlace, _Place] = {}
        """Waits of loops by their names."""
        self._has_named_loop = False
        self._roles: dict[CallPlace, WaitRole | None] = {}
        """Decisions since the last entry to another place."""
        self._arguments: dict[CallPlace, list[int]] = {}
        """The first arguments of the calls at a place, that of its lookup first: in Python, a task
        may wait in the very frame of C in which its loop does."""
        self._paths: dict[tuple[int, object], CallPlace] = {}
        """The first place of each call with the same Python functions."""
        self._same: dict[CallPlace, CallPlace] = {}
        """The first place with the same Python functions, for others."""

    def __len__(self) -> int:
        return len(self._places)

    def add(self, place: CallPlace, wait: NamedWait) -> None:
        """Set the role that a place's stack has."""
        if wait.path:
            if place.argument is None and self._current and self._current.place == place:
                self._arguments[place] = [*self._current.arguments[:1]]
            same = self._paths.setdefault((place.number, wait.path), place)
            if same != place:
                self._merge(place, same)
                place = same
        known = self._place(place)
        known.role, known.caller, known.path = wait.role, wait.caller, wait.path
        if wait.role in (WaitRole.ROOT, WaitRole.WORKER):
            self._named[place] = known
        self._prove()

    def place_of(self, call: SystemCall) -> CallPlace:
        """Return the place of a call, or of that which it continues: one for each wait."""
        number = call.number
        last = self._last
        if number == self._restart and last is not None and last[1:3] == (call.sp, call.pc):
            return last
        self._current = call
        if number == self._restart:
            # What interrupted it may have been the start of watching: then its call was never seen.
            number = self._numbers.get((call.sp, call.pc), UNKNOWN_CALL)
        place = CallPlace(number, call.sp, call.pc)
        arguments = self._arguments.get(place)
        argument = call.arguments[0] if call.arguments else 0
        if arguments and argument != arguments[0]:
            if argument not in arguments and len(arguments) < _MAX_ARGUMENTS:
                arguments.append(argument)
            place = place._replace(argument=argument if argument in arguments else None)
        return self._same.get(place, place)

    def visit(self, place: CallPlace) -> None:
        """Take the place of the next poll in a wait."""
        last = self._last
        if place == last or (len(self._places) >= _MAX_PLACES and place not in self._places):
            return
        self._last = place
        known = self._place(place)
        known.turns += 1
        if len(known.origins) < _MAX_ORIGINS:
            known.origins.add(last)
        self._since_loop = 0 if place == self._loop else self._since_loop + 1
        if self._loop is not None and self._since_loop > _FORGOTTEN:
            self._loop = None
            for each in self._places.values():
                each.turns = 0
                each.origins.clear()
        self._prove()

    def role(self, place: CallPlace) -> WaitRole | None:
        """Return the role of a place as all that is known decides; None if it is not looked up."""
        place = self._same.get(place, place)
        if place not in self._roles:
            self._roles[place] = self._decide(place)
        return self._roles[place]

    def is_event(self, place: CallPlace) -> bool:
        """Whether the system call waits for events, connections or signals."""
        return place.number in self._events

    def is_nested(self, place: CallPlace) -> bool:
        """Whether it is the wait of a loop within a task, as far as is known."""
        role = self.role(place)
        return role is WaitRole.NESTED or (
            role is WaitRole.OTHER
            and place.number in self._loops
            and self._places[self._same.get(place, place)].role in UNDECIDED
        )

    def is_idle(self, place: CallPlace) -> bool:
        """Whether a thread in that place has nothing to do, as far as is known."""
        role = self.role(place)
        return role is not None and role.is_idle

    def may_be_idle(self, place: CallPlace) -> bool:
        """Whether a place that is not looked up yet may be the loop's wait.

        In a frame of Python's in which tasks wait, each lock is another place: a task's, probably.
        """
        if self.role(place) is not None:
            return False
        return place.argument is None or self.is_idle(place._replace(argument=None))

    def is_idle_at(self, sp: int | None, pc: int | None) -> bool:
        """Whether a thread with these registers has nothing to do, as far as is known."""
        if sp is None or pc is None:
            return False
        if self._last is not None and self._last[1:3] == (sp, pc):
            return self.is_idle(self._last)
        number = self._numbers.get((sp, pc))
        return number is not None and self.is_idle(CallPlace(number, Avma(sp), Avma(pc)))

    def is_proven(self, place: CallPlace) -> bool:
        """Whether the role of a place will not change: by its names, or by a proven loop."""
        known = self._places.get(self._same.get(place, place))
        if known is None or known.role is None:
            return False
        return known.role not in UNDECIDED or self._loop is not None or self._has_named_loop

    def _merge(self, place: CallPlace, same: CallPlace) -> None:
        """Make one place of two."""
        if len(self._same) < _MAX_PLACES:
            self._same[place] = same
        known = self._place(same)
        other = self._places.pop(place, None)
        if other is not None:
            known.turns += other.turns
            known.origins |= other.origins
        for each in self._places.values():
            if place in each.origins:
                each.origins.discard(place)
                each.origins.add(same)
        known.origins.discard(same)
        self._last = same if self._last == place else self._last
        self._loop = same if self._loop == place else self._loop

    def _is_within(self, named: _Place) -> bool:
        """Whether a loop with a name runs in a task of another, whose wait was entered before."""
        functions = {function[:2] for function in named.path[1:]}
        return any(
            each.known.path
            and each.known.path[0][:2] in functions
            and each.known.order < named.order
            and (each.known.turns > 1 or each.place == self._loop)
            for each in (self._undecided() if functions else ())
        )

    def _undecided(self) -> list[_Candidate]:
        return [
            _Candidate(place, known)
            for place, known in self._places.items()
            if known.role in UNDECIDED
        ]

    def _prove(self) -> None:
        """Decide which wait is the loop's, if one was entered from far more places than others."""
        self._roles.clear()
        self._has_named_loop = any(not self._is_within(each) for each in self._named.values())
        if self._loop is not None or self._has_named_loop:
            return
        candidates = self._undecided()
        if not candidates:
            return
        best = max(candidates, key=lambda each: len(each.known.origins))
        least = len(best.known.origins) - _LEAD
        if len(best.known.origins) >= _PROVEN_ORIGINS and all(
            len(candidate.known.origins) <= least
            for candidate in candidates
            if candidate is not best
        ):
            self._loop, self._since_loop = best.place, 0

    def _decide(self, place: CallPlace) -> WaitRole | None:
        known = self._places.get(place)
        if known is None or known.role not in UNDECIDED:
            is_nested = place in self._named and known is not None and self._is_within(known)
            return WaitRole.NESTED if is_nested else None if known is None else known.role
        if self._has_named_loop:
            return WaitRole.OTHER
        candidate = _Candidate(place, known)
        if self._loop is not None:
            if place == self._loop:
                return WaitRole.ROOT
            better = [_Candidate(self._loop, self._places[self._loop])]
        else:
            better = [each for each in self._undecided() if _precedes(each, candidate)]
        if not better:
            return WaitRole.ROOT
        is_nested = known.is_event and any(
            each.known.is_event and each.known.caller == known.caller and each.place.sp > place.sp
            for each in better
        )
        return WaitRole.NESTED if is_nested and known.caller else WaitRole.OTHER

    def _place(self, place: CallPlace) -> _Place:
        known = self._places.get(place)
        if known is None:
            known = _Place(len(self._places), is_event=place.number in self._events)
            can_loop = known.is_event or place.number in self._queues
            if not can_loop and place.number != UNKNOWN_CALL:
                known.role = WaitRole.OTHER  # no loop waits in it
            self._places[place] = known
            self._numbers[place.sp, place.pc] = place.number
        return known


def _precedes(first: _Candidate, second: _Candidate) -> bool:
    """Return whether one wait is the loop's rather than the other; both may be, as far as known.

    More origins decide. Until then waits for events come first, outer ones before those below
    them, then those in the outermost function, then the one that was seen first: mostly that in
    which the thread was when watching began. An event wait that is seen once, between two times in
    the wait that was seen first, is rather that of a task.
    """
    lead = len(first.known.origins) - len(second.known.origins)
    if lead >= _LEAD:
        return True
    if first.place == second.place or lead <= -_LEAD:
        return False
    if first.known.is_event or second.known.is_event:
        older, newer = sorted((first, second), key=lambda each: each.known.order)
        if newer.known.is_event and older.known.turns > newer.known.turns:
            return first is older and older.known.is_event
        if first.known.is_event != second.known.is_event:
            return first.known.is_event
        return first.place.sp > second.place.sp
    return _rank(first) > _rank(second)


def _rank(each: _Candidate) -> tuple[bool, int]:
    return each.known.role is WaitRole.OWN, -each.known.order
