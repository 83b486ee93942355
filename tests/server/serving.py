"""A server in a thread, and its client."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from machtrace.server.limits import Limits
from machtrace.server.running import listening_socket, server
from machtrace.server.service import Service

PATIENCE = 120
"""Seconds until a test fails that waits for the background."""


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        """The document in it."""
        return json.loads(self.data)


class Client:
    """A client; each request has a connection of its own."""

    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self.port = port

    def request(
        self, method: str, path: str, body: Any = None, token: str = "", **headers: str
    ) -> Answer:
        """Send a request."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            named["Authorization"] = f"Bearer {token}"
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Answer:
        """Send a GET."""
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any, **options: Any) -> Answer:
        """Send a POST."""
        return self.request("POST", path, body, **options)

    def put(self, path: str, body: Any, **options: Any) -> Answer:
        """Send a PUT."""
        return self.request("PUT", path, body, **options)

    def raw(self, *parts: bytes) -> bytes:
        """Send bytes until the server closes the connection, and return what it sent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            try:
                for part in parts:
                    connection.sendall(part)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it was closed meanwhile
            received = b""
            try:
                while piece := connection.recv(1 << 16):
                    received += piece
            except OSError:
                pass
            return received

    def state(self, record: str, **options: Any) -> Any:
        """Return the state of a record when its reports are in segments."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self.get(f"/v1/reports/{record}", **options).json
            if answer["state"] != "stored":
                return answer
            time.sleep(0.02)
        raise AssertionError("it was never read")

    def rows(self, sql: str, **options: Any) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        answer = self.post("/v1/query", sql, **options)
        assert answer.status == 200, answer.data
        return [json.loads(line) for line in answer.data.splitlines()]


@contextmanager
def running(
    folder: Path, *, is_local: bool = True, has_otlp: bool = False, **limits: Any
) -> Iterator[Client]:
    """Serve a warehouse."""
    own = Limits(**{"linger": 0.0, **limits})
    service = Service(folder, own, is_local=is_local, has_otlp=has_otlp)
    with listening_socket("127.0.0.1", 0) as listening:
        service.writer.open()
        started = server(service)
        thread = Thread(target=started.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Client(service, listening.getsockname()[1])
        finally:
            started.should_exit = True
            thread.join()
