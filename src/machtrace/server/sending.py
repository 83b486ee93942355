"""Large answers, sent in pieces: a client that reads slowly costs memory that is counted."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from machtrace.server.limits import UNAVAILABLE, Memory, RefusedError

_LARGE = 1 << 20
_PIECE = 1 << 16


class LargeAnswer(Response):
    """An answer whose memory is reserved until it is sent."""

    def __init__(self, answer: Response, memory: Memory, seconds: float) -> None:
        """Reserve its memory.

        Args:
            answer: the answer.
            memory: that of all answers.
            seconds: the time for sending it.

        Raises:
            RefusedError: too many answers are being sent.
        """
        self.status_code = answer.status_code
        self.raw_headers = answer.raw_headers
        self.background = answer.background
        self._seconds = seconds
        self._room = memory
        self._parts = memoryview(answer.body)
        try:
            memory.take(len(self._parts))
        except RefusedError:
            raise RefusedError(
                UNAVAILABLE,
                "too many answers are being sent",
                remedy="try again soon",
                retry_after=10,
            ) from None

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send it; the connection is closed when that takes too long."""
        size = len(self._parts)
        try:
            async with asyncio.timeout(self._seconds):
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                for at in range(0, size, _PIECE):
                    piece = bytes(self._parts[at : at + _PIECE])
                    is_last = at + _PIECE >= size
                    await send(
                        {"type": "http.response.body", "body": piece, "more_body": not is_last}
                    )
        except (TimeoutError, asyncio.CancelledError):  # or the server stops
            return
        finally:
            self._room.take(-size)


def sendable(answer: Response, memory: Memory, seconds: float) -> Response:
    """Return an answer that is sent in pieces if it is large; see :class:`LargeAnswer`."""
    is_large = len(getattr(answer, "body", b"")) > _LARGE
    return LargeAnswer(answer, memory, seconds) if is_large else answer
