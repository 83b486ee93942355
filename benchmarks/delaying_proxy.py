"""A proxy that delays what it passes on: half of a round trip's time in each direction."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from contextlib import suppress


class DelayingProxy:
    """Listens on a port, and connects its one client with another port.

    Args:
        to: the port of 127.0.0.1 to connect to.
        seconds: the delay of a round trip.
    """

    def __init__(self, to: int, seconds: float) -> None:
        self._half = seconds / 2
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._to = to
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._server.accept()
        self._server.close()
        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            ways = ((client, server), (server, client))
            threads = [
                threading.Thread(target=self._pass_on, args=way, daemon=True) for way in ways
            ]
            for (source, _), thread in zip(ways, threads, strict=True):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                thread.start()
            for thread in threads:
                thread.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        waiting: deque[tuple[float, bytes]] = deque()
        has_more = threading.Condition()

        def send() -> None:
            while True:
                with has_more:
                    has_more.wait_for(lambda: waiting)
                    due, data = waiting.popleft()
                time.sleep(max(0.0, due - time.monotonic()))
                with suppress(OSError):  # who it is for may have gone
                    if not data:
                        sink.shutdown(socket.SHUT_WR)
                        return
                    sink.sendall(data)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        data = b"-"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            with has_more:
                waiting.append((time.monotonic() + self._half, data))
                has_more.notify()
        sender.join()
