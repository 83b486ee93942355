"""The page of symbols: which are missing, which arrived, and how much they name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from machtrace.model.text import counted
from machtrace.reports.html.markup import element, folded, text
from machtrace.server.browser import is_of_own_page
from machtrace.server.limits import BAD_REQUEST, FORBIDDEN, RefusedError
from machtrace.server.pages.coverage import Coverage, coverage
from machtrace.server.pages.filters import builds
from machtrace.server.pages.frame import page
from machtrace.server.pages.parts import Column, moment, shown, table
from machtrace.server.pages.signing_in import may
from machtrace.server.service import Service
from machtrace.server.tokens import Scope
from machtrace.server.uploads.forms import read_form_files
from machtrace.server.uploads.symbols import add_symbols, upload_folder, write_body
from machtrace.warehouse.names import WantedImage
from machtrace.warehouse.warehouse import Warehouse

SYMBOLS = "/symbols"
_WANTED, _ARRIVALS, _IMAGES = 200, 30, 4
_FIELD = "file"
_UUID_DIGITS = 32
_WANTED_COLUMNS = (
    Column("Image"),
    Column("UUID or build id"),
    Column("Arch"),
    Column("Frames", is_number=True),
)
_COVERAGE_COLUMNS = (
    Column("Build"),
    Column("App"),
    Column("Frames", is_number=True),
    Column("Named", is_number=True),
    Column("The app’s frames", is_number=True),
    Column("Named", is_number=True),
    Column("With file and line", is_number=True),
)
_ARRIVAL_COLUMNS = (Column("Time"), Column("File"), Column("Images"))


async def symbols_page(service: Service, request: Request) -> Response:
    """Return which symbols are missing, and which are there."""
    return await _page(service, request)


async def receive_symbol_form(service: Service, request: Request) -> Response:
    """Store the files of the page's form, and return the page with what became of them."""
    if is_of_own_page(request) is False:
        raise RefusedError(FORBIDDEN, "a page of another site cannot use this server")
    images, skipped = 0, []
    async with upload_folder(service) as folder:
        body = folder / "form"
        await write_body(request, body, service.limits, service.limits.symbols_time)
        kind = request.headers.get("content-type", "")
        _, files = await asyncio.to_thread(read_form_files, body, kind, _FIELD)
        if not files:
            raise RefusedError(BAD_REQUEST, "a form without a file")
        for path in files:
            stored, left_out = await add_symbols(service, path, request.state.token)
            images += len(stored)
            skipped += left_out
    return await _page(service, request, _outcome(images, skipped))


async def _page(service: Service, request: Request, outcome: str = "") -> Response:
    content = await service.reading(request, _made)
    may_send = may(service, request, Scope.SYMBOLS)
    body = outcome + _upload(may_send=may_send) + content + _arrivals(service)
    return page(service, request, "Symbols", body, section=SYMBOLS)


def _outcome(images: int, skipped: Sequence[dict[str, str]]) -> str:
    words = f"{counted(images, 'image')} stored."
    if images:
        words += " Stored frames get their names in the background."
    items = "".join(
        element("li", f"{shown(each['name'], 100)}: {text(each['reason'])} {shown(each['detail'])}")
        for each in skipped[:_WANTED]
    )
    left_out = folded(f"{len(skipped):,} left out", element("ul", items), is_open=not images)
    return element("div", element("p", words) + (left_out if skipped else ""), role="status")


def _made(warehouse: Warehouse) -> str:
    """Return what is missing, and the shares."""
    return _wanted(warehouse.wanted()) + _shares(coverage(warehouse, builds(warehouse)))


def _upload(*, may_send: bool) -> str:
    if not may_send:
        return element("p", "A token of scope symbols or admin sends symbols.", class_="note")
    return (
        f'<form class="filters" method="post" action="{SYMBOLS}" enctype="multipart/form-data">'
        '<label class="wide-field">dSYM as a zip archive, .ipa, image or DWARF file'
        f'<input type="file" name="{_FIELD}" multiple required></label>'
        '<button class="main">Send</button></form>'
    )


def _wanted(wanted: Sequence[WantedImage]) -> str:
    head = element("h2", "Wanted")
    if not wanted:
        return head + element("p", "All stored frames have names from symbols.", class_="empty")
    rows = [
        [
            shown(each.name or "???", 100),
            f"<code>{text(_identifier(each.uuid))}</code>",
            shown(each.arch, 20),
            f"{each.frames:,}",
        ]
        for each in wanted[:_WANTED]
    ]
    note = f"{counted(len(wanted), 'image')} whose symbols would name more frames."
    if len(wanted) > _WANTED:
        note += f" The first {_WANTED}."
    return head + element("p", note, class_="note") + table(_WANTED_COLUMNS, rows, "Wanted")


def _shares(shares: Sequence[Coverage]) -> str:
    if not shares:
        return ""
    rows = [
        [
            shown(share.build or "unknown", 40),
            shown(share.app or "unknown", 80),
            f"{share.frames:,}",
            _share(share.named, share.frames),
            f"{share.app_frames:,}",
            _share(share.app_named, share.app_frames),
            _share(share.located, share.frames),
        ]
        for share in shares
    ]
    note = "Frames of stacks, each as often as stacks have it; the newest builds."
    head = element("h2", "Named frames by build") + element("p", note, class_="note")
    return head + table(_COVERAGE_COLUMNS, rows, "Named frames by build")


def _arrivals(service: Service) -> str:
    rows: list[list[str]] = []
    for line in reversed(service.log.read().splitlines()):
        row = _arrival(line)
        if row is None or len(rows) == _ARRIVALS:
            continue
        images = [
            f"<code>{text(_identifier(str(image)))}</code>" for image in row["images"][:_IMAGES]
        ]
        left = len(row["images"]) - _IMAGES
        if left > 0:
            images.append(f"{left:,} more")
        when = moment(int(datetime.fromisoformat(row["time"]).timestamp()) * 1_000_000_000)
        rows.append([when, shown(row["name"], 100), "<br>".join(images) or "none of them"])
    head = element("h2", "Arrivals")
    if not rows:
        return head + element("p", "No symbols were sent yet.", class_="empty")
    return head + table(_ARRIVAL_COLUMNS, rows, "Arrivals")


def _arrival(line: bytes) -> dict[str, Any] | None:
    row = json.loads(line)
    return row if row.get("action") == "symbols" else None


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _identifier(digits: str) -> str:
    """Return a UUID as it is written everywhere; a build id is its digits."""
    try:
        return str(UUID(digits)).upper() if len(digits) == _UUID_DIGITS else digits
    except ValueError:
        return digits
