"""JSON that lldb's stubs serve: threads, Darwin's images, its shared cache.

Source: lldb's ``docs/resources/lldbgdbremote.md``, "jThreadsInfo",
"jGetLoadedDynamicLibrariesInfos" and "jGetSharedCacheInfo"; debugserver's ``RNBRemote.cpp`` for
what it really sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, NamedTuple
from uuid import UUID

from machtrace.errors import RemoteProtocolError
from machtrace.formats.macho.header import arch_of
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.snapshot import SharedCache
from machtrace.targets.gdbremote.replies import MachException, shortened

_ADDRESSES = 1 << 64
_U32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StubThread:
    """A thread of ``jThreadsInfo``."""

    id: int
    name: str | None = None
    queue: str | None = None
    """Label of the dispatch queue that it is serving."""
    registers: Mapping[int, bytes] = field(default_factory=dict)
    """By the stub's own numbers, in the target's byte order; those that it sends unasked."""
    memory: tuple[MemoryRegion, ...] = ()
    """Frame records, which it sends unasked."""
    exception: MachException | None = None
    """The Mach exception that stopped it."""


class ReportedSegment(NamedTuple):
    """A segment as its load command states it."""

    name: str
    address: Svma
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StubImage:
    """An image of ``jGetLoadedDynamicLibrariesInfos``."""

    path: str
    load_address: Avma
    uuid: UUID | None
    arch: Arch | None
    """None without a header, or for an unknown CPU."""
    is_program: bool
    segments: tuple[ReportedSegment, ...]

    @property
    def text(self) -> ReportedSegment | None:
        """``__TEXT``."""
        return next((segment for segment in self.segments if segment.name == "__TEXT"), None)


def parse_json(reply: bytes, asked: str) -> Any:  # noqa: ANN401 - JSON
    """Parse a reply in JSON.

    Raises:
        RemoteProtocolError: it is no JSON.
    """
    try:
        return json.loads(reply.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(
            f"invalid JSON ({error})"
            if isinstance(error, ValueError)
            else "JSON nested too deeply",
            request=asked,
            reply=shortened(reply),
        ) from None


def parse_threads_info(reply: bytes) -> tuple[StubThread, ...]:
    """Parse the threads of ``jThreadsInfo``; invalid fields are left out.

    Raises:
        RemoteProtocolError: it is no list of threads.
    """
    asked = "jThreadsInfo"
    rows = parse_json(reply, asked)
    if not isinstance(rows, list):
        raise RemoteProtocolError(
            "expected a list of threads", request=asked, reply=shortened(reply)
        )
    threads: list[StubThread] = []
    for row in _objects(rows):
        number = _number(row.get("tid"))
        if not number:
            raise RemoteProtocolError(
                "a thread without an id", request=asked, reply=shortened(reply)
            )
        serves = row.get("associated_with_dispatch_queue", True)
        threads.append(
            StubThread(
                id=number,
                name=_text(row.get("name")) or None,
                queue=(_text(row.get("qname")) or None) if serves else None,
                registers=dict(_registers(row.get("registers"))),
                memory=tuple(_regions(row.get("memory"))),
                exception=_exception(row),
            )
        )
    return tuple(threads)


def parse_images_info(reply: bytes) -> tuple[StubImage, ...]:
    """Parse the images of ``jGetLoadedDynamicLibrariesInfos``, in its order.

    Raises:
        RemoteProtocolError: it has no list of images.
    """
    asked = "jGetLoadedDynamicLibrariesInfos"
    document = parse_json(reply, asked)
    rows = document.get("images") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise RemoteProtocolError(
            "expected a list of images", request=asked, reply=shortened(reply)
        )
    images: list[StubImage] = []
    for row in _objects(rows):
        address = _number(row.get("load_address"))
        if not address:
            continue
        header = row.get("mach_header")
        header = header if isinstance(header, dict) else {}
        cputype, subtype = _number(header.get("cputype")), _number(header.get("cpusubtype"))
        known = None if cputype is None else arch_of(cputype & _U32, (subtype or 0) & _U32)
        images.append(
            StubImage(
                path=_text(row.get("pathname")),
                load_address=Avma(address),
                uuid=_uuid(row.get("uuid")),
                arch=known,
                is_program=_number(header.get("filetype")) == 2,  # noqa: PLR2004 (MH_EXECUTE)
                segments=tuple(_segments(row.get("segments"))),
            )
        )
    return tuple(images)


def parse_shared_cache(reply: bytes) -> SharedCache | None:
    """Parse the shared cache of ``jGetSharedCacheInfo``; None if the process has none.

    Raises:
        RemoteProtocolError: it is no JSON.
    """
    document = parse_json(reply, "jGetSharedCacheInfo")
    if not isinstance(document, dict) or document.get("no_shared_cache") is True:
        return None
    base = _number(document.get("shared_cache_base_address"))
    return SharedCache(Avma(base), _uuid(document.get("shared_cache_uuid"))) if base else None


def _objects(rows: object) -> Iterator[dict[str, Any]]:
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            yield row


def _segments(rows: object) -> Iterator[ReportedSegment]:
    for row in _objects(rows):
        address, size = _number(row.get("vmaddr")), _number(row.get("vmsize"))
        if address is not None and size is not None:
            yield ReportedSegment(_text(row.get("name")), Svma(address), size)


def _registers(row: object) -> Iterator[tuple[int, bytes]]:
    for key, value in row.items() if isinstance(row, dict) else ():
        data = _bytes(value)
        if data and isinstance(key, str) and key.isascii() and key.isdigit():
            yield int(key[:9]), data


def _exception(row: dict[str, Any]) -> MachException | None:
    kind, codes = _number(row.get("metype")), row.get("medata")
    if kind is None:
        return None
    numbers = map(_number, codes if isinstance(codes, list) else ())
    return MachException(kind, tuple(number for number in numbers if number is not None))


def _regions(rows: object) -> Iterator[MemoryRegion]:
    for row in _objects(rows):
        address, data = _number(row.get("address")), _bytes(row.get("bytes"))
        if address and data and address + len(data) <= _ADDRESSES:
            yield MemoryRegion(Avma(address), data)


def _number(value: object) -> int | None:
    """Return an address; Darwin's stubs send negative ones as the unsigned number."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _ADDRESSES else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _bytes(value: object) -> bytes:
    try:
        return bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        return b""


def _uuid(value: object) -> UUID | None:
    try:
        found = UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found is not None and found.int else None
