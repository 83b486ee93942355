"""Decoding protobuf messages: Google, *Encoding*."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from machtrace.errors import FormatError
from machtrace.model.report import JsonValue

_VARINT_BYTES = 10
_WORD = (1 << 64) - 1
_VARINT, _DELIMITED = 0, 2
_FIXED = {1: 8, 5: 4}
"""Bytes of fixed-size values, by wire type."""


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Decode a number; return it and its end. Raises ValueError if truncated or too long."""
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


def _fields(
    data: memoryview, source: str, start: int, most: int | None
) -> Iterator[tuple[int, int | memoryview]]:
    at, end = 0, len(data)
    count = 0
    while at < end:
        begin = at
        if count == most:
            raise FormatError(f"more than {most} fields", source=source, offset=start + begin)
        count += 1
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
    """Return a value's size in bytes and its start. Raises ValueError if invalid."""
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
    """A message whose fields are consumed by number; the remainder can be stored."""

    def __init__(
        self, data: memoryview, source: str, offset: int = 0, most: int | None = None
    ) -> None:
        """Split the message into fields.

        Args:
            data: the message.
            source: the name in errors.
            offset: its own in the source, in bytes.
            most: the number of fields of this message, and of each in it; None: any.

        Raises:
            FormatError: a field is truncated or invalid.
        """
        self._source = source
        self._most = most
        self._fields: dict[int, list[int | memoryview]] = defaultdict(list)
        self._after = b""
        """The first invalid field, and all that follows it."""
        try:
            for number, value in _fields(data, source, offset, most):
                self._fields[number].append(value)
        except FormatError as error:
            self.error: FormatError | None = error
            self._after = bytes(data[error.offset - offset :])
        else:
            self.error = None

    def checked(self) -> Message:
        """Return the message itself, if it is whole.

        Raises:
            FormatError: a field is truncated or invalid, or there are too many.
        """
        if self.error is not None:
            raise self.error
        return self

    def _take(self, number: int, kind: type) -> int | memoryview | None:
        values = self._fields.get(number)
        if not values or not isinstance(values[-1], kind):
            return None
        value = values.pop()
        if not values:
            del self._fields[number]
        return value

    def integer(self, number: int) -> int | None:
        """Consume a number; of repeated ones the last."""
        value = self._take(number, int)
        return value if isinstance(value, int) else None

    def signed(self, number: int) -> int | None:
        """Consume a number of a signed type."""
        value = self.integer(number)
        return value if value is None or value >> 63 == 0 else value - (1 << 64)

    def boolean(self, number: int) -> bool | None:
        """Consume a boolean."""
        value = self.integer(number)
        return None if value is None else bool(value)

    def data(self, number: int) -> bytes | None:
        """Consume bytes."""
        value = self._take(number, memoryview)
        return bytes(value) if isinstance(value, memoryview) else None

    def text(self, number: int) -> str | None:
        """Consume a string; an undecodable byte is a lone surrogate."""
        value = self.data(number)
        return None if value is None else value.decode("utf-8", "surrogateescape")

    def strings(self, number: int) -> Iterator[str]:
        """Consume all strings of a field; an undecodable byte is a lone surrogate."""
        for value in self._fields.pop(number, []):
            data = b"" if isinstance(value, int) else bytes(value)
            yield data.decode("utf-8", "surrogateescape")

    def messages(self, number: int) -> Iterator[Message]:
        """Consume all messages of a field."""
        values = self._fields.pop(number, [])
        for value in values:
            if isinstance(value, memoryview):
                yield Message(value, self._source, most=self._most)
            else:
                self._fields[number].append(value)

    def message(self, number: int) -> Message:
        """Consume a message; an empty one if absent."""
        value = self._take(number, memoryview)
        data = value if isinstance(value, memoryview) else memoryview(b"")
        return Message(data, self._source, most=self._most)

    def rest(self) -> dict[str, JsonValue]:
        """Return what was not consumed: by ``field`` and number; bytes in hexadecimal."""
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
        """Consume all numbers of a field, packed or not."""
        values: list[int] = []
        left: list[int | memoryview] = []
        for value in self._fields.pop(number, []):
            packed = [value] if isinstance(value, int) else _packed(value)
            if packed is None:
                left.append(value)
            else:
                values += packed
        if left:
            self._fields[number] = left
        return tuple(values)


def _packed(data: memoryview) -> list[int] | None:
    values: list[int] = []
    at, end = 0, len(data)
    try:
        while at < end:
            value, at = _varint(data, at, end)
            values.append(value)
    except ValueError:
        return None
    return values
