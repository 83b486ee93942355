"""A stub and its process from the first word to the last: found, stopped, left as it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from machtrace.errors import (
    RemoteProtocolError,
    TargetError,
    TargetGoneError,
)
from machtrace.model.cause import Cause
from machtrace.targets.gdbremote.causes import STOPPED_ON_REQUEST, read_cause
from machtrace.targets.gdbremote.detach import Connect, Departure, StubLeaver, signal_to_deliver
from machtrace.targets.gdbremote.features import StubFeatures, negotiate, read_documents
from machtrace.targets.gdbremote.host import RemoteHost, host_of
from machtrace.targets.gdbremote.registers import (
    RegisterTable,
    parse_register_documents,
    parse_register_info,
)
from machtrace.targets.gdbremote.replies import (
    ProcessGone,
    StopReply,
    error_words,
    is_error,
    parse_stop,
    parse_thread,
    refused,
)
from machtrace.targets.gdbremote.session import BATCH, GdbSession
from machtrace.targets.gdbremote.spec import RemoteSpec
from machtrace.targets.gdbremote.stream import connect as connect_by_socket

_PASSED = b"QPassSignals:" + b";".join(
    b"%02x" % number for number in range(1, 65) if number not in (5, 9, 0x11, 0x13)
)
"""All but SIGTRAP, SIGKILL and the SIGSTOP by which a stub stops the process itself."""
_FATAL = (3, 4, 5, 6, 7, 8, 10, 11, 12, 24, 25, 31)
"""Numbers that are a fatal signal's on Linux, on Darwin or in gdb's protocol."""
_PASSED_UNLESS_FATAL = b"QPassSignals:" + b";".join(
    b"%02x" % number for number in range(1, 65) if number not in (*_FATAL, 2, 9, 0x11, 0x13)
)
"""Signals that end a process stop it first; gdbserver interrupts it by SIGINT."""
_CONTINUE = b"vCont;c"


class StubConnection:
    """A stub's capabilities, and whether its process runs.

    Raises:
        ConnectionLostError: nobody answers.
        RemoteProtocolError: what answers is no stub, or has no registers.
        TargetGoneError: its process has exited.
        TargetError: it has none.
        TargetSpecError: its machine is not known here.
    """

    def __init__(
        self,
        spec: RemoteSpec,
        connect: Connect = connect_by_socket,
    ) -> None:
        self._spec = spec
        self._leaver = StubLeaver(spec, connect)
        self._is_running = False
        self._runs_between: bool | None = None
        self._stop: StopReply | None = None
        self.resumed_at_ns: int | None = None
        """When the process was last let run, by the monotonic clock."""
        self.cause: Cause | None = None
        """Why the process is stopped, if a signal or an exception did it."""
        self._on_packet: Callable[[bytes], None] | None = None
        """Takes the profiles of a watched process; None if it is not watched."""
        self.features = StubFeatures()
        self.pid: int | None = None
        self.session = GdbSession(connect(spec, spec.timeout), spec.timeout)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    # --- the first words ---

    def _begin(self) -> None:
        session, spec = self.session, self._spec
        self.features = negotiate(session)
        stop = self._attach(spec.pid) if spec.pid is not None else None
        asked = (b"?", b"qProcessInfo", b"qHostInfo", b"qC")
        stopped, process_info, host_info, current, *of_leaving = session.ask_all(
            (*asked, *self._leaver.questions(self.features))
        )
        if stop is None:
            stop = self._standing(b"?", stopped)
        self._stop = stop
        self._leaver.decide(session, stop, of_leaving)
        table = self._read_table()
        if table is None:
            raise RemoteProtocolError(
                "the stub does not describe its registers",
                request="qXfer:features:read:target.xml and qRegisterInfo0",
                reply="nothing",
                remedy="use a stub that sends target descriptions",
            )
        self.table: RegisterTable = table
        is_linux = bool({"auxv", "libraries-svr4"} & self.features.documents)
        self.host: RemoteHost = host_of(process_info, host_info, table, is_linux=is_linux)
        thread = parse_thread(current.removeprefix(b"QC").decode("ascii", "replace"))
        self.pid = self.host.pid or (None if thread is None else thread.pid) or spec.pid
        self.host = replace(self.host, pid=self.pid)
        session.pid = self.pid or 0
        if spec.runs_to_stop:
            self._run_to_stop()
        self._read_cause(is_awaited=spec.runs_to_stop)

    def _attach(self, pid: int) -> StopReply:
        self.session.ask(b"!")
        request = b"vAttach;%x" % pid
        reply = self.session.ask(request)
        if is_error(reply) or not reply:
            error = refused(f"the stub cannot attach to process {pid}", request, reply)
            error.remedy = (
                "check the process id, and the stub's rights; start gdbserver with --multi, "
                "lldb-server gdbserver without a program"
            )
            raise error
        return self._standing(request, reply)

    def _standing(self, asked: bytes, reply: bytes) -> StopReply:
        stop = parse_stop(reply)
        if isinstance(stop, StopReply):
            return stop
        if isinstance(stop, ProcessGone):
            number = self.pid or self._spec.pid or 0
            if not stop.was_killed and not stop.code and self._leaver.how is None:
                raise TargetError(
                    f"the stub at {self._spec.place} has no process, or its process has exited",
                    remedy="start it with a process, or attach with gdb://host:port/PID",
                )
            raise TargetGoneError(f"the stub's process has ended {stop.how}", pid=number)
        if reply in (b"OK", b"") or is_error(reply):
            raise TargetError(
                f"the stub at {self._spec.place} has no process ({asked!r}: {reply!r})",
                remedy="start it with a process, or attach with gdb://host:port/PID",
            )
        raise refused("no stop reason", asked, reply)

    def _read_table(self) -> RegisterTable | None:
        def document(name: str) -> bytes | None:
            return read_documents(self.session, [f"features:{name}"], self.features)[0]

        if "features" in self.features.documents:
            table = parse_register_documents(document)
            if table is not None and table.registers:
                return table
        replies: dict[int, bytes] = {}

        def information(number: int) -> bytes:
            if number not in replies:
                count = BATCH if number and self.session.is_pipelined else 1
                numbers = range(number, number + count)
                asked = [b"qRegisterInfo%x" % one for one in numbers]
                replies.update(zip(numbers, self.session.ask_all(asked), strict=True))
            return replies[number]

        return parse_register_info(information)

    # --- running and standing ---

    @property
    def last_stop(self) -> StopReply | None:
        """The last report of a stop."""
        return self._stop

    def stop(self) -> int | None:
        """Ensure that the process is stopped; return when it was stopped for this, else None.

        Raises:
            TargetGoneError: it has exited.
            TargetError: the target was closed.
            ConnectionLostError, RemoteProtocolError: the stub does not report the stop.
        """
        if self.session.is_lost:
            raise TargetError(
                "the target is closed, or its connection broke", remedy="open it again"
            )
        if not self._is_running:
            return None
        began = time.monotonic_ns()
        self.session.interrupt()
        self._stop = self._standing(b"\x03", self._await_stop(b"\x03"))
        self._is_running = False
        self._read_cause(is_awaited=False)
        return began

    def _await_stop(self, request: bytes) -> bytes:
        """Return the next packet that is no output and no profile of the process.

        Raises:
            ConnectionLostError, RemoteProtocolError: the process does not stop in time.
        """
        deadline = self.session.deadline_of_parts()
        while True:
            reply = self.session.wait(request, self._spec.timeout)
            if not self._is_asynchronous(reply):
                return reply
            self.session.check(deadline)

    def _is_asynchronous(self, packet: bytes) -> bool:
        """Whether a packet is one of a running process; a profile is passed on."""
        if packet.startswith(b"A") and self._on_packet is not None:
            self._on_packet(packet)
        return packet.startswith((b"A", b"O", b"JSON-async:"))

    def watch(self, on_packet: Callable[[bytes], None]) -> None:
        """Let the process run between snapshots from now on, and when it is left.

        Args:
            on_packet: takes packets that begin with ``A``.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub does not answer.
        """
        self._on_packet = on_packet
        if self.features.passes_signals:
            self.session.ask(_PASSED_UNLESS_FATAL)
        self._leaver.how = Departure.DETACH
        self._runs_between = True

    def pump(self, seconds: float) -> bool:
        """Take what came while the process runs; return whether a crash has stopped it.

        Signals that are no crash are delivered, and the process runs again.

        Args:
            seconds: the longest wait for a packet.

        Raises:
            TargetGoneError: it has exited.
            ConnectionLostError, RemoteProtocolError: the stub makes no sense.
        """
        deadline = self.session.deadline_of_parts()
        while self._is_running and (packet := self.session.arrived(_CONTINUE, seconds)) is not None:
            self.session.check(deadline)
            if self._is_asynchronous(packet):
                continue
            self._is_running = False
            try:
                self._stop = self._standing(_CONTINUE, packet)
            except TargetGoneError:
                self.session.close()  # nothing is left to be detached from
                self._leaver.how = Departure.HANG_UP
                raise
            self._read_cause(is_awaited=True)
            if not self.has_crashed:
                self.resume()
        return self.has_crashed

    def proceed(self, requests: Sequence[bytes], resume: bytes = b"") -> list[bytes]:
        """Let the process run after requests, sent at once; return their replies.

        Args:
            requests: while it is stopped.
            resume: the packet that lets it run; if empty, all of it runs, with a signal that was
                not delivered yet.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub makes no sense.
        """
        replies = self.session.ask_and_tell(requests, resume or self._going_on())
        self._is_running = True
        self.resumed_at_ns = time.monotonic_ns()
        return replies

    def next_stop(self, patience: float, should_stop: Callable[[], bool]) -> StopReply | None:
        """Wait until the process stops; None if ``should_stop`` returned True and it was stopped.

        Args:
            patience: seconds between two calls of ``should_stop``.
            should_stop: whether to stop it.

        Raises:
            TargetGoneError: it has exited.
            ConnectionLostError, RemoteProtocolError: the stub makes no sense.
        """
        while True:
            if should_stop():
                self.stop()
                return None
            packet = self.session.arrived(_CONTINUE, patience)
            if packet is None or self._is_asynchronous(packet):
                continue
            self._is_running = False
            try:
                self._check_still_there(packet)
                self._stop = self._standing(_CONTINUE, packet)
            except TargetGoneError:
                self.session.close()  # nothing is left to be detached from
                self._leaver.how = Departure.HANG_UP
                raise
            return self._stop

    def _check_still_there(self, packet: bytes) -> None:
        """Check for gdbserver's error of a process that was killed at a breakpoint."""
        if is_error(packet):
            words = error_words(packet) or packet.decode("ascii", "replace")
            raise TargetGoneError(f"the stub's process has ended ({words})", pid=self.pid or 0)

    @property
    def has_crashed(self) -> bool:
        """Whether a watched process is stopped by a fatal signal or an exception."""
        is_fatal = self.cause is not None and self.cause.is_fatal
        return self._on_packet is not None and not self._is_running and is_fatal

    def resume(self) -> bool:
        """Let the process run, if it did before, and if it can be stopped again at any time.

        Returns:
            Whether it runs.

        Raises:
            ConnectionLostError: the connection broke.
        """
        if self.session.is_lost or self._leaver.how is not Departure.DETACH or self.has_crashed:
            return False
        if self._runs_between is None:
            self._runs_between = (
                self.features.has_thread_suffix
                and self.features.passes_signals
                and self.session.ask(_PASSED) == b"OK"
            )
        if self._runs_between:
            self.session.tell(self._going_on())
            self._is_running = True
            self.resumed_at_ns = time.monotonic_ns()
        return self._is_running

    def _going_on(self) -> bytes:
        """Return the packet that resumes the process, with an undelivered signal."""
        stop = self._stop
        signal = 0 if stop is None else signal_to_deliver(stop)
        if stop is None or stop.thread is None or signal in STOPPED_ON_REQUEST:
            return _CONTINUE
        return b"vCont;C%02x:%s;c" % (signal, stop.thread.text.encode())

    def _run_to_stop(self) -> None:
        self.session.tell(_CONTINUE)
        self._is_running = True
        self._stop = self._standing(_CONTINUE, self._await_stop(_CONTINUE))
        self._is_running = False

    def _read_cause(self, *, is_awaited: bool) -> None:
        self.cause = None
        if self._stop is not None:
            self.cause = read_cause(
                self.session, self.features, self.host, self._stop, is_awaited=is_awaited
            )

    def cause_of(self, thread: int, *, is_only: bool) -> Cause | None:
        """Return why a thread is stopped, if it is the one that the process stopped for.

        Args:
            thread: its id.
            is_only: whether it is the process's only thread.
        """
        stopped = None if self._stop is None else self._stop.thread
        is_stopped = is_only if stopped is None else stopped.id == thread
        return self.cause if is_stopped else None

    def close(self) -> None:
        """Leave the process as it was, and hang up. Raises nothing; safe to call again."""
        self._leaver.leave(self.session, self.features, self.pid, self.stop)
