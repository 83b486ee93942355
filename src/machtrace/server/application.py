"""The ASGI application: routes, permissions, refusals."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from machtrace.errors import ArgumentError, MachtraceError
from machtrace.server.compression import compressed
from machtrace.server.endpoint import Endpoint
from machtrace.server.endpoints import ENDPOINTS
from machtrace.server.limits import BAD_REQUEST, TOO_MANY, UNAVAILABLE, RefusedError
from machtrace.server.pages.frame import refusal_page
from machtrace.server.sending import sendable
from machtrace.server.service import Service
from machtrace.server.uploads.symbols import remove_uploads

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
