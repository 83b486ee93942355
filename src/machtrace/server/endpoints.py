"""Every address of a server, and the OpenAPI document about them."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from machtrace.server.answering import (
    JSON_LINES,
    answer_issues,
    answer_query,
    answer_received,
    answer_symbolicate,
    answer_wanted,
    refuse_code,
)
from machtrace.server.bodies import file_name, multipart, read_body
from machtrace.server.deciding import answer_issue, receive_decision
from machtrace.server.endpoint import Endpoint, with_token
from machtrace.server.envelopes import read_envelope
from machtrace.server.graphs.routes import GRAPHS
from machtrace.server.limits import BAD_REQUEST, NOT_FOUND, UNAVAILABLE, RefusedError
from machtrace.server.pages.routes import PAGES
from machtrace.server.profiles.endpoints import PROFILES
from machtrace.server.service import Service
from machtrace.server.symbolicator.endpoints import SYMBOLICATOR
from machtrace.server.tables import ARROW
from machtrace.server.tokens import Scope, token_name
from machtrace.server.uploads.routes import UPLOADS
from machtrace.warehouse.ingest import Body

# --- Requests that bring reports and envelopes ---

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


# --- Requests that delete ---

_DIGITS = 16


async def delete_device(service: Service, request: Request) -> Response:
    """Delete the reports of a device, and their bytes."""
    device, writer = request.path_params["device"], service.writer
    uncertain = request.query_params.get("uncertain") == "true"
    deleted = await writer.perform(
        lambda warehouse: writer.delete_device(warehouse, device, uncertain=uncertain)
    )
    counts = {"reports": deleted.reports, "records": deleted.records}
    # The log of administration must not have what was deleted.
    name = sha256(device.encode("utf-8", "replace")).hexdigest()[:_DIGITS]
    service.log.add("delete", device=name, **counts, token=token_name(request.state.token))
    return JSONResponse(counts)


DELETING = (
    Endpoint(
        method="DELETE",
        path="/v1/devices/{device:path}",
        summary="Delete the reports of a device, and their bytes.",
        handler=delete_device,
        scopes=frozenset(),
        parameters={"uncertain": "true: those, too, that may be of another device."},
        is_loaded=True,
    ),
)


# --- The counts of a server, in the text format of Prometheus ---


class _Metric(NamedTuple):
    name: str
    kind: str
    summary: str
    value: float


def metrics_text(service: Service) -> str:
    """Return all counts."""
    progress = service.writer.progress
    counts = (
        ("received", "Bodies of reports that were acknowledged.", progress.received),
        ("received_bytes", "Bytes of them, decompressed.", progress.received_bytes),
        ("commits", "Times that the log was written to the disk.", progress.commits),
        ("reports", "Reports that were added to segments.", progress.reports),
        ("repeated", "Reports that were there already.", progress.repeated),
        ("quarantined", "Bodies that could not be read.", progress.quarantined),
        ("unscrubbed", "Requests that took too long to scrub.", progress.unscrubbed),
        ("named_frames", "Frames that were named by symbols.", progress.named),
        ("reader_restarts", "Processes of readers that ended early.", progress.restarts),
        ("failures", "Segments or names that could not be made.", progress.failures),
    )
    levels = (
        ("unread_bytes", "Bytes of the log in no segment yet.", progress.unread_bytes),
        ("memory_bytes", "Bytes of bodies that are being received.", service.memory.used),
        ("segments", "Segments.", progress.segments),
    )
    rows = [_Metric(f"{name}_total", "counter", *rest) for name, *rest in counts]  # type: ignore[arg-type]
    rows += [_Metric(name, "gauge", *rest) for name, *rest in levels]  # type: ignore[arg-type]
    lines = [
        line
        for row in rows
        for line in (
            f"# HELP machtrace_{row.name} {row.summary}",
            f"# TYPE machtrace_{row.name} {row.kind}",
            f"machtrace_{row.name} {row.value}",
        )
    ]
    lines += [
        "# HELP machtrace_requests_total Answers, by endpoint and status.",
        "# TYPE machtrace_requests_total counter",
    ]
    lines += [
        f'machtrace_requests_total{{path="{path}",status="{status}"}} {count}'
        for (path, status), count in sorted(service.answers.items())
    ]
    return "\n".join(lines) + "\n"


# --- Every address of a server, and the OpenAPI document about them ---

_ANY = "application/octet-stream"
_JSON = "application/json"
_READ = frozenset({Scope.READ})
_INGEST = frozenset({Scope.INGEST})
_REFUSED = {
    "400": "The request is malformed.",
    "401": "A valid token is required.",
    "403": "The token has another scope.",
}
_LOADED = {
    "413": "It exceeds a limit.",
    "415": "The encoding is unknown.",
    "429": "Later; see Retry-After.",
    "503": "The server stops; see Retry-After.",
    "507": "The disk is full.",
}


async def _health(service: Service, _request: Request) -> Response:
    is_well = service.writer.is_alive
    status = {"status": "ok" if is_well else "not writing"}
    problems = service.problems
    return JSONResponse(
        status | ({"problems": problems} if problems else {}), 200 if is_well else UNAVAILABLE
    )


async def _metrics(service: Service, _request: Request) -> Response:
    return PlainTextResponse(metrics_text(service), media_type="text/plain; version=0.0.4")


async def _administration(service: Service, _request: Request) -> Response:
    return Response(service.log.read(), media_type=JSON_LINES)


async def _openapi(_service: Service, _request: Request) -> Response:
    return JSONResponse(openapi_document())


_V5 = Endpoint(
    method="POST",
    path="/symbolicate/v5",
    summary="Name offsets in modules, as Mozilla's symbol server does.",
    handler=answer_symbolicate,
    scopes=frozenset({Scope.READ, Scope.SYMBOLS}),
    body=(_JSON,),
    is_loaded=True,
    is_cross_origin=True,
)
_CODE = replace(
    _V5,
    path="/source/v1",
    summary="Sources and instructions: 404, since the server has none.",
    handler=refuse_code,
    success="404",
)
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/v1/reports",
        summary="Store reports of any format; they are on the disk when they are acknowledged.",
        handler=receive_reports,
        scopes=_INGEST,
        parameters={
            "app": "The app of reports that do not state it.",
            "build": "The build of reports that do not state it.",
            "name": "The name of the file.",
            "token": "The token, of clients that cannot send a header.",
        },
        body=(_ANY, "multipart/form-data"),
        success="202",
        is_loaded=True,
    ),
    Endpoint(
        method="GET",
        path="/v1/reports/{record}",
        summary="How far received bytes are: stored, parsed or quarantined, with the reasons.",
        handler=record_state,
        scopes=frozenset({Scope.INGEST, Scope.READ}),
    ),
    Endpoint(
        method="GET",
        path="/v1/reports/{record}/raw",
        summary="Bytes as they were received.",
        handler=answer_received,
        scopes=frozenset(),
        answers=(_ANY,),
    ),
    *UPLOADS,
    Endpoint(
        method="GET",
        path="/v1/symbols/wanted",
        summary="The images whose symbols are missing, those of most frames first.",
        handler=answer_wanted,
        scopes=frozenset({Scope.READ, Scope.SYMBOLS}),
    ),
    Endpoint(
        method="POST",
        path="/v1/query",
        summary="The rows of one SQL SELECT over the views of the warehouse.",
        handler=answer_query,
        scopes=_READ,
        body=("text/plain", _JSON),
        answers=(JSON_LINES, ARROW),
        is_loaded=True,
    ),
    *GRAPHS,
    Endpoint(
        method="GET",
        path="/v1/issues",
        summary="Reports of the same problem, the most frequent first.",
        handler=answer_issues,
        scopes=_READ,
        parameters={
            "where": "An SQL condition over the view reports.",
            "limit": "The number of issues.",
        },
    ),
    Endpoint(
        method="GET",
        path="/v1/issues/{issue}",
        summary="An issue, by its identifier or an earlier one.",
        handler=answer_issue,
        scopes=_READ,
    ),
    Endpoint(
        method="POST",
        path="/v1/issues/{issue}/decision",
        summary='Decide about an issue: {"state": "open, resolved or ignored", "note": TEXT}.',
        handler=receive_decision,
        scopes=frozenset(),
        body=(_JSON,),
        is_loaded=True,
    ),
    Endpoint(
        method="POST",
        path="/api/{project}/envelope/",
        summary="Store the events, profiles and attachments of a Sentry envelope.",
        handler=receive_envelope,
        scopes=_INGEST,
        parameters={"sentry_key": "The token, of clients that cannot send a header."},
        body=("application/x-sentry-envelope",),
        is_loaded=True,
    ),
    Endpoint(
        method="POST",
        path="/api/{project}/store/",
        summary="Store an event of Sentry's older clients.",
        handler=receive_event,
        scopes=_INGEST,
        parameters={"sentry_key": "The token, of clients that cannot send a header."},
        body=(_JSON,),
        is_loaded=True,
    ),
    *with_token(_V5),
    *with_token(_CODE),
    *with_token(replace(_CODE, path="/asm/v1")),
    *SYMBOLICATOR,
    *DELETING,
    *PROFILES,
    Endpoint(
        method="GET",
        path="/v1/administration",
        summary="What was done to the warehouse, a line of JSON for each action.",
        handler=_administration,
        scopes=frozenset(),
        answers=(JSON_LINES,),
    ),
    Endpoint(
        method="GET",
        path="/v1/openapi.json",
        summary="This document.",
        handler=_openapi,
        scopes=None,
    ),
    Endpoint(
        method="GET",
        path="/healthz",
        summary="Whether the server receives and writes.",
        handler=_health,
        scopes=None,
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        summary="Counts, in the text format of Prometheus.",
        handler=_metrics,
        scopes=_READ,
        answers=("text/plain",),
    ),
    *PAGES,
)


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of all endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.template, {})[endpoint.method.lower()] = _operation(endpoint)
    scheme = {"type": "http", "scheme": "bearer", "description": "mt_SCOPE_RANDOM"}
    cookie = {"type": "apiKey", "in": "cookie", "name": "machtrace"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "machtrace", "version": "1"},
        "paths": paths,
        "components": {"securitySchemes": {"token": scheme, "cookie": cookie}},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    in_path = [part[1:-1] for part in endpoint.template.split("/") if part.startswith("{")]
    text = {"type": "string"}
    parameters = [{"name": n, "in": "path", "required": True, "schema": text} for n in in_path]
    parameters += [
        {"name": name, "in": "query", "description": description, "schema": text}
        for name, description in endpoint.parameters.items()
    ]
    is_open = endpoint.scopes is None and endpoint.method == "GET"
    refusals = {} if is_open else dict(_REFUSED)
    refusals |= {"303": "Sign in first."} if endpoint.is_page else {}
    refusals |= _LOADED if endpoint.is_loaded else {}
    answers: dict[str, Any] = {kind: {} for kind in endpoint.answers}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": {
            **{status: {"description": reason} for status, reason in refusals.items()},
            endpoint.success: {"description": "Done.", "content": answers},
        },
        "security": [],
    }
    if endpoint.scopes is not None:
        operation["security"] = [{"token": []}, {"cookie": []}]
        operation["x-scopes"] = sorted({Scope.ADMIN, *endpoint.scopes})
    if endpoint.body:
        operation["requestBody"] = {"content": {kind: {} for kind in endpoint.body}}
    return operation
