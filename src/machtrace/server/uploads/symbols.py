"""Files of symbols: received into a folder of their own, and added to the store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from machtrace.errors import FileAccessError
from machtrace.images.store_layout import identifier_text
from machtrace.server.bodies import file_name, pieces, write_parts
from machtrace.server.limits import DISK_FULL, UNSUPPORTED, Limits, RefusedError
from machtrace.server.service import Service
from machtrace.server.tokens import token_name
from machtrace.symbolstore.adding import InputFile, Stored, SymbolAdder
from machtrace.symbolstore.archive import UnpackLimits
from machtrace.symbolstore.store import SymbolStore

UPLOADS = ".upload-"
"""How the folders of files begin that are being sent."""
_PIECE = 1 << 20
_MAX_MEMBERS = 100_000


async def receive_symbols(service: Service, request: Request) -> Response:
    """Store the images and debug files of a file or an archive, and name what waits for them."""
    name = file_name(request.query_params.get("name", "")) or "symbols"
    async with upload_folder(service) as folder:
        path = folder / name
        await write_body(request, path, service.limits, service.limits.symbols_time)
        stored, skipped = await add_symbols(service, path, request.state.token)
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


@asynccontextmanager
async def upload_folder(service: Service) -> AsyncIterator[Path]:
    """Return a folder for a file that is being sent; it is removed at the end.

    Raises:
        RefusedError: the disk is full.
    """
    try:
        folder = Path(await asyncio.to_thread(mkdtemp, prefix=UPLOADS, dir=service.store.root))
        try:
            yield folder
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    except FileAccessError as error:
        raise RefusedError(DISK_FULL, f"the symbols cannot be stored: {error.reason}") from None
    except OSError as error:
        raise RefusedError(DISK_FULL, f"the symbols cannot be stored: {error.strerror}") from None


async def write_body(request: Request, path: Path, limits: Limits, seconds: float) -> None:
    """Write the body of a request to a new file.

    Raises:
        RefusedError: it exceeds a limit, takes longer than ``seconds``, or is compressed.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RefusedError(UNSUPPORTED, "symbols are sent without Content-Encoding")
    waiting: list[bytes] = []
    size = 0
    with path.open("xb") as file:
        async for piece in pieces(request, limits.symbols_bytes, seconds):
            waiting.append(piece)
            size += len(piece)
            if size >= _PIECE:
                await asyncio.to_thread(write_parts, file, waiting, limits)
                waiting, size = [], 0
        await asyncio.to_thread(write_parts, file, waiting, limits)


async def add_symbols(
    service: Service, path: Path, token: str
) -> tuple[list[Stored], list[dict[str, str]]]:
    """Store the images and debug files in a file, and name what waits for them.

    Args:
        service: the server.
        path: the file.
        token: the client's, for the log.

    Returns:
        What is stored, and what was skipped, with the reasons.

    Raises:
        FileAccessError: the store cannot be written.
    """
    stored, skipped = await asyncio.to_thread(_add, path, service.store, service.limits)
    new = {identifier_text(each.identifier) for each in stored}
    if new:
        service.forget_names()
        service.writer.name(new)
    service.log.add("symbols", name=path.name, images=sorted(new), token=token_name(token))
    return stored, skipped


def remove_uploads(service: Service) -> None:
    """Remove what was being sent when a server was killed."""
    for folder in service.store.root.glob(f"{UPLOADS}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _add(
    path: Path, store: SymbolStore, limits: Limits
) -> tuple[list[Stored], list[dict[str, str]]]:
    unpack = UnpackLimits(
        member_bytes=limits.symbols_bytes,
        total_bytes=limits.unpacked_symbols_bytes,
        members=_MAX_MEMBERS,
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
