"""Forms with a file and the key of a project, as ``bugsnag-cli upload dsym`` sends them.

Source: bugsnag-cli's ``pkg/server/request.go``, ``pkg/ios/process-dsym.go``. The key is behind the
file, so that the whole body is received before it is known whether it may be: one at a time.
Clients whose address is ``/TOKEN`` are known before.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from machtrace.server.limits import BAD_REQUEST, UNAVAILABLE, RefusedError
from machtrace.server.service import Service
from machtrace.server.tokens import Scope
from machtrace.server.uploads.forms import read_form_files
from machtrace.server.uploads.symbols import add_symbols, upload_folder, write_body

SCOPES = frozenset({Scope.SYMBOLS})
_FILE, _KEY = "dsym", "apiKey"


async def receive_form(service: Service, request: Request) -> Response:
    """Store the dSYM of a form whose address has the token."""
    return await _receive(service, request, request.state.token, service.limits.symbols_time)


async def receive_form_with_key(service: Service, request: Request) -> Response:
    """Store the dSYM of a form with a key that is the token."""
    if request.headers.get("authorization") or service.tokens.is_open:
        token = service.authorise(request, SCOPES)
        return await _receive(service, request, token, service.limits.symbols_time)
    if service.forms.locked():
        raise RefusedError(UNAVAILABLE, "too many files at a time", retry_after=5)
    async with service.forms:
        return await _receive(service, request, None, service.limits.body_time)


async def _receive(
    service: Service, request: Request, token: str | None, seconds: float
) -> Response:
    async with upload_folder(service) as folder:
        body = folder / "form"
        await write_body(request, body, service.limits, seconds)
        content_type = request.headers.get("content-type", "")
        key, names = await asyncio.to_thread(read_form_files, body, content_type, _FILE, _KEY)
        if token is None:
            token = key
            service.authorise_token(key, SCOPES)
        if not names:
            raise RefusedError(BAD_REQUEST, f"a form without a file {_FILE!r}")
        rows: list[dict[str, str]] = []
        for path in names:
            _, skipped = await add_symbols(service, path, token)
            rows += skipped
    return JSONResponse({"status": "ok", "skipped": rows})
