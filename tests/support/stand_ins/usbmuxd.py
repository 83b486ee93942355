"""A usbmuxd with one synthetic device, for pymobiledevice3 itself.

The device has lockdown, to which this computer is paired, and services that are ports of this
machine. Written from what pymobiledevice3 11.45 sends and expects (its ``usbmux.py`` and
``lockdown.py``); no phone was recorded. Sessions are without TLS, which lockdown leaves to the
device.
"""

from __future__ import annotations

import itertools
import os
import plistlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

UDID = "00008110-001C2D3E4F50601A"
_LOCKDOWN = 62078
_HEADER = struct.Struct("<4I")
_PLIST = 8
"""The kind of messages that are property lists."""
_LENGTH = struct.Struct(">I")

Service = Callable[[socket.socket], None]
"""Talks to who connected to it."""


class SyntheticUsbmuxd:
    """See the module.

    Args:
        version: of the device's system.
        services: by lockdown's names.
    """

    def __init__(self, version: str, services: Mapping[str, Service]) -> None:
        self._services = dict(enumerate(services.values(), 1000))
        self._ports = dict(zip(services, self._services, strict=True))
        self._values = {
            "DeviceClass": "iPhone",
            "DeviceName": "Made up",
            "ProductType": "iPhone14,5",
            "ProductVersion": version,
            "UniqueDeviceID": UDID,
        }
        self.requests: list[str] = []
        """Requests to lockdown, with the service's name if any."""

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve; yield the address as ``USBMUXD_SOCKET_ADDRESS`` has it."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
            try:
                yield f"127.0.0.1:{server.getsockname()[1]}"
            finally:
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)

    def _accept(self, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with closing(connection), suppress(OSError, EOFError):
            while True:
                size, *_, tag = _HEADER.unpack(_exactly(connection, _HEADER.size))
                asked = plistlib.loads(_exactly(connection, size - _HEADER.size))
                answer = plistlib.dumps(self._answer(asked["MessageType"]))
                header = _HEADER.pack(_HEADER.size + len(answer), 1, _PLIST, tag)
                connection.sendall(header + answer)
                if asked["MessageType"] == "Connect":
                    port = socket.ntohs(asked["PortNumber"])
                    service = self._lockdown if port == _LOCKDOWN else self._services[port]
                    service(connection)
                    return

    @staticmethod
    def _answer(kind: str) -> dict[str, Any]:
        if kind == "ListDevices":
            facts = {"ConnectionType": "USB", "DeviceID": 1, "SerialNumber": UDID}
            return {"DeviceList": [{"DeviceID": 1, "MessageType": "Attached", "Properties": facts}]}
        if kind == "ReadBUID":
            return {"BUID": "3A5E6B2D-0000-4000-8000-0123456789AB"}
        if kind == "ReadPairRecord":
            record = {"HostID": "host", "SystemBUID": "system"}
            return {"PairRecordData": plistlib.dumps(record)}
        return {"MessageType": "Result", "Number": 0}

    def _lockdown(self, connection: socket.socket) -> None:
        while True:
            asked = receive_plist(connection)
            self.requests.append(" ".join((asked["Request"], asked.get("Service", ""))).strip())
            send_plist(connection, {"Request": asked["Request"], **self._told(asked)})

    def _told(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        match asked["Request"]:
            case "QueryType":
                return {"Type": "com.apple.mobile.lockdown"}
            case "GetValue" if "Key" not in asked:
                return {"Value": self._values}
            case "GetValue":
                return {"Error": "MissingValue"}
            case "StartSession":
                return {"SessionID": "session", "EnableSessionSSL": False}
            case "StartService" if asked["Service"] in self._ports:
                return {"Port": self._ports[asked["Service"]], "EnableServiceSSL": False}
            case _:
                return {"Error": "InvalidService"}


def _ready_of(near: socket.socket, far: socket.socket) -> selectors.BaseSelector:
    """Waits for either of two sockets; the data of one is itself and the other."""
    ready = selectors.DefaultSelector()
    ready.register(near, selectors.EVENT_READ, (near, far))
    ready.register(far, selectors.EVENT_READ, (far, near))
    return ready


def forward_to(port: int) -> Service:
    """Return a service that forwards to ``port`` of this machine."""

    def forward(near: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", port)) as far, _ready_of(near, far) as ready:
            while True:
                for key, _ in ready.select():
                    data = key.data[0].recv(1 << 16)
                    if not data:
                        return
                    key.data[1].sendall(data)

    return forward


def receive_plist(connection: socket.socket) -> Any:
    """Receive a message of lockdown's services: its length, and a property list.

    Raises:
        EOFError: the other side hung up.
    """
    (size,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return plistlib.loads(_exactly(connection, size))


def send_plist(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message; see :func:`receive_plist`."""
    data = plistlib.dumps(dict(message))
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


_FIRST, _COUNT = 20000, 10000
"""Lower than those that systems give to connections."""
_PORTS = itertools.count(_FIRST + os.getpid() * 97 % _COUNT)


def free_port() -> int:
    """Return a port that nobody listens on, once; no connection is from it meanwhile."""
    while True:
        port = next(_PORTS)
        with socket.socket() as one, suppress(OSError):
            one.bind(("", port))
            return port
