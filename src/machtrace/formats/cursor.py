"""A cursor over bytes whose errors state the offset."""

from __future__ import annotations

from struct import Struct
from typing import Any

from machtrace.errors import FormatError

_LEB128_MORE = 0x80
"""The bit that another byte follows."""
_STRING_CHUNK = 256
"""Bytes searched at once for the end of a string."""


class ByteCursor:
    """Reads forward over ``data``; errors name ``source`` and the offset."""

    __slots__ = ("_data", "_error", "offset", "source")

    def __init__(
        self,
        data: bytes | memoryview,
        *,
        source: str,
        error: type[FormatError] = FormatError,
        offset: int = 0,
    ) -> None:
        self._data = data
        self._error = error
        self.source = source
        self.offset = offset
        """The position, in bytes from the start of ``data``."""

    @property
    def at_end(self) -> bool:
        """Whether all bytes were read."""
        return self.offset >= len(self._data)

    def fail(self, message: str) -> FormatError:
        """Return an error at this offset, to be raised by the caller."""
        return self._error(message, source=self.source, offset=self.offset)

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes.

        Raises:
            FormatError: fewer are left.
        """
        end = self.offset + size
        if size < 0 or end > len(self._data):
            raise self.fail(f"{size} bytes wanted, {max(0, len(self._data) - self.offset)} left")
        taken = self._data[self.offset : end]
        self.offset = end
        return bytes(taken)

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        """Return the next fields of ``layout``.

        Raises:
            FormatError: fewer bytes are left than the layout takes.
        """
        return layout.unpack(self.take(layout.size))

    def unsigned(self, size: int, *, little_endian: bool = True) -> int:
        """Return an unsigned integer of ``size`` bytes.

        Raises:
            FormatError: fewer are left.
        """
        return int.from_bytes(self.take(size), "little" if little_endian else "big")

    def c_string(self) -> bytes:
        """Return the bytes up to the next NUL, and skip it.

        Raises:
            FormatError: there is no NUL.
        """
        start = self.offset
        for at in range(start, len(self._data), _STRING_CHUNK):
            length = bytes(self._data[at : at + _STRING_CHUNK]).find(b"\0")
            if length >= 0:
                self.offset = at + length + 1
                return bytes(self._data[start : at + length])
        raise self.fail("string without an end")

    def uleb128(self) -> int:
        """Return an unsigned LEB128 of at most 64 bits (DWARF 5, section 7.6).

        Raises:
            FormatError: it is truncated or longer.
        """
        if self.offset < len(self._data) and self._data[self.offset] < _LEB128_MORE:
            self.offset += 1  # nearly always one byte
            return self._data[self.offset - 1]
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                if value >= 1 << 64:
                    break
                return value
        raise self.fail("LEB128 exceeds 64 bits")

    def sleb128(self) -> int:
        """Return a signed LEB128 of at most 64 bits (DWARF 5, section 7.6).

        Raises:
            FormatError: it is truncated or longer.
        """
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                if byte & 0x40:
                    value -= 1 << (shift + 7)
                if not -(1 << 63) <= value < 1 << 63:
                    break
                return value
        raise self.fail("LEB128 exceeds 64 bits")
