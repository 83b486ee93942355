"""The connection to a stub: bytes in and out, with time limits. All that touches a socket."""

from __future__ import annotations

import select
import socket
import time
from typing import Protocol

from machtrace.errors import ConnectionLostError
from machtrace.targets.gdbremote.spec import RemoteSpec

_PIECE = 1 << 18


class ByteStream(Protocol):
    """Bytes to a stub and from it; what :class:`SocketStream` is, and what tests stand in for."""

    def send(self, data: bytes, /) -> None:
        """Send all of ``data``.

        Raises:
            ConnectionLostError: the other side is gone, or takes nothing.
        """
        ...

    def receive(self, deadline: float, /) -> bytes:
        """Receive at least one byte by ``deadline`` of :func:`time.monotonic`.

        Raises:
            ConnectionLostError: the other side is gone, or nothing came in time.
        """
        ...

    def is_readable(self, seconds: float, /) -> bool:
        """Whether :meth:`receive` returns or raises at once; waits for that at most ``seconds``."""
        ...

    def close(self) -> None:
        """Hang up; calling it twice does nothing more."""
        ...


class SocketStream:
    """A connection that is there already: a TCP one, or one to a socket of this machine.

    Args:
        connection: closed with the stream.
        name: of the other side, for messages.
        timeout: seconds for what is sent to be taken.
    """

    def __init__(self, connection: socket.socket, name: str, timeout: float) -> None:
        self._name = name
        self._timeout = timeout
        self._socket = connection
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def send(self, data: bytes, /) -> None:
        """See :meth:`ByteStream.send`."""
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from None

    def receive(self, deadline: float, /) -> bytes:
        """See :meth:`ByteStream.receive`."""
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            # Wait and take in two steps: what has come is not lost to a Ctrl-C while waiting.
            if not self._readable.poll(left * 1000):
                raise TimeoutError
            data = self._socket.recv(_PIECE)
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise ConnectionLostError(f"{self._name} closed the connection")
        return data

    def is_readable(self, seconds: float, /) -> bool:
        """See :meth:`ByteStream.is_readable`."""
        return bool(self._readable.poll(seconds * 1000))

    def close(self) -> None:
        """See :meth:`ByteStream.close`."""
        self._socket.close()

    def _lost(self, error: OSError) -> ConnectionLostError:
        if isinstance(error, TimeoutError):
            return ConnectionLostError(f"{self._name} does not respond")
        reason = (error.strerror or type(error).__name__).lower()
        return ConnectionLostError(f"the connection to {self._name} broke: {reason}")


def connect(spec: RemoteSpec, timeout: float) -> SocketStream:
    """Open the stream that ``spec`` names.

    Args:
        spec: where.
        timeout: seconds for connecting, and for what is sent to be taken.

    Raises:
        ConnectionLostError: nobody answers there.
    """
    try:
        connection = _connected(spec, timeout)
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ConnectionLostError(
            f"cannot connect to {spec.place}: {str(reason).lower()}",
            remedy="check that the stub is running there, waits for a connection, "
            "and has no other client",
        ) from None
    return SocketStream(connection, spec.place, timeout)


def _connected(spec: RemoteSpec, timeout: float) -> socket.socket:
    if spec.path is not None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(spec.path)
        except BaseException:
            connection.close()
            raise
        return connection
    connection = socket.create_connection((spec.host, spec.port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
