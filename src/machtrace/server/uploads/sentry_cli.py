"""Chunks, and lists of the chunks of files, as ``sentry-cli debug-files upload`` sends them.

Sources: sentry-cli's ``api/mod.rs`` and ``utils/chunks``, Sentry's ``endpoints/chunk.py`` and
``endpoints/debug_files.py``. Organisations and projects in addresses are not distinguished.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from machtrace.errors import MachtraceError
from machtrace.images.store_layout import FileKind, Identifier, identifier_text, parse_identifier
from machtrace.server.bodies import Part, file_name, multipart, read_body
from machtrace.server.chunks import CHUNK_BYTES, DIGEST, Chunks
from machtrace.server.limits import BAD_REQUEST, TOO_LARGE, RefusedError
from machtrace.server.service import Service
from machtrace.server.uploads.symbols import add_symbols, upload_folder
from machtrace.symbolstore.adding import Stored
from machtrace.symbolstore.store import SymbolStore

_CHUNKS = 64
"""The chunks that a request may have."""
_REQUEST_BYTES = 32 << 20
"""The size of all chunks of a request, decompressed."""
_CONCURRENCY = 4
_MAX_FILES = 10_000
_PATIENCE = 15.0
"""Seconds after which a client is to request the state again."""
_GZIP = 31
"""The window of zlib, with gzip's header."""
_KINDS = {FileKind.EXECUTABLE: "exe", FileKind.DEBUGINFO: "dbg"}
_ID_BYTES = 16
_SOURCES = b"SYSB"


class _File(NamedTuple):
    """A file that a client has."""

    name: str
    chunks: tuple[str, ...]


async def _answer(service: Service, files: dict[str, _File], token: str) -> dict[str, Any]:
    """Return the states of files by their SHA-1; those with all their chunks are assembled."""
    answers: dict[str, Any] = {}
    tasks = service.assembly.tasks
    for whole, file in files.items():
        if whole in tasks:
            continue
        answer = await asyncio.to_thread(_known, service, whole, file)
        if answer is not None:
            answers[whole] = answer
        elif whole not in tasks:  # another request may have made it meanwhile
            tasks[whole] = asyncio.create_task(_assemble(service, whole, file, token))
    waiting = {whole: tasks[whole] for whole in files if whole not in answers}
    if waiting:
        await asyncio.wait(waiting.values(), timeout=_PATIENCE)
    for whole, task in waiting.items():
        answers[whole] = task.result() if task.done() else _state("assembling")
    for whole in [whole for whole, task in tasks.items() if task.done()]:
        del tasks[whole]
    return answers


def _known(service: Service, whole: str, file: _File) -> dict[str, Any] | None:
    """Return a file's answer if it is stored, or has no chunks here; None if it has all."""
    chunks = service.assembly.chunks
    answer = chunks.answer(whole)
    if answer is not None and _is_stored(answer, service.store):
        return answer
    missing = chunks.missing(file.chunks)
    return _state("not_found", missing=missing) if missing or not file.chunks else None


async def _assemble(service: Service, whole: str, file: _File, token: str) -> dict[str, Any]:
    assembly = service.assembly
    try:
        async with assembly.turn, upload_folder(service) as folder:
            path = folder / (file_name(file.name) or "symbols")
            await asyncio.to_thread(assembly.chunks.assemble, file.chunks, whole, path)
            if await asyncio.to_thread(_has_sources, path):
                answer = _state("ok", detail="files with source code are left out") | {"images": []}
                await asyncio.to_thread(assembly.chunks.store_answer, whole, answer)
                return answer
            stored, skipped = await add_symbols(service, path, token)
            if not stored:
                reasons = [f"{each['reason']} {each['detail']}".strip() for each in skipped]
                return _state("error", detail="; ".join(reasons) or "it has no image")
            answer = _state("ok") | {"dif": _described(stored[0], file.name, whole)}
            answer["images"] = sorted({identifier_text(each.identifier) for each in stored})
            await asyncio.to_thread(assembly.chunks.store_answer, whole, answer)
            return answer
    except MachtraceError as error:
        return _state("error", detail=str(error))


async def chunk_options(service: Service, request: Request) -> Response:
    """Return how chunks are to be sent."""
    return JSONResponse(
        {
            "url": request.url.path,
            "chunkSize": CHUNK_BYTES,
            "chunksPerRequest": _CHUNKS,
            "maxFileSize": service.limits.symbols_bytes,
            "maxRequestSize": _REQUEST_BYTES,
            "maxWait": 0,
            "concurrency": _CONCURRENCY,
            "hashAlgorithm": "sha1",
            "compression": ["gzip"],
            "accept": ["debug_files"],
        }
    )


async def receive_chunks(service: Service, request: Request) -> Response:
    """Store chunks, each of them named by its SHA-1."""
    limits = service.limits
    with service.memory.reservation() as room:
        data = await read_body(request, limits.packed_bytes, limits, room)
        room.grow(len(data))
        parts = multipart(data, request.headers.get("content-type", ""), _CHUNKS)
        room.grow(_REQUEST_BYTES)
        await asyncio.to_thread(_store, service.assembly.chunks, parts)
    return Response(status_code=200)


async def assemble_files(service: Service, request: Request) -> Response:
    """Assemble the files whose chunks are here, and return which chunks are missing."""
    with service.memory.reservation() as room:
        data = await read_body(request, service.limits.question_bytes, service.limits, room)
        files = await asyncio.to_thread(_listed, data)
    return JSONResponse(await _answer(service, files, request.state.token))


async def describe_token(_service: Service, _request: Request) -> Response:
    """Return what ``sentry-cli info`` shows."""
    return JSONResponse({"version": "0", "auth": {"scopes": ["project:write"]}, "user": None})


def _store(chunks: Chunks, parts: Sequence[Part]) -> None:
    size = 0
    unpacked: list[tuple[str, bytes]] = []
    for part in parts:
        if part.name not in ("file", "file_gzip"):
            continue
        data = _unpacked(part.data) if part.name == "file_gzip" else part.data
        size += len(data)
        if size > _REQUEST_BYTES:
            raise RefusedError(TOO_LARGE, f"the chunks are larger than {_REQUEST_BYTES} bytes")
        unpacked.append((part.file, data))
    chunks.put(unpacked)


def _unpacked(data: bytes) -> bytes:
    stream = zlib.decompressobj(_GZIP)
    try:
        made = stream.decompress(data, CHUNK_BYTES + 1)
    except zlib.error as error:
        raise RefusedError(BAD_REQUEST, f"a chunk cannot be decompressed ({error})") from None
    if len(made) > CHUNK_BYTES:
        raise RefusedError(TOO_LARGE, f"a chunk is larger than {CHUNK_BYTES} bytes")
    if not stream.eof:
        raise RefusedError(BAD_REQUEST, "a chunk cannot be decompressed (it ends early)")
    return made


def _listed(data: bytes) -> dict[str, _File]:
    """Return the files of a request by their SHA-1."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RefusedError(BAD_REQUEST, "no JSON object of files by their SHA-1")
    if len(document) > _MAX_FILES:
        raise RefusedError(TOO_LARGE, f"more than {_MAX_FILES} files")
    files = {}
    for whole, entry in document.items():
        chunks = entry.get("chunks") if isinstance(entry, dict) else None
        is_valid = DIGEST.fullmatch(whole) and isinstance(chunks, list)
        if not is_valid or not all(_is_digest(chunk) for chunk in chunks or ()):
            raise RefusedError(BAD_REQUEST, "a file without SHA-1 and a list of chunks")
        files[whole] = _File(str(entry.get("name") or ""), tuple(chunks or ()))
    return files


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def _state(state: str, *, missing: Sequence[str] = (), detail: str | None = None) -> dict[str, Any]:
    return {"state": state, "missingChunks": list(missing), "detail": detail}


def _is_stored(answer: dict[str, Any], store: SymbolStore) -> bool:
    images = [parse_identifier(str(each)) for each in answer.get("images", ())]
    return all(image is not None and store.files_of(image) for image in images)


def _has_sources(path: Path) -> bool:
    """Return whether a file is a bundle of source code, which the client makes if requested."""
    with path.open("rb") as file:
        return file.read(len(_SOURCES)) == _SOURCES


def _described(stored: Stored, name: str, whole: str) -> dict[str, Any]:
    """Return an image in Sentry's words."""
    own = _debug_id(stored.identifier)
    kind = "macho" if isinstance(stored.identifier, UUID) else "elf"
    return {
        "id": own,
        "uuid": own,
        "debugId": own,
        "codeId": identifier_text(stored.identifier),
        "cpuName": stored.arch,
        "objectName": name,
        "symbolType": kind,
        "size": stored.size,
        "sha1": whole,
        "data": {"type": _KINDS[stored.kind], "features": []},
    }


def _debug_id(identifier: Identifier) -> str:
    """Return a Mach-O's UUID; of a build id the first bytes, as a little-endian GUID."""
    if isinstance(identifier, UUID):
        return str(identifier)
    return str(UUID(bytes_le=identifier.value[:_ID_BYTES].ljust(_ID_BYTES, b"\0")))
