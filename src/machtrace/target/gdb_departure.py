"""How a stub is left so that its process is as it was: a function of what the stub said.

Stubs do not say whether the process ran before. What they say is whether they attached to it
(``qAttached``), which is done to what runs, or started it, which leaves it before its first
instruction; those that do not know the question tell by the signal that they stopped it with.
A process is never ended: ``k`` and its kin are in no conversation.
"""

from __future__ import annotations

from enum import Enum

from machtrace.target.gdb_replies import StopReply

_STOPS_FOR_ATTACHING = frozenset({0, 0x11, 0x13, 0x91})
"""No signal, SIGSTOP as gdb and Darwin count, SIGSTOP as Linux counts, and Mach's own."""
_STOPPED_OF_ITSELF = frozenset({5})
"""SIGTRAP: an instruction for debuggers, or the start of a program."""


class Departure(Enum):
    """What is done last."""

    DETACH = "D: the process runs on, without the stub"
    DETACH_STOPPED = "D1: the stub goes, the process stays stopped"
    HANG_UP = "the connection is closed, and the stub keeps the process stopped"


def departure(
    *, attached: bytes, stop: StopReply, detaches_stopped: bool, we_attached: bool
) -> Departure:
    """How to leave.

    Args:
        attached: the reply to ``qAttached``: 1, 0, or something else where it is not known.
        stop: why the process stood still when the stub was found.
        detaches_stopped: whether the stub knows ``D1``.
        we_attached: whether the process was attached to for this.
    """
    if we_attached or attached == b"1":
        return Departure.DETACH
    if attached == b"0":
        return Departure.HANG_UP
    if stop.signal in _STOPS_FOR_ATTACHING:
        return Departure.DETACH
    return Departure.DETACH_STOPPED if detaches_stopped else Departure.DETACH


def signal_to_deliver(stop: StopReply) -> int:
    """The signal that stopped the process and has not reached it; 0 where there is none."""
    if stop.signal in _STOPS_FOR_ATTACHING | _STOPPED_OF_ITSELF:
        return 0
    return stop.signal
