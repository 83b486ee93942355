"""Reading a stub's memory: by the packets that it has, in as few round trips as they allow.

``MultiMemRead`` reads many ranges at once; ``x`` gives bytes as they are; ``m``, which every stub
has, gives them in hex. Sources: *Debugging with GDB*, "Packets"; lldb's
``docs/resources/lldbgdbremote.md``, "MultiMemRead" and "x - Binary memory read".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from machtrace.targets.gdbremote.features import BinaryRead, StubFeatures
from machtrace.targets.gdbremote.registers import register_bytes
from machtrace.targets.gdbremote.replies import is_error, refused
from machtrace.targets.gdbremote.session import GdbSession
from machtrace.targets.shared.paged_memory import PAGE

_HEAD = 32
"""Bytes of a packet that are not memory."""
_AMBIGUOUS = 3
"""Bytes of a reply that may be an error."""
_ADDRESSES = 1 << 64
_COUNTS = re.compile(rb"(?:[0-9a-fA-F]{1,8},?)*")
_MAX_RANGES = 256


class Piece(NamedTuple):
    """The ranges of one request."""

    address: int
    size: int


class RemoteMemory:
    """The memory of a stopped process."""

    def __init__(self, session: GdbSession, features: StubFeatures) -> None:
        self._session = session
        self._features = features
        self._reads_many = features.has_multiple_reads
        room = (features.packet_size - _HEAD) // 2
        self._largest = room // PAGE * PAGE or room // 16 * 16
        """Maximum bytes of one request, for replies in hex or escaped."""

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read the bytes of each range, address and size, up to the first that cannot be read.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub answers something else.
        """
        pieces = [list(self._pieces(address, size)) for address, size in ranges]
        replies = iter(self._read_pieces([piece for row in pieces for piece in row]))
        results: list[bytearray] = []
        again: list[tuple[int, list[Piece]]] = []
        for index, row in enumerate(pieces):
            data, is_whole = bytearray(), True
            for piece in row:
                part = next(replies)
                if not is_whole:
                    continue
                data += part
                if len(part) < piece.size:
                    is_whole = False
                    if not part and piece.size > PAGE - piece.address % PAGE:
                        # Some stubs give all or nothing; a page is there or not.
                        again.append((index, list(_pages(piece))))
            results.append(data)
        replies = iter(self._read_pieces([page for _, pages in again for page in pages]))
        for index, pages in again:
            parts = [(page, next(replies)) for page in pages]
            for page, part in parts:
                results[index] += part
                if len(part) < page.size:
                    break
        return [bytes(data) for data in results]

    def _pieces(self, address: int, size: int) -> Iterator[Piece]:
        end = min(address + size, _ADDRESSES)
        while address < end:
            step = min(self._largest, end - address)
            yield Piece(address, step)
            address += step

    def _read_pieces(self, pieces: Sequence[Piece]) -> list[bytes]:
        if not pieces:
            return []
        if self._reads_many and len(pieces) > 1:
            found = self._read_at_once(pieces)
            if found is not None:
                return found
            self._reads_many = False
        requests = [self.request(piece) for piece in pieces]
        replies = self._session.ask_all(requests)
        return [
            self.data(piece, request, reply)
            for piece, request, reply in zip(pieces, requests, replies, strict=True)
        ]

    def _is_binary(self, piece: Piece) -> bool:
        binary = self._features.binary_read
        return binary is BinaryRead.GDB or (binary is BinaryRead.LLDB and piece.size != _AMBIGUOUS)

    def request(self, piece: Piece) -> bytes:
        """Return the request for one range that a packet has room for."""
        return b"%s%x,%x" % (b"x" if self._is_binary(piece) else b"m", *piece)

    def data(self, piece: Piece, request: bytes, reply: bytes) -> bytes:
        """Parse the reply to :meth:`request`; no bytes if the range cannot be read.

        Raises:
            RemoteProtocolError: the stub answers something else.
        """
        if self._is_binary(piece):
            if self._features.binary_read is BinaryRead.GDB:
                data = reply[1:] if reply[:1] == b"b" else b""
            else:
                data = b"" if len(reply) == _AMBIGUOUS and is_error(reply) else reply
        else:
            data = b"" if is_error(reply) else register_bytes(reply.decode("ascii", "replace"))
            if reply and not data and not is_error(reply):
                raise refused("no memory", request, reply)
        if len(data) > piece.size:
            raise refused(f"{len(data)} bytes of memory, not {piece.size}", request, reply)
        return data

    def _read_at_once(self, pieces: Sequence[Piece]) -> list[bytes] | None:
        """By ``MultiMemRead``; None where the stub does not know it after all."""
        groups = list(self._groups(pieces))
        requests = [
            b"MultiMemRead:ranges:%s;" % b",".join(b"%x,%x" % piece for piece in group)
            for group in groups
        ]
        results: list[bytes] = []
        replies = self._session.ask_all(requests)
        for group, request, reply in zip(groups, requests, replies, strict=True):
            if not reply or is_error(reply):
                return None
            results += split_reads(group, request, reply)
        return results

    def _groups(self, pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
        group: list[Piece] = []
        size = 0
        for piece in pieces:
            is_full = size + piece.size > self._largest or len(group) >= _MAX_RANGES
            if group and is_full:
                yield group
                group, size = [], 0
            group.append(piece)
            size += piece.size
        if group:
            yield group


def split_reads(pieces: Sequence[Piece], request: bytes, reply: bytes) -> list[bytes]:
    """Split the bytes of each range in a reply to ``MultiMemRead``.

    Raises:
        RemoteProtocolError: it does not match the request.
    """
    head, semicolon, data = reply.partition(b";")
    counts = head.split(b",")
    if not semicolon or not _COUNTS.fullmatch(head) or len(counts) != len(pieces):
        raise refused("no memory of many ranges", request, reply)
    sizes = [int(count, 16) if count else 0 for count in counts]
    if sum(sizes) != len(data) or any(
        size > piece.size for size, piece in zip(sizes, pieces, strict=True)
    ):
        raise refused("memory sizes that differ from the stated ones", request, reply)
    parts: list[bytes] = []
    at = 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return parts


def _pages(piece: Piece) -> Iterator[Piece]:
    at, end = piece.address, piece.address + piece.size
    while at < end:
        upto = min(end, (at // PAGE + 1) * PAGE)
        yield Piece(at, upto - at)
        at = upto
