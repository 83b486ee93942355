"""The addresses of uploads of symbols."""

from __future__ import annotations

from machtrace.server.endpoint import Endpoint
from machtrace.server.tokens import Scope
from machtrace.server.uploads.bugsnag import receive_form, receive_form_with_key
from machtrace.server.uploads.sentry_cli import (
    assemble_files,
    chunk_options,
    describe_token,
    receive_chunks,
)
from machtrace.server.uploads.symbols import receive_symbols

_SYMBOLS = frozenset({Scope.SYMBOLS})
_CHUNKS = "/api/0/organizations/{organization}/chunk-upload/"
_FORM = ("multipart/form-data",)

UPLOADS: tuple[Endpoint, ...] = (
    Endpoint(
        method="PUT",
        path="/v1/symbols",
        summary="Store the images and debug files of a file or an archive.",
        handler=receive_symbols,
        scopes=_SYMBOLS,
        parameters={"name": "The name of the file."},
        body=("application/octet-stream",),
        is_loaded=True,
    ),
    Endpoint(
        method="GET",
        path="/api/0/",
        summary="What the token permits, in Sentry's words.",
        handler=describe_token,
        scopes=_SYMBOLS,
    ),
    Endpoint(
        method="GET",
        path=_CHUNKS,
        summary="How sentry-cli is to send chunks of files of symbols.",
        handler=chunk_options,
        scopes=_SYMBOLS,
    ),
    Endpoint(
        method="POST",
        path=_CHUNKS,
        summary="Store chunks, each of them named by its SHA-1.",
        handler=receive_chunks,
        scopes=_SYMBOLS,
        body=_FORM,
        is_loaded=True,
    ),
    Endpoint(
        method="POST",
        path="/api/0/projects/{organization}/{project}/files/difs/assemble/",
        summary="Assemble files from chunks, or state which chunks are missing.",
        handler=assemble_files,
        scopes=_SYMBOLS,
        body=("application/json",),
        is_loaded=True,
    ),
    Endpoint(
        method="POST",
        path="/dsym",
        summary="Store the dSYM of a form whose apiKey is the token, as bugsnag-cli does.",
        handler=receive_form_with_key,
        scopes=None,
        body=_FORM,
        is_loaded=True,
    ),
    Endpoint(
        method="POST",
        path="/{token}/dsym",
        summary="The same with the token in the address.",
        handler=receive_form,
        scopes=_SYMBOLS,
        body=_FORM,
        is_loaded=True,
    ),
)
