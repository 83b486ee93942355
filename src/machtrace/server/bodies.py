"""Bodies of requests: received, decompressed and divided into parts, within limits."""

from __future__ import annotations

import asyncio
import os
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from mmap import mmap
from typing import BinaryIO, NamedTuple

from starlette.requests import ClientDisconnect, Request

from machtrace.server.limits import (
    BAD_REQUEST,
    DISK_FULL,
    TIMEOUT,
    TOO_LARGE,
    UNSUPPORTED,
    Limits,
    RefusedError,
    Reservation,
)

_PIECE = 1 << 20
_ALWAYS = 1 << 20
"""Bytes that any body may expand to."""
ENCODINGS = ("identity", "gzip", "deflate", "zstd")
_UNUSUAL = re.compile(r"[^\w.+ -]")
_MAX_NAME_LENGTH = 200
_MAX_HEAD_LENGTH = 1 << 12
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'[;\s](filename|name)="([^"\r\n]{0,1024})"', re.IGNORECASE)


class Part(NamedTuple):
    """A part of a multipart body."""

    name: str
    file: str
    """The name of its file; may be empty."""
    data: bytes


class PartExtent(NamedTuple):
    """Where a part of a multipart body is."""

    name: str
    file: str
    begin: int
    end: int


async def pieces(request: Request, most: int, seconds: float) -> AsyncIterator[bytes]:
    """Yield the body as it arrives.

    Raises:
        RefusedError: it is larger than ``most`` bytes, takes longer than ``seconds``, or is cut.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise RefusedError(TOO_LARGE, f"the body is larger than {most} bytes")
    size = 0
    stream = request.stream()
    async with _deadline(seconds):
        try:
            async for piece in stream:
                size += len(piece)
                if size > most:
                    raise RefusedError(TOO_LARGE, f"the body is larger than {most} bytes")
                yield piece
        except ClientDisconnect:
            raise RefusedError(BAD_REQUEST, "the body ends early") from None


@asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise RefusedError(TIMEOUT, f"the body takes longer than {seconds:g} seconds") from None


async def read_body(request: Request, most: int, limits: Limits, room: Reservation) -> bytes:
    """Return the body, decompressed.

    Args:
        request: the request.
        most: bytes of the body, as it is sent.
        limits: those of the server.
        room: the memory for it.

    Raises:
        RefusedError: it exceeds a limit, or its encoding is unknown or damaged.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ENCODINGS:
        accepted = ", ".join(ENCODINGS)
        raise RefusedError(UNSUPPORTED, f"unknown Content-Encoding {encoding!r}; use {accepted}")
    parts = []
    async for piece in pieces(request, most, limits.body_time):
        room.grow(len(piece))
        parts.append(piece)
    data = b"".join(parts)
    if encoding == "identity":
        return data
    return await asyncio.to_thread(decoded, data, encoding, limits, room)


def decoded(data: bytes, encoding: str, limits: Limits, room: Reservation) -> bytes:
    """Return decompressed bytes.

    Args:
        data: as they were sent.
        encoding: one of :data:`ENCODINGS`.
        limits: of the size and the ratio.
        room: the memory for it.

    Raises:
        RefusedError: a limit is exceeded, or the data is damaged.
    """
    most = min(limits.unpacked_bytes, max(_ALWAYS, limits.ratio * len(data)))
    size, parts = 0, []
    try:
        for piece in _unzstd(data) if encoding == "zstd" else _inflated(data, encoding):
            size += len(piece)
            if size > most:
                raise RefusedError(TOO_LARGE, f"the body is larger than {most} bytes, decompressed")
            room.grow(len(piece))
            parts.append(piece)
    except (zlib.error, OSError, EOFError) as error:
        raise RefusedError(BAD_REQUEST, f"the body cannot be decompressed ({error})") from None
    return b"".join(parts)


def _inflated(data: bytes, encoding: str) -> Iterator[bytes]:
    # "deflate" is zlib's format by the standard, and raw for many clients.
    is_raw = encoding == "deflate" and (not data or data[0] & 15 != 8)  # noqa: PLR2004 - zlib's method
    window = 31 if encoding == "gzip" else -15 if is_raw else 15
    left = data
    while left:
        stream = zlib.decompressobj(window)
        while not stream.eof:
            piece = stream.decompress(left, _PIECE)
            left = stream.unconsumed_tail
            if piece:
                yield piece
            elif not left and not stream.eof:
                raise EOFError("it ends early")
        left = stream.unused_data


def _unzstd(data: bytes) -> Iterator[bytes]:
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while piece := stream.read(_PIECE):
            yield piece


def multipart(data: bytes, content_type: str, most: int) -> list[Part]:
    """Return the parts of a ``multipart/form-data`` body.

    Raises:
        RefusedError: it is malformed, or has more than ``most`` parts.
    """
    extents = part_extents(data, content_type, most)
    return [Part(extent.name, extent.file, data[extent.begin : extent.end]) for extent in extents]


def part_extents(data: bytes | mmap, content_type: str, most: int) -> list[PartExtent]:
    """Return where the parts of a ``multipart/form-data`` body are, which may be in a file.

    Raises:
        RefusedError: it is malformed, or has more than ``most`` parts.
    """
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise RefusedError(BAD_REQUEST, "multipart/form-data without a boundary")
    mark = b"--" + (match[1] or match[2]).encode("latin-1", "replace")
    at = len(mark)
    if data[:at] != mark:
        first = data.find(b"\r\n" + mark)
        if first < 0:
            raise RefusedError(BAD_REQUEST, "a multipart body without parts")
        at = first + 2 + len(mark)
    parts: list[PartExtent] = []
    while data[at : at + 2] == b"\r\n":
        head_end = data.find(b"\r\n\r\n", at)
        end = data.find(b"\r\n" + mark, head_end + 2)
        if head_end < 0 or end < 0:
            raise RefusedError(BAD_REQUEST, "a part of a multipart body without an end")
        if len(parts) == most:
            raise RefusedError(TOO_LARGE, f"more than {most} parts")
        head = data[at : min(head_end, at + _MAX_HEAD_LENGTH)]
        names = {key.lower(): value for key, value in _NAME.findall(head)}
        texts = {key: value.decode("utf-8", "replace") for key, value in names.items()}
        name, file = texts.get(b"name", ""), texts.get(b"filename", "")
        parts.append(PartExtent(name, file, head_end + 4, max(end, head_end + 4)))
        at = end + 2 + len(mark)
    if data[at : at + 2] != b"--":
        raise RefusedError(BAD_REQUEST, "a multipart body without an end")
    return parts


def file_name(text: str) -> str:
    """Return the last part of a name that a client chose; it is a label."""
    last = text.replace("\\", "/").rpartition("/")[2]
    return _UNUSUAL.sub("_", last).strip(". ")[:_MAX_NAME_LENGTH]


def write_parts(file: BinaryIO, parts: list[bytes], limits: Limits) -> None:
    """Write to a file, and leave space on the disk.

    Raises:
        RefusedError: the disk is full.
    """
    status = os.fstatvfs(file.fileno())
    if status.f_bavail * status.f_frsize < limits.free_bytes + sum(map(len, parts)):
        raise RefusedError(DISK_FULL, "the disk of the server is full")
    file.write(b"".join(parts))
    file.flush()
