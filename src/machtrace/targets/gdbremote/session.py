"""Requests and their replies, over a stream: acknowledged, counted, in time.

While packets are acknowledged there is one request at a time; a corrupted packet is requested
for again. Once ``QStartNoAckMode`` has ended that, many requests are sent before the first reply is
read: a pipelined batch, which takes one round trip. Replies come in the order of requests.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence

from machtrace.errors import ConnectionLostError, RemoteProtocolError, TargetGoneError
from machtrace.targets.gdbremote.packets import (
    Acknowledgement,
    DamagedPacket,
    Decompress,
    Event,
    PacketDecoder,
    Reply,
    encode_packet,
    plain_payload,
)
from machtrace.targets.gdbremote.replies import ProcessGone, parse_stop, shortened
from machtrace.targets.gdbremote.stream import ByteStream

BATCH = 64
"""Requests under way at most: together they are small enough that no stub has to read before it
has written."""
_BATCH_BYTES = 1 << 14
_MAX_REPEATS = 3
"""Times that one packet may be corrupted, or requested again."""
_PARTS = 3
"""Times as long as one reply may take, that a list or document of many parts may."""
_PATIENCE = 3.0
"""Seconds for a reply that was awaited before."""
INTERRUPT = b"\x03"
_ENDED = re.compile(rb"[WX][0-9a-f]{2}(;process:[0-9a-f]+)?")
_MAY_SAY_SO = re.compile(rb"[?\x03Dcs]|v(Cont|Attach)")
"""Requests whose replies can be that."""


class GdbSession:
    """A conversation with one stub.

    Args:
        stream: to it and from it; closed with the session.
        timeout: seconds that one reply may take.
    """

    def __init__(self, stream: ByteStream, timeout: float) -> None:
        self._stream = stream
        self._timeout = timeout
        self._decoder = PacketDecoder()
        self._acknowledges = True
        self._decompress: Decompress | None = None
        self._owed: deque[bytes] = deque()
        """Requests whose replies have not come."""
        self.round_trips = 0
        """How often the other side was waited for."""
        self.pid = 0
        """The id of the stub's process, once known; for errors."""
        self.is_answered = False
        """Whether a packet came that is one: a stub speaks there."""
        self.is_lost = False
        """Whether the connection broke or lost its framing."""

    @property
    def is_pipelined(self) -> bool:
        """Whether several requests may be under way."""
        return not self._acknowledges

    def stop_acknowledging(self) -> None:
        """Stop acknowledging packets: the stub has agreed."""
        self._acknowledges = False
        self._decoder.may_lack_checksums = True

    def decompress_with(self, decompress: Decompress) -> None:
        """Accept compressed replies: the stub has agreed."""
        self._decompress = decompress

    def ask(self, request: bytes, *, timeout: float | None = None) -> bytes:
        """Send a request and return the reply; empty if the stub does not know it.

        Raises:
            ConnectionLostError: none came in time, or the connection broke.
            RemoteProtocolError: it came damaged again and again.
        """
        return next(self._batch((request,), timeout))

    def ask_all(self, requests: Sequence[bytes]) -> list[bytes]:
        """Send requests and return the replies, in their order, in few round trips.

        Raises:
            ConnectionLostError, RemoteProtocolError: see :meth:`ask`.
        """
        replies: list[bytes] = []
        at = 0
        while at < len(requests):
            end, size = at + 1, len(requests[at])
            while (
                self.is_pipelined
                and end < len(requests)
                and end - at < BATCH
                and size + len(requests[end]) <= _BATCH_BYTES
            ):
                size += len(requests[end])
                end += 1
            replies.extend(self._batch(requests[at:end], None))
            at = end
        return replies

    def ask_and_tell(self, requests: Sequence[bytes], last: bytes) -> list[bytes]:
        """Send requests, and what is answered once something happens; return the former's replies.

        All are sent at once where packets are not acknowledged.

        Raises:
            ConnectionLostError, RemoteProtocolError: see :meth:`ask`.
        """
        if not self.is_pipelined or len(requests) >= BATCH:
            replies = self.ask_all(requests)
            self.tell(last)
            return replies
        self.round_trips += 1
        self.settle()
        self._owed.extend(requests)
        self._send(b"".join(map(encode_packet, (*requests, last))))
        return [*self._replies(requests, None)]

    def deadline_of_parts(self) -> float:
        """By when an answer must be whole that comes by many requests; see :meth:`check`."""
        return time.monotonic() + _PARTS * self._timeout

    def tell(self, request: bytes) -> None:
        """Send what is answered only once something happens, such as letting the process run.

        Raises:
            ConnectionLostError: the connection broke.
        """
        self._send(encode_packet(request))
        if self._acknowledges:
            self._await_acknowledgement(request)

    def interrupt(self) -> None:
        """Request a stop of the process; :meth:`wait` returns the stop reply.

        Raises:
            ConnectionLostError: the connection broke.
        """
        self._send(INTERRUPT)

    def wait(self, packet: bytes, timeout: float) -> bytes:
        """Return the next reply, to an earlier request.

        Raises:
            ConnectionLostError, RemoteProtocolError: see :meth:`ask`.
        """
        self.round_trips += 1
        return self._reply(packet, time.monotonic() + timeout)

    def arrived(self, packet: bytes, seconds: float) -> bytes | None:
        """Return the next packet that came while the process runs; None if none did.

        Args:
            packet: the request that let it run.
            seconds: the longest wait for more bytes.

        Raises:
            ConnectionLostError, RemoteProtocolError: see :meth:`ask`.
        """
        while True:
            event = self._decoder.next_event()
            match event:
                case Reply():
                    return self._payload(packet, event)
                case DamagedPacket(payload, stated):
                    if not self._acknowledges:
                        self.close()
                        raise _corrupted(packet, payload, stated, 1)
                    self._send(b"-")
                case None:
                    if not self._stream.is_readable(seconds):
                        return None
                    try:
                        self._decoder.feed(self._stream.receive(time.monotonic() + self._timeout))
                    except ConnectionLostError:
                        self.close()
                        raise
                case _:
                    continue

    def settle(self, patience: float = _PATIENCE) -> None:
        """Read the replies to requests that were given up, as on Ctrl-C, so that others can follow.

        Args:
            patience: seconds for one of them at most.

        Raises:
            ConnectionLostError, RemoteProtocolError: see :meth:`ask`.
        """
        patience = min(self._timeout, patience)
        while self._owed:
            self._reply(self._owed[0], time.monotonic() + patience)
            self._owed.popleft()

    def give_up(self, patience: float) -> None:
        """Owe nothing any more: what comes is read, and what does not, is not waited for again.

        A Ctrl-C comes at any moment, also when a reply was taken and not yet counted, or was lost
        before it was read.

        Args:
            patience: seconds for one reply at most.

        Raises:
            ConnectionLostError: the connection broke.
        """
        try:
            while self._owed:
                self._next_reply(time.monotonic() + min(self._timeout, patience))
                self._owed.popleft()
        except ConnectionLostError:
            self._owed.clear()
        if self._acknowledges:
            self._send(b"+")  # the stub may wait for it; one too many is skipped

    def _next_reply(self, deadline: float) -> None:
        while not isinstance(event := self._decoder.next_event(), Reply):
            if event is None:
                self._decoder.feed(self._stream.receive(deadline))
        self.is_answered = True
        if self._acknowledges:
            self._send(b"+")

    def close(self) -> None:
        """Hang up."""
        self.is_lost = True
        self._stream.close()

    # --- one pipelined batch ---

    def _batch(self, requests: Sequence[bytes], timeout: float | None) -> Iterator[bytes]:
        self.settle()
        self.round_trips += 1
        self._owed.extend(requests)
        self._send(b"".join(map(encode_packet, requests)))
        yield from self._replies(requests, timeout)

    def _replies(self, requests: Sequence[bytes], timeout: float | None) -> Iterator[bytes]:
        for request in requests:
            deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
            reply = self._reply(request, deadline)
            self._owed.popleft()
            yield reply

    def _send(self, data: bytes) -> None:
        if self.is_lost:
            raise ConnectionLostError("the connection was closed", remedy="open the target again")
        try:
            self._stream.send(data)
        except ConnectionLostError:
            self.close()
            raise

    def _reply(self, request: bytes, deadline: float) -> bytes:
        repeats = 0
        while True:
            event = self._event(request, deadline)
            match event:
                case Reply():
                    return self._payload(request, event)
                case DamagedPacket(payload, stated):
                    repeats += 1
                    if not self._acknowledges or repeats > _MAX_REPEATS:
                        self.close()
                        raise _corrupted(request, payload, stated, repeats)
                    self._send(b"-")
                case Acknowledgement(is_good=False):
                    repeats += 1
                    if repeats > _MAX_REPEATS:
                        self.close()
                        raise RemoteProtocolError(
                            f"the stub refused a packet {repeats} times",
                            request=shortened(request),
                            reply="-",
                        )
                    self._send(encode_packet(request))
                case _:
                    continue  # an acknowledgement, or a packet without a request

    def _payload(self, request: bytes, reply: Reply) -> bytes:
        payload = reply.payload
        self.is_answered = True
        if self._acknowledges:
            self._send(b"+")
        if self._decompress is not None:
            payload = plain_payload(payload, self._decompress)
        self._check_alive(request, payload)
        return payload

    def _await_acknowledgement(self, request: bytes) -> None:
        deadline = time.monotonic() + self._timeout
        while not isinstance(event := self._event(request, deadline), Acknowledgement):
            continue
        if not event.is_good:
            self._send(encode_packet(request))

    def _event(self, request: bytes, deadline: float) -> Event:
        try:
            while (event := self._decoder.next_event()) is None:
                self._decoder.feed(self._stream.receive(deadline))
            self.check(deadline)
        except ConnectionLostError as error:
            self.close()
            raise ConnectionLostError(
                f"{error}: request {shortened(request)}", remedy=error.remedy
            ) from None
        return event

    def _check_alive(self, request: bytes, payload: bytes) -> None:
        """Check for a stop reply of an ended process, which stubs may send between two replies.

        Raises:
            TargetGoneError: it has.
        """
        ended = _ENDED.fullmatch(payload) and parse_stop(payload)
        # Memory may look like that if it has the requested size.
        is_data = request.startswith(b"x") and request.endswith(b",%x" % len(payload))
        if isinstance(ended, ProcessGone) and not is_data and not _MAY_SAY_SO.match(request):
            self.close()
            raise TargetGoneError(f"the stub's process has ended {ended.how}", pid=self.pid)

    @staticmethod
    def check(deadline: float) -> None:
        """Give up what comes in one part after the other.

        Raises:
            ConnectionLostError: it is later than ``deadline``.
        """
        if time.monotonic() > deadline:
            raise ConnectionLostError("the stub sends without end")


def _corrupted(request: bytes, payload: bytes, stated: bytes, repeats: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"a reply was corrupted {repeats} times: its checksum is "
        f"{stated.decode('ascii', 'replace')!r}",
        request=shortened(request),
        reply=shortened(payload),
        remedy="use a reliable connection, such as a local one",
    )
