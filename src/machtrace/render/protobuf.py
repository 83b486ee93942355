"""Writing protocol buffers: as much of their encoding as a profile takes.

Source of the format: *Encoding* at protobuf.dev: a field is its number and wire type as a varint,
then a varint, or a length and so many bytes. A field that is 0 or empty is left out, as in proto3.
"""

from __future__ import annotations

from collections.abc import Iterable

_VARINT = 0
_LENGTH = 2
_MASK = (1 << 64) - 1


class Message:
    """A message that fields are added to, in any order."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def __bytes__(self) -> bytes:
        return bytes(self._data)

    def number(self, field: int, value: int) -> None:
        """An int64, uint64 or bool."""
        if value:
            self._data += varint(field << 3 | _VARINT) + varint(value)

    def numbers(self, field: int, values: Iterable[int]) -> None:
        """A repeated int64 or uint64, packed."""
        self._bytes(field, b"".join(map(varint, values)))

    def text(self, field: int, value: str) -> None:
        """One more of a repeated string, written even if it is empty."""
        self._bytes(field, value.encode("utf-8", "backslashreplace"), even_empty=True)

    def data(self, field: int, value: bytes) -> None:
        """One more of repeated bytes, written even if there are none."""
        self._bytes(field, value, even_empty=True)

    def message(self, field: int, value: Message) -> None:
        """One more of a repeated message, or the only one."""
        self._bytes(field, bytes(value), even_empty=True)

    def _bytes(self, field: int, data: bytes, *, even_empty: bool = False) -> None:
        if data or even_empty:
            self._data += varint(field << 3 | _LENGTH) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """A number of up to 64 bits, seven at a time, the lowest first; ten bytes if negative."""
    value &= _MASK
    data = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - what fits seven bits
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
