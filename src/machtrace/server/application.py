"""The ASGI application: routes, permissions, refusals."""

from __future__ import annotations

import asyncio
import gzip
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from machtrace.errors import ArgumentError, MachtraceError
from machtrace.server.endpoint import Endpoint
from machtrace.server.endpoints import ENDPOINTS
from machtrace.server.limits import BAD_REQUEST, TOO_MANY, UNAVAILABLE, Memory, RefusedError
from machtrace.server.pages.frame import refusal_page
from machtrace.server.service import Service
from machtrace.server.uploads.symbols import remove_uploads

# --- Answers as gzip, for clients that accept it: pages with graphs are a tenth of their size ---

_MIN_BYTES, _MAX_BYTES = 1 << 10, 1 << 25
"""Bytes of answers that are compressed."""
_LEVEL = 6
_KINDS = ("text/", "application/json", "application/x-ndjson", "image/svg+xml")


async def compressed(request: Request, response: Response) -> Response:
    """Return an answer, as gzip if the client accepts it and the answer becomes smaller.

    No page has a secret, such as a token, so that its size discloses none.
    """
    body = getattr(response, "body", b"")
    is_text = response.headers.get("content-type", "").startswith(_KINDS)
    if (
        not is_text
        or not _MIN_BYTES <= len(body) <= _MAX_BYTES
        or "content-encoding" in response.headers
    ):
        return response
    response.headers["Vary"] = "Accept-Encoding"
    if not _accepts_gzip(request.headers.get("accept-encoding", "")):
        return response
    response.body = await asyncio.to_thread(partial(gzip.compress, body, _LEVEL, mtime=0))
    response.headers["Content-Encoding"] = "gzip"
    response.headers["Content-Length"] = str(len(response.body))
    return response


def _accepts_gzip(header: str) -> bool:
    for each in header.lower().split(","):
        name, _, quality = each.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


# --- Large answers, sent in pieces: a client that reads slowly costs memory that is counted ---

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


# --- The ASGI application: routes, permissions, refusals ---

_FAILED = 500
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
_POLICY = "default-src 'none'; sandbox"
_CROSS_ORIGIN = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "authorization, content-type",
    "Access-Control-Allow-Methods": "POST",
}


def application(service: Service) -> Starlette:
    """Return the application of a service; its writer starts and stops with it."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.begin()
        remove_uploads(service)
        try:
            yield
        finally:
            service.jobs.close()
            await asyncio.to_thread(service.close)
            await service.writer.stop()

    routes = [
        Route(endpoint.path, _route(service, endpoint), methods=[endpoint.method])
        for endpoint in ENDPOINTS
    ]
    routes += [
        Route(endpoint.path, _preflight, methods=["OPTIONS"])
        for endpoint in ENDPOINTS
        if endpoint.is_cross_origin
    ]
    return Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _http_error(service)}
    )


def _route(service: Service, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        response = await _answered(service, endpoint, request)
        if response.status_code >= BAD_REQUEST and endpoint.method != "GET":
            # The rest of the body is not read.
            response.headers["Connection"] = "close"
        if endpoint.is_cross_origin:
            response.headers.update(_CROSS_ORIGIN)
        for name, value in (_HEADERS | {"Content-Security-Policy": _POLICY}).items():
            response.headers.setdefault(name, value)
        service.answers[endpoint.template, response.status_code] += 1
        return _sendable(service, await compressed(request, response))

    return answer


async def _answered(service: Service, endpoint: Endpoint, request: Request) -> Response:
    """Return an answer or a refusal."""
    try:
        if endpoint.scopes is not None:
            request.state.token = service.authorise(
                request, endpoint.scopes, is_cross_origin=endpoint.is_cross_origin
            )
        return await endpoint.handler(service, request)
    except asyncio.CancelledError:
        return _refusal(RefusedError(UNAVAILABLE, "the server stops", retry_after=5))
    except MachtraceError as error:
        refused = error
    except Exception as error:  # noqa: BLE001 - a client gets an answer, and no traceback
        sys.stderr.write(f"machtrace: {endpoint.path}: {type(error).__name__}: {error}\n")
        refused = RefusedError(_FAILED, "the request failed")
    response = _refusal(refused)
    if endpoint.is_page:
        response = refusal_page(service, request, refused, response)
    return response


def _sendable(service: Service, response: Response) -> Response:
    try:
        return sendable(response, service.sending, service.limits.sending_time)
    except RefusedError as error:
        return _refusal(error)


def _refusal(error: MachtraceError) -> Response:
    status, headers = _FAILED, {}
    if isinstance(error, RefusedError):
        status = error.status
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
        if status == TOO_MANY:  # Sentry's clients read this one: for all kinds of items
            headers["X-Sentry-Rate-Limits"] = f"{error.retry_after or 60}::organization"
    elif isinstance(error, ArgumentError):
        status = BAD_REQUEST
    return JSONResponse({"error": str(error), "hint": error.remedy}, status, headers)


async def _preflight(_request: Request) -> Response:
    return Response(status_code=204, headers=_CROSS_ORIGIN)


def _http_error(service: Service) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        headers = {**(error.headers or {}), **_HEADERS, "Connection": "close"}
        response: Response = JSONResponse({"error": error.detail}, error.status_code, headers)
        if "text/html" in request.headers.get("accept", ""):
            refused = RefusedError(error.status_code, f"{error.detail}: {request.url.path}")
            response = refusal_page(service, request, refused, response)
        return response

    return answer
