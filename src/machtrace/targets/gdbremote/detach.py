"""The last words to a stub, also to one that was given up half way, or whose connection broke.

How a stub is left so that its process is as it was: a function of the stub's replies.

Stubs do not report whether the process ran before. They report whether they attached to it
(``qAttached``), which is done to what runs, or started it, which leaves it before its first
instruction; for those that do not know the request, the signal of the stop decides.
A process is never ended: ``k`` and similar packets are never sent.

Linux keeps a process that SIGSTOP stopped so when what traced it goes away, but lldb-server sends
it SIGCONT before it detaches (tried, 19.1.7). It is left by hanging up: then lldb-server ends
without a word to the process. That a process was stopped is seen by its siginfo, which Linux does
not give of a stopped group (``ptrace(2)``, "Group-stop").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum

from machtrace.errors import MachtraceError
from machtrace.targets.gdbremote.features import StubFeatures
from machtrace.targets.gdbremote.replies import StopReply, parse_stop
from machtrace.targets.gdbremote.session import GdbSession
from machtrace.targets.gdbremote.spec import RemoteSpec
from machtrace.targets.gdbremote.stream import ByteStream

_STOPS_FOR_ATTACHING = frozenset({0, 0x11, 0x13, 0x91})
"""No signal, SIGSTOP as gdb and Darwin count, SIGSTOP as Linux counts, and Mach's own."""
_NO_SIGINFO = b"E16"
"""EINVAL, as the only thing that Linux refuses it with."""
_STOPPED_OF_ITSELF = frozenset({5})
"""SIGTRAP: an instruction for debuggers, or the start of a program."""


class Departure(Enum):
    """The last action of a session."""

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
    """Decide how to detach.

    Args:
        attached: the reply to ``qAttached``: 1, 0, or something else where it is not known.
        stop: the process's stop reason when the stub was connected.
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
    """Return the undelivered signal that stopped the process; 0 if there is none."""
    if stop.signal in _STOPS_FOR_ATTACHING | _STOPPED_OF_ITSELF:
        return 0
    return stop.signal


Connect = Callable[[RemoteSpec, float], ByteStream]
"""Opens the stream to a stub, within a limit in seconds."""

_FIRST_PATIENCE = 0.5
"""Seconds for the answer to the first word, where it was not waited for."""
_PATIENCE = 1.5
"""Seconds for a reply to an earlier request; the last packet is sent after it regardless."""
_RETURN_PAUSE = 0.1
_RETURN_TIMEOUT = 1.5
"""Seconds for coming back to a stub whose connection broke, to let its process go."""


class StubLeaver:
    """Knows how a stub is to be left, and does it."""

    def __init__(self, spec: RemoteSpec, connect: Connect) -> None:
        self._spec = spec
        self._connect = connect
        self._is_done = False
        self.how: Departure | None = None
        """None while it is not known."""

    @staticmethod
    def questions(features: StubFeatures) -> tuple[bytes, ...]:
        """Requests that decide how to detach, besides the stop reason."""
        if features.has_thread_suffix and "siginfo" in features.documents:
            return b"qAttached", b"qXfer:siginfo:read::0,80"
        return (b"qAttached",)

    def decide(self, session: GdbSession, stop: StopReply, replies: Sequence[bytes]) -> None:
        """Know how to leave, from the replies to :meth:`questions`.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub does not answer.
        """
        attached, *siginfo = replies
        detaches_stopped = b""
        if attached not in (b"0", b"1"):
            detaches_stopped = session.ask(b"qSupportsDetachAndStayStopped:")
        self.how = departure(
            attached=attached,
            stop=stop,
            detaches_stopped=detaches_stopped == b"OK",
            we_attached=self._spec.pid is not None,
            stood_before=any(map(was_stopped, siginfo)),
        )

    def leave(
        self,
        session: GdbSession,
        features: StubFeatures,
        pid: int | None,
        stop: Callable[[], object],
    ) -> None:
        """Leave the process as it was, and hang up. Raises nothing; safe to call again.

        Args:
            session: with the stub; a lost one is opened again.
            features: of the stub.
            pid: of its process, where it is known.
            stop: stops the process, if it runs.
        """
        is_done, self._is_done = self._is_done, True
        try:
            if is_done:
                return
            if not session.is_answered:
                with suppress(MachtraceError):
                    session.settle(_FIRST_PATIENCE)
            if not session.is_answered:
                return  # whatever is there, it is no stub
            if not session.is_lost:
                with suppress(MachtraceError):
                    session.give_up(_PATIENCE)
                with suppress(MachtraceError):
                    stop()
                with suppress(MachtraceError):
                    if self.how is None:
                        self._decide_late(session, features)
                    if self._is_left(session, features, pid):
                        return
            if session.is_lost and self.how is not Departure.HANG_UP and not self._spec.given:
                # A connection passed in cannot be opened again, and its stub detaches by itself.
                self._return(features)
        finally:
            session.close()

    def _decide_late(self, session: GdbSession, features: StubFeatures) -> None:
        """Decide how to detach from a stub that failed before its facts were complete."""
        found, *replies = session.ask_all((b"?", *self.questions(features)))
        stop = parse_stop(found)
        if isinstance(stop, StopReply):
            self.decide(session, stop, replies)

    def _is_left(self, session: GdbSession, features: StubFeatures, pid: int | None) -> bool:
        """Send the last packet; return whether the stub agreed, or none is needed."""
        if self.how in (None, Departure.HANG_UP):
            return True  # it has no process, or keeps it
        requests = [b"D1"] if self.how is Departure.DETACH_STOPPED else [b"D"]
        if features.has_process_ids and pid and self.how is Departure.DETACH:
            requests.insert(0, b"D;%x" % pid)
        return any(session.ask(request) == b"OK" for request in requests)

    def _return(self, features: StubFeatures) -> None:
        """Come back to a stub whose connection broke, and which may still hold its process."""
        deadline = time.monotonic() + _RETURN_TIMEOUT
        while time.monotonic() < deadline:
            # Refused at first: a stub takes a moment to see that the connection is gone. If it
            # stays so, the stub is gone too, and has released its process.
            with suppress(MachtraceError):
                self._leave_anew(features)
                return
            time.sleep(_RETURN_PAUSE)

    def _leave_anew(self, features: StubFeatures) -> None:
        timeout = min(self._spec.timeout, _RETURN_TIMEOUT)
        session = GdbSession(self._connect(self._spec, timeout), timeout)
        try:
            if session.ask(b"QStartNoAckMode") == b"OK":
                session.stop_acknowledging()
            if self.how is None:
                self._decide_late(session, features)
            if isinstance(parse_stop(session.ask(b"?")), StopReply):
                self._is_left(session, StubFeatures(), None)
        finally:
            session.close()
