"""The addresses that other systems' agents push profiles to."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from machtrace.errors import FormatError
from machtrace.reports.plcrash.wire import Message
from machtrace.server.bodies import read_body
from machtrace.server.endpoint import Endpoint
from machtrace.server.limits import BAD_REQUEST, NOT_FOUND, TOO_LARGE, UNSUPPORTED, RefusedError
from machtrace.server.profiles.pyroscope import read_ingest, read_push
from machtrace.server.service import Service
from machtrace.server.tokens import Scope
from machtrace.warehouse.ingest import Body

_JSON, _ANY, _FORM = "application/json", "application/octet-stream", "multipart/form-data"
_PROTO, _OTHER_PROTO = "application/proto", "application/x-protobuf"
_INGEST = frozenset({Scope.INGEST})


async def _ingest(service: Service, request: Request) -> Response:
    """Store a profile with the labels of its address."""
    limits, content_type = service.limits, request.headers.get("content-type", "")
    with service.memory.reservation() as room:
        data = await read_body(request, limits.packed_bytes, limits, room)
        room.grow(len(data))
        query = dict(request.query_params)
        body = await asyncio.to_thread(read_ingest, query, data, content_type, limits)
        await service.writer.store([body])
    return Response()


async def _push(service: Service, request: Request) -> Response:
    """Store profiles with their labels."""
    kind, limits = _media_type(request), service.limits
    if kind not in (_JSON, _PROTO):
        raise RefusedError(UNSUPPORTED, f"use {_JSON} or {_PROTO}")
    with service.memory.reservation() as room:
        data = await read_body(request, limits.packed_bytes, limits, room)
        room.grow(len(data))
        bodies = await asyncio.to_thread(read_push, data, is_json=kind == _JSON, limits=limits)
        await service.writer.store(bodies)
    return JSONResponse({}) if kind == _JSON else Response(b"", media_type=_PROTO)


async def _otlp(service: Service, request: Request) -> Response:
    """Store a request of OpenTelemetry's profiles."""
    if not service.has_otlp:
        raise RefusedError(
            NOT_FOUND, "OTLP profiles are off", remedy="start the server with --otlp"
        )
    if _media_type(request) != _OTHER_PROTO:
        raise RefusedError(UNSUPPORTED, f"use {_OTHER_PROTO}")
    limits = service.limits
    with service.memory.reservation() as room:
        data = await read_body(request, limits.packed_bytes, limits, room)
        if len(data) > limits.packed_bytes:
            raise RefusedError(TOO_LARGE, f"the request is larger than {limits.packed_bytes} bytes")
        room.grow(len(data))
        accepted, rejected = await asyncio.to_thread(_profiles, data, limits.parts)
        if accepted:
            await service.writer.store([Body("otlp", data)])
    return Response(_partial_success(rejected), media_type=_OTHER_PROTO)


def _profiles(data: bytes, most: int) -> tuple[int, int]:
    """Return the numbers of profiles that are stored, and of those that have nothing in them."""
    accepted = rejected = 0
    try:
        message = Message(memoryview(data), "OTLP", most=most).checked()
        has_dictionary = False
        for _ in message.strings(2):
            has_dictionary = True
        for resource in map(Message.checked, message.messages(1)):
            for scope in map(Message.checked, resource.messages(2)):
                sizes = [len(string) for string in scope.strings(2)]
                accepted += sum(1 for size in sizes if size) if has_dictionary else 0
                rejected += sum(1 for size in sizes if not size or not has_dictionary)
    except FormatError as error:
        raise RefusedError(BAD_REQUEST, f"no ExportProfilesServiceRequest: {error}") from None
    return accepted, rejected


def _partial_success(rejected: int) -> bytes:
    """Return an ``ExportProfilesServiceResponse``; empty if all profiles are stored."""
    if not rejected:
        return b""
    from machtrace.render.pprof import Message as Written

    detail, answer = Written((1, rejected)), Written()
    detail.text(2, "profiles without content or dictionary are left out")
    answer.message(1, detail)
    return bytes(answer)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


PROFILES: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/ingest",
        summary="Store a profile, as Pyroscope's agents send it.",
        handler=_ingest,
        scopes=_INGEST,
        parameters={
            "name": "The app and labels: my.app{instance=a,version=1}.",
            "format": "folded, lines, pprof or speedscope.",
            "from": "When it began, in seconds, ms, µs or ns since 1970.",
            "token": "The token, of clients that cannot send a header.",
        },
        body=(_ANY, "text/plain", _FORM),
        answers=(),
        is_loaded=True,
    ),
    Endpoint(
        method="POST",
        path="/push.v1.PusherService/Push",
        summary="Store pprof profiles with labels, as Pyroscope's agents send them.",
        handler=_push,
        scopes=_INGEST,
        body=(_JSON, _PROTO),
        answers=(_JSON, _PROTO),
        is_loaded=True,
    ),
    Endpoint(
        method="POST",
        path="/v1development/profiles",
        summary="Store profiles of OpenTelemetry, if the server was started for it.",
        handler=_otlp,
        scopes=_INGEST,
        body=(_OTHER_PROTO,),
        answers=(_OTHER_PROTO,),
        is_loaded=True,
    ),
)
