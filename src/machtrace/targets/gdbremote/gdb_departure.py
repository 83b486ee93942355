"""How a stub is left so that its process is as it was: a function of what the stub said.

Stubs do not say whether the process ran before. What they say is whether they attached to it
(``qAttached``), which is done to what runs, or started it, which leaves it before its first
instruction; those that do not know the question tell by the signal that they stopped it with.
A process is never ended: ``k`` and its kin are in no conversation.

Linux keeps a process that SIGSTOP stopped so when what traced it goes away, but lldb-server sends
it SIGCONT before it detaches (tried, 19.1.7). It is left by hanging up: then lldb-server ends
without a word to the process. That a process was stopped is seen by its siginfo, which Linux does
not give of a stopped group (``ptrace(2)``, "Group-stop").
"""

from __future__ import annotations

from enum import Enum

from machtrace.targets.gdbremote.replies import StopReply

_STOPS_FOR_ATTACHING = frozenset({0, 0x11, 0x13, 0x91})
"""No signal, SIGSTOP as gdb and Darwin count, SIGSTOP as Linux counts, and Mach's own."""
_NO_SIGINFO = b"E16"
"""EINVAL, as the only thing that Linux refuses it with."""
_STOPPED_OF_ITSELF = frozenset({5})
"""SIGTRAP: an instruction for debuggers, or the start of a program."""


class Departure(Enum):
    """What is done last."""

    DETACH = "D: the process runs on, without the stub"
    DETACH_STOPPED = "D1: the stub goes, the process stays stopped"
    HANG_UP = "the connection is closed, and the process stays stopped, by the stub or without it"


def was_stopped(siginfo: bytes) -> bool:
    """Whether signals had stopped the process before the stub attached to it.

    Args:
        siginfo: the reply of lldb-server to a read of that.
    """
    return siginfo.startswith(_NO_SIGINFO)


def departure(
    *,
    attached: bytes,
    stop: StopReply,
    detaches_stopped: bool,
    we_attached: bool,
    stood_before: bool = False,
) -> Departure:
    """How to leave.

    Args:
        attached: the reply to ``qAttached``: 1, 0, or something else where it is not known.
        stop: why the process stood still when the stub was found.
        detaches_stopped: whether the stub knows ``D1``.
        we_attached: whether the process was attached to for this.
        stood_before: whether it was stopped then, and is lldb-server's (:func:`was_stopped`).
    """
    if stood_before:
        return Departure.HANG_UP
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
