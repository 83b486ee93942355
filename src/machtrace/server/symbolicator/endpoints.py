"""The addresses of Symbolicator's interface."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from machtrace.server.bodies import multipart, read_body
from machtrace.server.endpoint import Endpoint, with_token
from machtrace.server.limits import BAD_REQUEST, RefusedError
from machtrace.server.service import Service
from machtrace.server.symbolicator.answers import symbolicated
from machtrace.server.symbolicator.crash_report import read_crash_report
from machtrace.server.symbolicator.request import Request as Stacks
from machtrace.server.symbolicator.request import read_request
from machtrace.server.tokens import Scope

_JSON = "application/json"
_FORM = "multipart/form-data"
_REPORT = "apple_crash_report"
_MAX_WAIT = 600
_SCOPES = frozenset({Scope.READ, Scope.SYMBOLS})
_PARAMETERS = {
    "timeout": "Seconds after which the answer is that it is pending.",
    "scope": "Without effect: there are no caches to divide.",
}


async def _symbolicate(service: Service, request: Request) -> Response:
    """Return the names of the frames of stacks."""
    seconds = _seconds(request)
    data = await _body(service, request)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RefusedError(BAD_REQUEST, f"the request is no JSON: {error}") from None
    stacks = read_request(document, service.limits.frames)
    return await _started(service, request, lambda: _named(service, stacks), seconds)


async def _crash_report(service: Service, request: Request) -> Response:
    """Return the names of the frames of a crash report."""
    seconds = _seconds(request)
    data = await _body(service, request)
    parts = multipart(data, request.headers.get("content-type", ""), service.limits.parts)
    report = next((part.data for part in parts if part.name == _REPORT), b"")
    if not report:
        raise RefusedError(BAD_REQUEST, f"a body without {_REPORT}")

    def work() -> dict[str, Any]:
        stacks, facts = read_crash_report(report, service.limits.frames)
        return {**facts, **_named(service, stacks)}

    return await _started(service, request, work, seconds)


async def _collect(service: Service, request: Request) -> Response:
    """Return an answer that was pending."""
    name, token = request.path_params["request"], request.state.token
    return JSONResponse(await service.jobs.answer(name, token, _seconds(request)))


async def _health(_service: Service, _request: Request) -> Response:
    return PlainTextResponse("ok")


async def _body(service: Service, request: Request) -> bytes:
    with service.memory.reservation() as room:
        return await read_body(request, service.limits.question_bytes, service.limits, room)


async def _started(
    service: Service,
    request: Request,
    work: Callable[[], dict[str, Any]],
    seconds: int | None,
) -> Response:
    token = request.state.token
    name = service.jobs.start(work, token)
    return JSONResponse(await service.jobs.answer(name, token, seconds))


def _named(service: Service, stacks: Stacks) -> dict[str, Any]:
    with service.names() as names:
        return symbolicated(stacks, names, service.store)


def _seconds(request: Request) -> int | None:
    text = request.query_params.get("timeout")
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:  # noqa: PLR2004 - seconds
        raise RefusedError(BAD_REQUEST, "timeout is no number of seconds")
    return min(int(text), _MAX_WAIT)


SYMBOLICATOR: tuple[Endpoint, ...] = (
    *with_token(
        Endpoint(
            method="POST",
            path="/symbolicate",
            summary="Name the frames of stacks, as Symbolicator does.",
            handler=_symbolicate,
            scopes=_SCOPES,
            is_loaded=True,
            parameters=_PARAMETERS,
            body=(_JSON,),
        )
    ),
    *with_token(
        Endpoint(
            method="POST",
            path="/applecrashreport",
            summary="Name the frames of a crash report, as Symbolicator does.",
            handler=_crash_report,
            scopes=_SCOPES,
            is_loaded=True,
            parameters=_PARAMETERS,
            body=(_FORM,),
        )
    ),
    *with_token(
        Endpoint(
            method="GET",
            path="/requests/{request}",
            summary="An answer of Symbolicator's interface that was pending; it is given once.",
            handler=_collect,
            scopes=_SCOPES,
            is_loaded=True,
            parameters={"timeout": _PARAMETERS["timeout"]},
        )
    ),
    Endpoint(
        method="GET",
        path="/healthcheck",
        summary="Whether the server runs, as Symbolicator states it.",
        handler=_health,
        scopes=None,
        answers=("text/plain",),
    ),
)
