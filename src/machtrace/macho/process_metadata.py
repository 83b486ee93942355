"""The "process metadata" note of a core: JSON about the process and its threads.

lldb gives ``{"threads": [{"thread_id": …}]}``, one entry for each thread command, and reads no
other key of ours (``ObjectFileMachO.cpp``: ``GetCorefileThreadExtraInfos``). Cores that
:mod:`machtrace.macho.core_writer` makes also carry::

    {"process": {"pid": …, "path": …},
     "threads": [{"thread_id": …, "name": …, "queue": …, "main": …, "crashed": …}],
     "images": [{"load_address": …, "header_svma": …, "size": …}]}

``images`` names only those whose headers the core does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from machtrace.errors import CoreFileError
from machtrace.macho.core_notes import Note, note_payload
from machtrace.model.address import Avma, Svma
from machtrace.model.thread import ThreadId

_LIMIT = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedThread:
    """What the note says of one thread; None is what it does not say."""

    id: ThreadId | None = None
    name: str | None = None
    queue: str | None = None
    is_main: bool | None = None
    crashed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedExtent:
    """Where an image's ``__TEXT`` is, of an image whose header was not captured."""

    load_address: Avma
    header_svma: Svma
    size: int
    """In bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMetadata:
    """What the note says."""

    threads: tuple[NotedThread, ...] = ()
    """One for each thread command, in their order."""
    pid: int | None = None
    path: str = ""
    """Of the program's file; empty where it is not said."""
    extents: tuple[NotedExtent, ...] = ()


def parse_process_metadata(file: memoryview, note: Note, source: str) -> ProcessMetadata:
    """What the note says, of ``file``, the whole core. Unknown keys are passed over.

    Raises:
        CoreFileError: it is cut short, or no JSON object.
    """
    data = bytes(note_payload(file, note, source)).rstrip(b"\0")
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CoreFileError(
            f"note {note.owner!r} is no JSON object", source=source, offset=note.offset
        )
    process = value.get("process")
    if not isinstance(process, dict):
        process = {}
    return ProcessMetadata(
        threads=tuple(_thread(item) for item in _list(value.get("threads"))),
        pid=_integer(process.get("pid")),
        path=_string(process.get("path")) or "",
        extents=tuple(_extents(_list(value.get("images")))),
    )


def format_process_metadata(metadata: ProcessMetadata) -> bytes:
    """The note's bytes."""
    process = {"pid": metadata.pid, "path": metadata.path or None}
    value = {
        "process": _without_none(process),
        "threads": [
            _without_none(
                {
                    "thread_id": thread.id,
                    "name": thread.name,
                    "queue": thread.queue,
                    "main": thread.is_main,
                    "crashed": thread.crashed,
                }
            )
            for thread in metadata.threads
        ],
        "images": [
            {
                "load_address": extent.load_address,
                "header_svma": extent.header_svma,
                "size": extent.size,
            }
            for extent in metadata.extents
        ],
    }
    return json.dumps({key: part for key, part in value.items() if part}).encode()


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _thread(value: object) -> NotedThread:
    if not isinstance(value, dict):
        return NotedThread()
    number = _integer(value.get("thread_id"))
    return NotedThread(
        id=ThreadId(number) if number else None,  # lldb, too, takes 0 for none
        name=_string(value.get("name")),
        queue=_string(value.get("queue")),
        is_main=_boolean(value.get("main")),
        crashed=_boolean(value.get("crashed")),
    )


def _extents(values: list[object]) -> Iterator[NotedExtent]:
    for value in values:
        if isinstance(value, dict):
            address, svma, size = (
                _integer(value.get(key)) for key in ("load_address", "header_svma", "size")
            )
            if address is not None and svma is not None and size is not None:
                yield NotedExtent(load_address=Avma(address), header_svma=Svma(svma), size=size)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _boolean(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _LIMIT else None


def _string(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    # JSON can spell half of a surrogate pair, which no encoder takes.
    return value.encode("utf-8", "replace").decode()
