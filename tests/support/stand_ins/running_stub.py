"""debugserver with a process that runs: it sends profiles meanwhile, and stops when interrupted.

Written from debugserver's sources, not recorded from a device.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.support.stand_ins.gdb_stub import SnapshotStub

INTERRUPT = b"\x03"
_PIECE = 1024
_WAIT_S = 10


def profile(
    threads: Mapping[int, tuple[int, str]],
    *,
    ended_us: int = 0,
    footprint: int = 64 << 20,
    limit_mib: int = 0,
) -> bytes:
    """Write a profile as debugserver does, without the ``A`` of its packets."""
    used = "".join(
        f"thread_used_id:{thread:x};thread_used_usec:{used_us};"
        f"thread_used_name:{name.encode().hex()};"
        for thread, (used_us, name) in threads.items()
    )
    return (
        f"elapsed_usec:1583325511341698;task_used_usec:{ended_us};{used}used:3212836864;"
        f"anonymous:{footprint // 2};phys_footprint:{footprint};mem_cap:{limit_mib};--end--;"
    ).encode()


@dataclass(slots=True)
class RunningStub(SnapshotStub):
    """Serves a snapshot whenever the process is stopped."""

    has_profiles: bool = True
    attached: bytes = b"1"
    is_running: bool = False
    interrupts: int = 0
    connection: socket.socket | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    closed: threading.Event = field(default_factory=threading.Event)

    def await_running(self) -> None:
        """Wait until the process runs."""
        deadline = time.monotonic() + _WAIT_S
        while not self.is_running:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def send(self, payload: bytes) -> None:
        """Send a packet while the process runs."""
        with self._while_it_runs():
            self._write(payload)

    def send_profile(self, text: bytes) -> None:
        """Send a profile in packets as long as debugserver's."""
        with self._while_it_runs():
            for at in range(0, len(text), _PIECE):
                self._write(b"A" + text[at : at + _PIECE])

    def stop(self, reply: bytes) -> None:
        """Stop the process by itself."""
        with self._while_it_runs():
            self._write(reply)
            self.is_running = False

    @contextmanager
    def _while_it_runs(self) -> Iterator[None]:
        """Hold the lock once the process runs; to wait with the lock would serve nobody."""
        while True:
            self.await_running()
            with self.lock:
                if self.is_running:
                    yield
                    return

    def _write(self, payload: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(b"$%s#%02x" % (payload, sum(payload) % 256))

    def answer(self, request: bytes) -> bytes | None:
        """See :meth:`SnapshotStub.answer`."""
        if request.startswith(b"QSetEnableAsyncProfiling"):
            return b"OK" if self.has_profiles else b""
        if request.startswith(b"vCont;"):
            self.is_running = True
        return SnapshotStub.answer(self, request)

    def _converse(self, connection: socket.socket) -> None:
        self.connection = connection
        held = b""
        with suppress(OSError):
            while data := connection.recv(1 << 16):
                with self.lock:
                    held = self._serve_all(connection, held + data)
        self.closed.set()

    def _serve_all(self, connection: socket.socket, held: bytes) -> bytes:
        """Serve requests and interrupts in their order; return the rest."""
        while held:
            if held[:1] == b"$":
                end = held.find(b"#")
                if end < 0 or len(held) < end + 3:
                    break
                request, held = held[1:end], held[end + 3 :]
                if self.acknowledges:
                    connection.sendall(b"+")
                self.requests.append(request)
                connection.sendall(self._packet(request))
                continue
            if held[:1] == INTERRUPT and self.is_running:
                self.interrupts += 1
                self.stop(b"T11thread:%x;" % self.snapshot.threads[0].info.id)
            held = held[1:]
        return held
