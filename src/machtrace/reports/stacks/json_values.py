"""Values of machtrace's own JSON, checked as they are read.

A value that violates the schema raises :class:`SchemaError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from machtrace.errors import MachtraceError
from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.report import JsonValue
from machtrace.model.snapshot import Problem, ProcessInfo, ThreadId
from machtrace.model.stack import AddressKind, Dispute, FrameAddress, FrameTrust
from machtrace.model.symbol import (
    Certainty,
    Frame,
    FrameStatus,
    InlineFrame,
    PythonFrame,
    SourceLocation,
    Symbol,
)
from machtrace.reports.images import build_id, uuid_of
from machtrace.reports.machtrace_json import shown

WORD = 1 << 64
JsonObject = Mapping[str, JsonValue]
_E = TypeVar("_E", bound=Enum)


class SchemaError(ValueError):
    """A value violates the schema."""


def json_object(value: JsonValue) -> JsonObject:
    """Return an object."""
    if not isinstance(value, dict):
        raise SchemaError(f"{shown(value)} is not an object")
    return value


def json_objects(value: JsonValue) -> list[JsonObject]:
    """Return a list's objects."""
    return [json_object(item) for item in json_list(value)]


def json_list(value: JsonValue) -> list[JsonValue]:
    """Return a list."""
    if not isinstance(value, list):
        raise SchemaError(f"{shown(value)} is not a list")
    return value


def json_text(value: JsonValue) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise SchemaError(f"{shown(value)} is not a string")
    return value


def text_or_none(value: JsonValue) -> str | None:
    """Return a string or None."""
    return None if value is None else json_text(value)


def json_number(value: JsonValue, *, least: int = 0) -> int:
    """Return a whole number."""
    if type(value) is not int or not least <= value < WORD:
        raise SchemaError(f"{shown(value)} is not a whole number from {least} to 2**64 - 1")
    return value


def number_or_none(value: JsonValue) -> int | None:
    """Return a whole number, of any sign, or None."""
    return None if value is None else json_number(value, least=-WORD)


def address_or_none(value: JsonValue) -> Avma | None:
    """Return an address or None."""
    return None if value is None else Avma(json_number(value))


def enum_member(kind: type[_E], value: JsonValue) -> _E:
    """Return the member with a value."""
    try:
        return kind(value)
    except ValueError:
        raise SchemaError(f"{shown(value)} is not a {kind.__name__}") from None


def json_column(table: JsonObject, name: str, *, least: int, below: int) -> list[int]:
    """Return a column of whole numbers in a range."""
    values = json_list(table.get(name))
    for value in values:
        if type(value) is not int or not least <= value < below:
            raise SchemaError(f"{shown(value)} in {name} is out of range")
    return values  # type: ignore[return-value]  # all are integers


class JsonImages:
    """The images of a document."""

    def __init__(self, document: JsonObject, arch: Arch) -> None:
        self._arch = arch
        self.listed = [self._image(entry) for entry in json_objects(document.get("images"))]
        self._known = {(one.load_address, one.identifier): one for one in reversed(self.listed)}
        self._unlisted: dict[tuple[Avma, str | None, str], BinaryImage] = {}

    def _image(self, entry: JsonObject) -> BinaryImage:
        arch = enum_member(Arch, entry.get("arch"))
        path, size = json_text(entry.get("path")), json_number(entry.get("size"))
        address = Avma(json_number(entry.get("load_address")))
        return _binary_image(path, text_or_none(entry.get("uuid")), arch, address, size)

    def of_frame(self, entry: JsonObject, address: int) -> BinaryImage | None:
        """Return the image of a frame's entry; an unlisted one is built."""
        name, identifier = text_or_none(entry.get("image")), text_or_none(entry.get("uuid"))
        if name is None:
            return None
        offset = number_or_none(entry.get("offset"))
        start = Avma(0 if offset is None else max(0, address - offset))
        if offset is not None and (start, identifier) in self._known:
            return self._known[start, identifier]
        key = start, identifier, name
        if key not in self._unlisted:
            self._unlisted[key] = _binary_image(name, identifier, self._arch, start, 0)
        return self._unlisted[key]


def _binary_image(
    path: str, identifier: str | None, arch: Arch, address: Avma, size: int
) -> BinaryImage:
    text = identifier or ""
    uuid = (uuid_of(text) if "-" in text else None) or build_id(text)
    return BinaryImage(
        path=path,
        uuid=uuid,
        arch=arch,
        format=ImageFormat.identified_by(uuid),
        load_address=address,
        header_svma=Svma(0),
        size=size,
    )


def read_process(document: JsonObject) -> ProcessInfo:
    """Return the process."""
    entry = json_object(document.get("process"))
    return ProcessInfo(
        pid=number_or_none(entry.get("pid")),
        path=json_text(entry.get("path")) or json_text(entry.get("name")),
        arch=enum_member(Arch, entry.get("arch")),
    )


def read_problems(document: JsonObject) -> tuple[Problem, ...]:
    """Return the problems."""
    return tuple(
        Problem(
            thread=None if entry.get("thread") is None else ThreadId(json_number(entry["thread"])),
            error=MachtraceError(json_text(entry.get("error"))),
        )
        for entry in json_objects(document.get("problems"))
    )


def read_frame(entry: JsonObject, images: JsonImages) -> Frame:
    """Return a frame."""
    address = Avma(json_number(entry.get("address")))
    image = images.of_frame(entry, address)
    return Frame(
        address=FrameAddress(
            address,
            enum_member(FrameTrust, entry.get("trust")),
            enum_member(AddressKind, entry.get("kind")),
            tuple(
                Dispute(
                    enum_member(FrameTrust, item.get("trust")),
                    address_or_none(item.get("address")),
                )
                for item in json_objects(entry.get("disputed_by"))
            ),
        ),
        status=enum_member(FrameStatus, entry.get("status")),
        image=image,
        is_placed=image is None or entry.get("offset") is not None,
        symbol=_symbol(entry, address if image is None else image.offset_of(address)),
        has_symbol_offset=entry.get("symbol") is None or entry.get("symbol_offset") is not None,
        location=_location(entry),
        inlined=tuple(
            InlineFrame(json_text(call.get("symbol")), _location(call))
            for call in json_objects(entry.get("inlined"))
        ),
        python=tuple(
            PythonFrame(
                name=json_text(call.get("function")),
                location=_location(call) or SourceLocation(""),
            )
            for call in json_objects(entry.get("python"))
        ),
    )


def _symbol(entry: JsonObject, offset: int) -> Symbol | None:
    name = text_or_none(entry.get("symbol"))
    if name is None:
        return None
    return Symbol(
        name=name,
        linkage_name="",
        offset=ImageOffset(offset - (number_or_none(entry.get("symbol_offset")) or 0)),
        size=None,
        certainty=enum_member(Certainty, entry.get("certainty")),
    )


def _location(entry: JsonObject) -> SourceLocation | None:
    path = text_or_none(entry.get("file"))
    if path is None:
        return None
    numbers = (number_or_none(entry.get(key)) for key in ("line", "column"))
    return SourceLocation(path, *numbers)
