"""Packets of the gdb remote serial protocol: ``$payload#checksum``, and back.

Source: *Debugging with GDB*, appendix "GDB Remote Serial Protocol", section "Overview": the
checksum is the sum of the payload's bytes as sent, modulo 256; ``}`` escapes a byte, which follows
with bit 5 inverted; ``*`` repeats the byte before it, as often as the next one states,
less 29. A notification begins with ``%`` and is not acknowledged.

Compressed replies: lldb's ``QEnableCompression``.

Source: lldb's ``docs/resources/lldbgdbremote.md``, "QEnableCompression": once it is enabled, a
payload begins with ``N``, and is plain; or with ``C``, the plain size in decimal and a colon, and
is compressed. Deflate streams have no zlib header.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import cast

from machtrace.errors import ConnectionLostError, RemoteProtocolError
from machtrace.frozen import dataclass

MAX_REPLY_LENGTH = 1 << 26
"""Bytes of one reply, packed or unpacked: a few times the longest list of a phone's libraries."""

_ESCAPED = b"}"
_SPECIAL = re.compile(rb"[#$}*]")
_ESCAPE = re.compile(rb"\}(.)", re.DOTALL)
_RUN = re.compile(rb"(.)\*([ -~])", re.DOTALL)
_RUN_BASE = 29
_TURNED_BIT = 0x20
_TRAILER = 3
"""``#`` and two digits."""
_INTERRUPT_NOISE = re.compile(rb"[$%+-]")


@dataclass(frozen=True, slots=True)
class Reply:
    """A packet whose checksum is right."""

    payload: bytes
    """Runs and escapes undone."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification that a stub sends without a request."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """``+`` or ``-``."""

    is_good: bool


@dataclass(frozen=True, slots=True)
class DamagedPacket:
    """A packet whose checksum is not that of its bytes, or is none."""

    payload: bytes
    stated: bytes
    """The two digits, as they came."""


Event = Reply | Notification | Acknowledgement | DamagedPacket


def checksum(payload: bytes) -> int:
    """Return the checksum of ``payload`` as it is sent."""
    return sum(payload) & 0xFF


def encode_packet(payload: bytes) -> bytes:
    """``payload``, whose bytes may be any, as a packet."""
    escaped = _SPECIAL.sub(lambda found: bytes((0x7D, found[0][0] ^ _TURNED_BIT)), payload)
    return b"$%s#%02x" % (escaped, checksum(escaped))


def decode_payload(raw: bytes, limit: int = MAX_REPLY_LENGTH) -> bytes:
    """Decode the bytes that ``raw``, what stands between ``$`` and ``#``, means.

    Raises:
        ConnectionLostError: they are more than ``limit``.
    """
    if b"*" in raw:
        size = len(raw) + sum(match[2][0] - _RUN_BASE - 2 for match in _RUN.finditer(raw))
        if size > limit:
            raise _too_long(size, limit)
        raw = _RUN.sub(lambda match: match[1] * (match[2][0] - _RUN_BASE + 1), raw)
    if _ESCAPED in raw:
        raw = _ESCAPE.sub(lambda match: bytes((match[1][0] ^ _TURNED_BIT,)), raw)
    return raw


class PacketDecoder:
    """Makes events of bytes as they come; ``limit`` bounds the bytes of one packet."""

    def __init__(self, limit: int = MAX_REPLY_LENGTH) -> None:
        self._limit = limit
        self._bytes = bytearray()
        self._searched = 0
        """Up to where no ``#`` is."""
        self.may_lack_checksums = False
        """Whether 00 means no checksum, as stubs in no-acknowledgement mode may send."""

    def feed(self, data: bytes) -> None:
        """Add what has come.

        Raises:
            ConnectionLostError: a packet is longer than the limit.
        """
        self._bytes += data
        if len(self._bytes) > self._limit:
            raise _too_long(len(self._bytes), self._limit)

    def next_event(self) -> Event | None:
        """Return the next whole event; None until more bytes arrive.

        Raises:
            ConnectionLostError: a packet unpacks to more than the limit.
        """
        held = self._bytes
        start = _INTERRUPT_NOISE.search(held)
        if start is None:
            held.clear()
            self._searched = 0
            return None
        if start.start():
            del held[: start.start()]
            self._searched = 0
        kind = bytes(held[:1])
        if kind in (b"+", b"-"):
            del held[:1]
            return Acknowledgement(is_good=kind == b"+")
        end = held.find(b"#", max(1, self._searched))
        if end < 0 or len(held) < end + _TRAILER:
            self._searched = len(held) if end < 0 else end
            return None
        raw, stated = bytes(held[1:end]), bytes(held[end + 1 : end + _TRAILER])
        del held[: end + _TRAILER]
        self._searched = 0
        if kind == b"%":
            return Notification(decode_payload(raw, self._limit))
        is_stated = not self.may_lack_checksums or stated != b"00"
        if is_stated and stated.lower() != b"%02x" % checksum(raw):
            return DamagedPacket(raw, stated)
        return Reply(decode_payload(raw, self._limit))


def _too_long(size: int, limit: int) -> ConnectionLostError:
    return ConnectionLostError(
        f"a reply of at least {size} bytes exceeds the limit of {limit}",
        remedy="check that the address is that of a gdb-remote stub",
    )


Decompress = Callable[[bytes, int], bytes]
"""Decompresses bytes, given the stated size of the result."""

MIN_SIZE = 384
"""Bytes of a reply below which compressing it is no gain."""

_HEAD = re.compile(rb"C([0-9]{1,9}):")


def _inflate(data: bytes, size: int) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)


def _lz4(data: bytes, size: int) -> bytes:
    from lz4.block import decompress  # type: ignore[import-not-found, unused-ignore]

    return cast("bytes", decompress(data, uncompressed_size=size))


def _lzfse(data: bytes, _: int) -> bytes:
    from liblzfse import decompress  # type: ignore[import-not-found, unused-ignore]

    return cast("bytes", decompress(data))


def choose_compression(offered: Iterable[str]) -> tuple[str, Decompress] | None:
    """Choose the fastest of ``offered`` that is available here; None without any."""
    names = set(offered)
    if "lz4" in names and find_spec("lz4"):
        return "lz4", _lz4
    if "zlib-deflate" in names:
        return "zlib-deflate", _inflate
    if "lzfse" in names and find_spec("liblzfse"):
        return "lzfse", _lzfse
    return None


def plain_payload(payload: bytes, decompress: Decompress) -> bytes:
    """Decompress a reply that was sent while compression was enabled.

    Raises:
        RemoteProtocolError: it cannot be decompressed, or is not of the stated length.
    """
    if payload.startswith(b"N"):
        return payload[1:]
    head = _HEAD.match(payload)
    if head is None:
        return payload  # what is not packed at all, such as an answer to enabling it
    size = int(head[1])
    came = f"{payload[:24]!r} ({len(payload)} bytes)"
    if size > MAX_REPLY_LENGTH:
        raise RemoteProtocolError(
            f"a compressed reply is {size} bytes long", request="anything", reply=came
        )
    try:
        plain = decompress(payload[head.end() :], size)
    except Exception as error:  # libraries raise what they like
        raise RemoteProtocolError(
            f"a compressed reply cannot be decompressed ({error})", request="anything", reply=came
        ) from error
    if len(plain) != size:
        raise RemoteProtocolError(
            f"a compressed reply has {len(plain)} bytes, not the stated {size}",
            request="anything",
            reply=came,
        )
    return plain
