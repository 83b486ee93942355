"""Requests that bring something: reports, envelopes, symbols."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import mkdtemp
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from machtrace.errors import FileAccessError
from machtrace.images.store_layout import identifier_text
from machtrace.server.bodies import multipart, pieces, read_body
from machtrace.server.envelopes import read_envelope
from machtrace.server.limits import (
    BAD_REQUEST,
    DISK_FULL,
    NOT_FOUND,
    UNSUPPORTED,
    Limits,
    RefusedError,
)
from machtrace.server.service import Service
from machtrace.server.tokens import token_name
from machtrace.symbolstore.adding import InputFile, Stored, SymbolAdder
from machtrace.symbolstore.archive import UnpackLimits
from machtrace.symbolstore.store import SymbolStore
from machtrace.warehouse.ingest import Body

UPLOADS = ".upload-"
"""How the folders of files begin that are being sent."""
_ACCEPTED = 202
_PIECE = 1 << 20
_UNUSUAL = re.compile(r"[^\w.+ -]")
_LONGEST_NAME = 200
_MOST_MEMBERS = 100_000


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
                Body(_file_name(part.file or part.name), part.data, app, build)
                for part in multipart(data, content_type, limits.parts)
                if part.data
            ]
        else:
            bodies = [Body(_file_name(query.get("name", "")), data, app, build)] if data else []
        if not bodies:
            raise RefusedError(BAD_REQUEST, "a body without a report")
        return JSONResponse({"ids": await service.writer.store(bodies)}, _ACCEPTED)


async def receive_envelope(service: Service, request: Request) -> Response:
    """Store the events and attachments of a Sentry envelope."""
    limits = service.limits
    with service.memory.reservation() as room:
        data = await read_body(request, limits.packed_bytes, limits, room)
        room.grow(len(data))
        project = _file_name(request.path_params["project"])
        envelope = read_envelope(data, project, limits.parts)
        await service.writer.store(envelope.bodies)
    return JSONResponse({"id": envelope.id} if envelope.id else {})


async def record_state(service: Service, request: Request) -> Response:
    """Return how far received bytes are."""
    name = request.path_params["record"]
    state = await service.reading(lambda each: each.record_state(name), is_query=False)
    if state is None:
        raise RefusedError(NOT_FOUND, "there is no such record")
    reasons = {"reasons": list(state[1])} if state[1] else {}
    return JSONResponse({"id": name, "state": state[0].value, **reasons})


async def receive_symbols(service: Service, request: Request) -> Response:
    """Store the images and debug files of a file or an archive, and name what waits for them."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RefusedError(UNSUPPORTED, "symbols are sent without Content-Encoding")
    limits, store = service.limits, service.store
    name = _file_name(request.query_params.get("name", "")) or "symbols"
    try:
        folder = Path(await asyncio.to_thread(mkdtemp, prefix=UPLOADS, dir=store.root))
        try:
            path = folder / name
            body = pieces(request, limits.symbols_bytes, limits.symbols_time)
            with path.open("xb") as file:
                await _write(body, file, limits)
            stored, skipped = await asyncio.to_thread(_add, path, store, limits)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    except FileAccessError as error:
        raise RefusedError(DISK_FULL, f"the symbols cannot be stored: {error.reason}") from None
    except OSError as error:
        raise RefusedError(DISK_FULL, f"the symbols cannot be stored: {error.strerror}") from None
    new = {identifier_text(each.identifier) for each in stored}
    if new:
        service.forget_names()
        service.writer.name(new)
    by = token_name(request.state.token)
    service.log.add("symbols", name=name, images=sorted(new), token=by)
    rows = [
        {
            "id": identifier_text(each.identifier),
            "arch": each.arch,
            "kind": each.kind.value,
            "is_new": each.is_new,
        }
        for each in stored
    ]
    return JSONResponse({"stored": rows, "skipped": skipped})


def remove_uploads(service: Service) -> None:
    """Remove what was being sent when a server was killed."""
    for folder in service.store.root.glob(f"{UPLOADS}*"):
        shutil.rmtree(folder, ignore_errors=True)


async def _write(body: AsyncIterator[bytes], file: BinaryIO, limits: Limits) -> None:
    waiting: list[bytes] = []
    size = 0
    async for piece in body:
        waiting.append(piece)
        size += len(piece)
        if size >= _PIECE:
            await asyncio.to_thread(_write_parts, file, waiting, limits)
            waiting, size = [], 0
    await asyncio.to_thread(_write_parts, file, waiting, limits)


def _write_parts(file: BinaryIO, parts: list[bytes], limits: Limits) -> None:
    status = os.fstatvfs(file.fileno())
    if status.f_bavail * status.f_frsize < limits.free_bytes + sum(map(len, parts)):
        raise RefusedError(DISK_FULL, "the disk of the server is full")
    file.write(b"".join(parts))
    file.flush()


def _add(
    path: Path, store: SymbolStore, limits: Limits
) -> tuple[list[Stored], list[dict[str, str]]]:
    """Add a file to the store."""
    unpack = UnpackLimits(
        member_bytes=limits.symbols_bytes,
        total_bytes=limits.unpacked_symbols_bytes,
        members=_MOST_MEMBERS,
    )
    stored, skipped = [], []
    adder = SymbolAdder(store, unpack)
    for outcome in adder.add(InputFile(path, path.stat().st_size, is_named=True)):
        if isinstance(outcome, Stored):
            stored.append(outcome)
        else:
            name = outcome.source.replace(str(path), path.name)
            detail = outcome.detail.replace(str(store.root), "")
            skipped.append({"name": name, "reason": outcome.reason.value, "detail": detail})
    return stored, skipped


def _file_name(text: str) -> str:
    """Return the last part of a name that a client chose; it is a label."""
    last = text.replace("\\", "/").rpartition("/")[2]
    return _UNUSUAL.sub("_", last).strip(". ")[:_LONGEST_NAME]
