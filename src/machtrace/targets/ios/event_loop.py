"""An event loop in a thread of its own, for a library that is asynchronous.

Callers wait in their own thread, so that Ctrl-C reaches them at once; what they waited for is
cancelled, and what is open can still be closed. A connection of the loop is handed out as a socket.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Protocol, TypeVar

_Result = TypeVar("_Result")
_PIECE = 1 << 18
_PARTING = 3.0
"""Seconds for what was cancelled to end."""


class ServiceStream(Protocol):
    """A connection to a service of a device, as the library has it."""

    async def recv_any(self, length: int) -> bytes:
        """Receive data; empty if the peer closed the connection."""
        ...

    async def sendall(self, payload: bytes) -> None:
        """Send all."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


class DeviceLoop:
    """Runs coroutines, one call after the other or at once, until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pumps: set[Future[None]] = set()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="machtrace-device", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result], timeout: float) -> _Result:
        """Run ``work`` and return its result.

        Raises:
            TimeoutError: it took more than ``timeout`` seconds.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def socket_to(self, stream: ServiceStream) -> socket.socket:
        """Return a socket connected to ``stream``, which is closed with the socket.

        What was written to the socket before it was closed still goes out.
        """
        ours, theirs = socket.socketpair()
        theirs.settimeout(0)
        pump = asyncio.run_coroutine_threadsafe(self._pump(theirs, stream), self._loop)
        self._pumps.add(pump)
        return ours

    def drain(self) -> None:
        """Wait until what is in sockets that were closed has been sent."""
        wait(self._pumps, _PARTING)

    def close(self) -> None:
        """End what still runs; calling it twice does nothing more."""
        if self._loop.is_closed():
            return
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(_PARTING)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PARTING)
        if not self._thread.is_alive():
            self._loop.close()

    async def _pump(self, near: socket.socket, far: ServiceStream) -> None:
        """Forward bytes both ways, until both sides are closed, or one of them is gone."""
        loop = asyncio.get_running_loop()

        async def out() -> None:
            while data := await loop.sock_recv(near, _PIECE):
                await far.sendall(data)

        async def back() -> None:
            while data := await far.recv_any(_PIECE):
                await loop.sock_sendall(near, data)

        tasks = [asyncio.create_task(out()), asyncio.create_task(back())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            # Whatever ended it, the reader of the other end sees the connection end.
            await asyncio.gather(*tasks, return_exceptions=True)
            near.close()
            with suppress(Exception):
                await far.close()


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
