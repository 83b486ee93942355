"""A server on a socket, by uvicorn."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from threading import Timer
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from machtrace.errors import ArgumentError
from machtrace.server.application import application
from machtrace.server.service import Service

_HEAD_BYTES = 64 << 10
_BACKLOG = 2048
_GRACE = 3
"""Seconds for requests that have begun when the server is to stop."""
_LAST_SECONDS = 4.5
"""Seconds until it ends, whatever runs."""
_KEEP_ALIVE = 15


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 that ends a connection whose request line and headers are too long."""

    _head_bytes = 0
    _is_head = True

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self._is_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_head and self._head_bytes > _HEAD_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        """Count from here."""
        self._head_bytes, self._is_head = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Count no more: what follows is the body, which has its own limits."""
        self._is_head = False
        super().on_headers_complete()


class StoppingServer(uvicorn.Server):
    """A server that ends soon after a signal, whatever runs."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what is computed, and wait a little for what is received."""
        self._service.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        if not self.should_exit:
            timer = Timer(_LAST_SECONDS, _end, (sig,))
            timer.daemon = True
            timer.start()
        super().handle_exit(sig, frame)


def _end(sig: int) -> None:
    """End at once, as if the process was killed: what was acknowledged is on the disk."""
    sys.stderr.write("machtrace: ended in the middle of work, which begins again at the start\n")
    sys.stderr.flush()
    os._exit(128 + sig)


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: an address of this machine.
        port: 0 for any that is free.

    Raises:
        ArgumentError: the address is none of this machine's, or is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ArgumentError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}",
            remedy="choose another --host or --port",
        ) from None
    return listening


def server(service: Service) -> uvicorn.Server:
    """Return a server of a service, which is to be run with a socket."""
    config = uvicorn.Config(
        application(service),
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_GRACE,
    )
    return StoppingServer(config, service)


def serve(service: Service, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        FileAccessError: another process writes to the warehouse.
    """
    service.writer.open()
    server(service).run(sockets=[listening])
