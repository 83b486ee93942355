"""Messages of Protocol Buffers, taken apart: Google, *Encoding*."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from machtrace.errors import FormatError
from machtrace.model.json_value import JsonValue

_VARINT_BYTES = 10
_WORD = (1 << 64) - 1
_VARINT, _DELIMITED = 0, 2
_FIXED = {1: 8, 5: 4}
"""Bytes of values, by the type of wire."""


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """The number, and where it ends; ValueError where it does not."""
    value = 0
    for count in range(_VARINT_BYTES):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:  # noqa: PLR2004 - the last one's high bit is clear
            return value & _WORD, at
    raise ValueError


def _fields(data: memoryview, source: str, start: int) -> Iterator[tuple[int, int | memoryview]]:
    at, end = 0, len(data)
    while at < end:
        begin = at
        try:
            key, at = _varint(data, at, end)
            size, at = _extent(key & 7, data, at, end)
        except ValueError:
            raise FormatError("no field", source=source, offset=start + begin) from None
        piece = data[at : at + size]
        if key & 7 == _VARINT:
            yield key >> 3, _varint(data, at, end)[0]
        elif key & 7 == _DELIMITED:
            yield key >> 3, piece
        else:
            yield key >> 3, int.from_bytes(piece, "little")
        at += size


def _extent(wire_type: int, data: memoryview, at: int, end: int) -> tuple[int, int]:
    """How many bytes a value has, and where they begin; ValueError where it is none."""
    if wire_type == _VARINT:
        size = _varint(data, at, end)[1] - at
    elif wire_type == _DELIMITED:
        size, at = _varint(data, at, end)
    else:
        size = _FIXED.get(wire_type, end)
    if size > end - at:
        raise ValueError
    return size, at


class Message:
    """A message whose fields are taken by their numbers; what is left can be kept."""

    def __init__(self, data: memoryview, source: str, offset: int = 0) -> None:
        """Read the fields, not what is in them.

        Raises:
            FormatError: a field is cut off, or none.
        """
        self._source = source
        self._fields: dict[int, list[int | memoryview]] = defaultdict(list)
        self._after = b""
        """What is no field, and all that follows it."""
        try:
            for number, value in _fields(data, source, offset):
                self._fields[number].append(value)
        except FormatError as error:
            self.error: FormatError | None = error
            self._after = bytes(data[error.offset - offset :])
        else:
            self.error = None

    def _take(self, number: int, kind: type) -> int | memoryview | None:
        values = self._fields.get(number)
        if not values or not isinstance(values[-1], kind):
            return None
        value = values.pop()
        if not values:
            del self._fields[number]
        return value

    def integer(self, number: int) -> int | None:
        """A number; the last one, where there are several."""
        value = self._take(number, int)
        return value if isinstance(value, int) else None

    def signed(self, number: int) -> int | None:
        """A number of a signed type."""
        value = self.integer(number)
        return value if value is None or value >> 63 == 0 else value - (1 << 64)

    def boolean(self, number: int) -> bool | None:
        """A truth value."""
        value = self.integer(number)
        return None if value is None else bool(value)

    def data(self, number: int) -> bytes | None:
        """Bytes."""
        value = self._take(number, memoryview)
        return bytes(value) if isinstance(value, memoryview) else None

    def text(self, number: int) -> str | None:
        """A string; a byte that is no UTF-8 is a lone surrogate."""
        value = self.data(number)
        return None if value is None else value.decode("utf-8", "surrogateescape")

    def messages(self, number: int) -> Iterator[Message]:
        """All messages of a field."""
        values = self._fields.pop(number, [])
        for value in values:
            if isinstance(value, memoryview):
                yield Message(value, self._source)
            else:
                self._fields[number].append(value)

    def message(self, number: int) -> Message:
        """A message; an empty one where there is none."""
        value = self._take(number, memoryview)
        return Message(value if isinstance(value, memoryview) else memoryview(b""), self._source)

    def rest(self) -> dict[str, JsonValue]:
        """What was not taken: by ``field`` and number; bytes in hexadecimal digits."""
        rest: dict[str, JsonValue] = {
            f"field {number}": [
                value if isinstance(value, int) else value.hex() for value in values
            ]
            for number, values in self._fields.items()
            if values
        }
        if self._after:
            rest["no field"] = self._after.hex()
        return rest

    def integers(self, number: int) -> tuple[int, ...]:
        """All numbers of a field, whether each is a field of its own or all are packed in one."""
        found: list[int] = []
        left: list[int | memoryview] = []
        for value in self._fields.pop(number, []):
            packed = [value] if isinstance(value, int) else _packed(value)
            if packed is None:
                left.append(value)
            else:
                found += packed
        if left:
            self._fields[number] = left
        return tuple(found)


def _packed(data: memoryview) -> list[int] | None:
    found: list[int] = []
    at, end = 0, len(data)
    try:
        while at < end:
            value, at = _varint(data, at, end)
            found.append(value)
    except ValueError:
        return None
    return found
