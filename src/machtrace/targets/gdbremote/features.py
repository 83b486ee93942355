"""A stub's features, queried once at the start of every session."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum

from machtrace.frozen import dataclass
from machtrace.targets.gdbremote.packets import choose_compression
from machtrace.targets.gdbremote.replies import parse_chunk, parse_supported, refused
from machtrace.targets.gdbremote.session import GdbSession

_OFFER = b"qSupported:multiprocess+;xmlRegisters=i386,arm,mips,arc;vContSupported+;no-resumed-"
_BREAKPOINT_OFFER = _OFFER + b";swbreak+"
"""Else gdbserver reports a thread behind the breakpoint."""
_FIRST_WORDS = (
    _OFFER,
    b"QThreadSuffixSupported",
    b"x0,0",
    # Else debugserver ends the process when a connection breaks (its RNBContext.h).
    b"QSetDetachOnError:1",
    b"QEnableErrorStrings",
)
_DEFAULT_PACKET = 400
"""Default packet size in bytes: gdb's own guess."""
_MAX_PACKET_SIZE = 1 << 24
_HEX = re.compile("[0-9a-fA-F]{1,8}")
_MAX_DOCUMENT_LENGTH = 1 << 26
_MAX_PARTS = 1 << 14


class BinaryRead(Enum):
    """The format of replies to ``x``."""

    NONE = "the stub has no x"
    LLDB = "the bytes alone"
    GDB = "b, then the bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class StubFeatures:
    """The features that a stub reports."""

    packet_size: int = _DEFAULT_PACKET
    """Bytes of a packet, either way, at most."""
    has_process_ids: bool = False
    """Whether ``D`` and threads are given with a process."""
    has_thread_suffix: bool = False
    """Whether ``g`` and ``p`` have a thread suffix."""
    documents: frozenset[str] = frozenset()
    """Objects that ``qXfer`` reads."""
    has_multiple_reads: bool = False
    """``MultiMemRead``."""
    binary_read: BinaryRead = BinaryRead.NONE
    has_native_signals: bool = False
    """Whether signals have the numbers of the process's system, not gdb's."""
    passes_signals: bool = False
    """``QPassSignals``: a signal need not stop the process."""


def negotiate(session: GdbSession) -> StubFeatures:
    """Negotiate the protocol with the stub and query its features.

    Raises:
        ConnectionLostError, RemoteProtocolError: it does not speak the protocol.
    """
    if session.ask(b"QStartNoAckMode") == b"OK":
        session.stop_acknowledging()
    supported, suffix, probe, *_ = session.ask_all(_FIRST_WORDS)
    supports = parse_supported(supported)
    compression = choose_compression(supports.get("SupportedCompressions", "").split(","))
    if compression is not None:
        name, decompress = compression
        if session.ask(b"QEnableCompression:type:%s;" % name.encode()) == b"OK":
            session.decompress_with(decompress)
    return features_of(supports, has_suffix=suffix == b"OK", probe=probe)


def expect_breakpoints(session: GdbSession) -> None:
    """Let a stub report a breakpoint's address, if it reports another one by default.

    Raises:
        ConnectionLostError, RemoteProtocolError: it does not speak the protocol.
    """
    session.ask(_BREAKPOINT_OFFER)


def features_of(supports: Mapping[str, str], *, has_suffix: bool, probe: bytes) -> StubFeatures:
    """Build the features from the reply to ``qSupported``, and to an ``x`` of no bytes."""
    size = supports.get("PacketSize", "")
    binary = {b"OK": BinaryRead.LLDB, b"b": BinaryRead.GDB}.get(probe, BinaryRead.NONE)
    return StubFeatures(
        packet_size=max(_DEFAULT_PACKET, min(int(size, 16), _MAX_PACKET_SIZE))
        if _HEX.fullmatch(size)
        else _DEFAULT_PACKET,
        has_process_ids=supports.get("multiprocess") == "+",
        has_thread_suffix=has_suffix,
        documents=frozenset(
            name.removeprefix("qXfer:").removesuffix(":read")
            for name, value in supports.items()
            if name.startswith("qXfer:") and name.endswith(":read") and value == "+"
        ),
        has_multiple_reads=supports.get("MultiMemRead") == "+",
        binary_read=binary,
        has_native_signals=has_suffix or supports.get("native-signals") == "+",
        passes_signals=supports.get("QPassSignals") == "+",
    )


def read_documents(
    session: GdbSession, names: Sequence[str], features: StubFeatures
) -> list[bytes | None]:
    """Documents that ``qXfer`` reads, ``object:annex`` each; None for one that is not there.

    The first parts of all of them come in one batch.

    Raises:
        ConnectionLostError, RemoteProtocolError: a part is none, or there is no end to them.
    """
    size = features.packet_size - 16

    def request(name: str, at: int) -> bytes:
        kind, _, annex = name.partition(":")
        return b"qXfer:%s:read:%s:%x,%x" % (kind.encode(), annex.encode(), at, size)

    firsts = session.ask_all([request(name, 0) for name in names])
    documents: list[bytes | None] = []
    for name, first in zip(names, firsts, strict=True):
        part = None if first[:1] not in (b"l", b"m") else parse_chunk(request(name, 0), first)
        if part is None:
            documents.append(None)
            continue
        data, has_more = bytearray(part[0]), part[1]
        parts, deadline = 0, session.deadline_of_parts()
        while has_more:
            session.check(deadline)
            asked = request(name, len(data))
            reply = session.ask(asked)
            part = parse_chunk(asked, reply)
            parts += 1
            if part is None or parts > _MAX_PARTS or len(data) > _MAX_DOCUMENT_LENGTH:
                raise refused("a document that does not end", asked, reply)
            data += part[0]
            has_more = part[1]
        documents.append(bytes(data))
    return documents
