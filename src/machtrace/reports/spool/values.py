"""Values of a spool: rows of its columns, and what they refer to."""

from __future__ import annotations

from enum import IntFlag
from typing import NamedTuple

import numpy as np

STORED_EVENT = np.dtype(
    [
        ("time", "<u8"),
        ("stack", "<u4"),
        ("thread", "<u4"),
        ("rule", "<u2"),
        ("depth", "u1"),
        ("flags", "u1"),
        ("calls", "<u4"),
    ]
)
"""An event as it is stored; docs/agent-spool.md describes the columns. The rule has the state."""
EVENT = np.dtype(
    [*((name, STORED_EVENT[name]) for name in STORED_EVENT.names or ()), ("state", "u1")]
)
"""An event, its rule and the app's state apart."""
SUM = np.dtype([("rule", "<u2"), ("state", "u1"), ("stack", "<u4"), ("calls", "<u8")])
"""Calls by rule, state and stack; stack 0 is unknown."""


class EventFlag(IntFlag):
    """The flags of an event."""

    MAIN_THREAD = 1
    CUT = 2
    """Outer frames are missing: there were too many."""
    INCOMPLETE = 4
    """Inner frames are missing, since there was no room for them."""
    NESTED = 8
    """A watched function called."""
    INTERRUPT = 16
    """The handler of a signal that interrupted a hook called."""
    OTHER_STACK = 32
    """On another stack than the thread's own."""
    NO_FRAME_POINTER = 64
    """Outer frames are missing: a function without frame pointers called."""


class AppState(IntFlag):
    """The state that a call was made in: consent in the low bits, 0 if it was not stated."""

    CONSENT_ABSENT = 1
    CONSENT_GIVEN = 2
    CONSENT_WITHDRAWN = 3
    BACKGROUND = 4


class SpoolMark(NamedTuple):
    """A moment: a change of the state, or a text that the program stored."""

    time: int
    """As events have it."""
    state: AppState
    """From then on."""
    text: str
    """Empty for a change of the state."""


class SpoolImage(NamedTuple):
    """An image that has frames of the spool, or a watched function; and the program."""

    number: int
    start: int
    """The lowest address (Avma)."""
    size: int
    bias: int
    """The number that is added to the file's addresses (Svma)."""
    identifier: bytes
    """GNU build-id or UUID; empty if it has none."""
    path: str
    is_program: bool


class SpoolThread(NamedTuple):
    """A thread of the spool."""

    number: int
    """As events have it."""
    id: int
    """The kernel's number; 0 if it ended before that was known."""
    name: str


class SpoolRule(NamedTuple):
    """A watched function, and what became of it."""

    number: int
    state: int
    """0 nothing imports the function, 1 watched, 2 nothing defines it, 3 there were too many, 4
    watched in a superclass, 5 watched with another method that has the same implementation, 6 it is
    not hooked, and the reason is in :attr:`other`.
    """
    slots: int
    """Import slots when it was bound."""
    counts_only: bool
    is_at_entry: bool
    """Whether its first instructions are replaced, and no import slot."""
    target: int
    """The function's address (Avma); 0 if unknown."""
    symbol: str
    other: str
    """In states 4 and 5 the other method, in 6 the reason."""
    has_budget: bool = False
    """Whether the stacks of some calls are taken, and all calls are counted."""


class SpoolFrame(NamedTuple):
    """A return address."""

    image: SpoolImage | None
    """None for code that no image has."""
    offset: int
    """Bytes from the image's start; the address (Avma) without an image."""
