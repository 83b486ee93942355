"""Compressed replies: lldb's ``QEnableCompression``.

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

from machtrace.errors import RemoteProtocolError
from machtrace.targets.gdbremote.packets import LONGEST_REPLY

Decompress = Callable[[bytes, int], bytes]
"""From packed bytes, and the size that the plain ones are said to have."""

LEAST_SIZE = 384
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
    """The quickest of ``offered`` for which there is a library here; None where there is none."""
    names = set(offered)
    if "lz4" in names and find_spec("lz4"):
        return "lz4", _lz4
    if "zlib-deflate" in names:
        return "zlib-deflate", _inflate
    if "lzfse" in names and find_spec("liblzfse"):
        return "lzfse", _lzfse
    return None


def plain_payload(payload: bytes, decompress: Decompress) -> bytes:
    """The plain bytes of a reply that came while compression was enabled.

    Raises:
        RemoteProtocolError: it cannot be unpacked, or is not as long as it says.
    """
    if payload.startswith(b"N"):
        return payload[1:]
    head = _HEAD.match(payload)
    if head is None:
        return payload  # what is not packed at all, such as an answer to enabling it
    size = int(head[1])
    came = f"{payload[:24]!r} ({len(payload)} bytes)"
    if size > LONGEST_REPLY:
        raise RemoteProtocolError(
            f"a compressed reply of {size} bytes", asked="anything", came=came
        )
    try:
        plain = decompress(payload[head.end() :], size)
    except Exception as error:  # libraries raise what they like
        raise RemoteProtocolError(
            f"a compressed reply cannot be unpacked ({error})", asked="anything", came=came
        ) from error
    if len(plain) != size:
        raise RemoteProtocolError(
            f"a compressed reply of {len(plain)} bytes, not {size} as it says",
            asked="anything",
            came=came,
        )
    return plain
