"""Requests that bring reports and envelopes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from machtrace.server.bodies import file_name, multipart, read_body
from machtrace.server.envelopes import read_envelope
from machtrace.server.limits import BAD_REQUEST, NOT_FOUND, RefusedError
from machtrace.server.service import Service
from machtrace.warehouse.ingest import Body

_ACCEPTED = 202


async def receive_reports(service: Service, request: Request) -> Response:
    """Store any bytes of reports; they are on the disk when they are acknowledged."""
    limits, query = service.limits, request.query_params
    app, build = query.get("app", ""), query.get("build", "")
    with service.memory.reservation() as room:
        data = await read_body(request, limits.packed_bytes, limits, room)
        content_type = request.headers.get("content-type", "")
        if content_type.lower().startswith("multipart/form-data"):
            room.grow(len(data))
            bodies = [
                Body(file_name(part.file or part.name), part.data, app, build)
                for part in multipart(data, content_type, limits.parts)
                if part.data
            ]
        else:
            bodies = [Body(file_name(query.get("name", "")), data, app, build)] if data else []
        if not bodies:
            raise RefusedError(BAD_REQUEST, "a body without a report")
        return JSONResponse({"ids": await service.writer.store(bodies)}, _ACCEPTED)


async def receive_event(service: Service, request: Request) -> Response:
    """Store an event of Sentry's clients that is sent alone."""
    with service.memory.reservation() as room:
        data = await read_body(request, service.limits.packed_bytes, service.limits, room)
        if not data:
            raise RefusedError(BAD_REQUEST, "a body without an event")
        project = file_name(request.path_params["project"])
        ids = await service.writer.store([Body(f"sentry/{project}/event.json", data)])
    return JSONResponse({"id": ids[0]})


async def receive_envelope(service: Service, request: Request) -> Response:
    """Store the events, profiles and attachments of a Sentry envelope."""
    limits = service.limits
    with service.memory.reservation() as room:
        data = await read_body(request, limits.packed_bytes, limits, room)
        room.grow(len(data))
        project = file_name(request.path_params["project"])
        envelope = read_envelope(data, project, limits.parts)
        await service.writer.store(envelope.bodies)
    return JSONResponse({"id": envelope.id} if envelope.id else {})


async def record_state(service: Service, request: Request) -> Response:
    """Return how far received bytes are."""
    name = request.path_params["record"]
    state = await service.performing(lambda each: each.record_state(name))
    if state is None:
        raise RefusedError(NOT_FOUND, "there is no such record")
    reasons = {"reasons": list(state[1])} if state[1] else {}
    return JSONResponse({"id": name, "state": state[0].value, **reasons})
