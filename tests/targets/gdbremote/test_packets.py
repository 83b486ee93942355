"""Packets of the gdb remote serial protocol: examples of its manual, and bytes of any kind."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import ConnectionLostError, RemoteProtocolError
from machtrace.targets.gdbremote.packets import (
    Acknowledgement,
    DamagedPacket,
    Notification,
    PacketDecoder,
    Reply,
    choose_compression,
    decode_payload,
    encode_packet,
    plain_payload,
)


def events(*pieces: bytes, limit: int = 1 << 20):
    """Return all events of ``pieces``."""
    decoder = PacketDecoder(limit)
    decoded = []
    for piece in pieces:
        decoder.feed(piece)
        while (event := decoder.next_event()) is not None:
            decoded.append(event)
    return decoded


def test_encoded_packets_equal_those_of_gdb_and_lldb():
    assert encode_packet(b"QStartNoAckMode") == b"$QStartNoAckMode#b0"
    assert encode_packet(b"?") == b"$?#3f"
    # "#", "$" and "}" must be escaped in a payload, and "*", which marks runs in replies.
    assert encode_packet(b"a#$}*") == b"$a}\x03}\x04}]}\x0a#" + b"%02x" % (
        sum(b"a}\x03}\x04}]}\x0a") % 256
    )


@pytest.mark.parametrize(
    ("raw", "meant"),
    [
        (b"0* ", b"0000"),  # the manual's own example
        (b"0006:0031dd65fc7f0* ;", b"0006:0031dd65fc7f0000;"),  # gdbserver 13.1
        (b'f*"00 ', b"ffffff00 "),
        (b"0*~", b"0" * 98),
        (b"0**", b"0" * 14),
        (b"}]", b"}"),
        (b"}\x03}\x04", b"#$"),
        (b"plain", b"plain"),
    ],
)
def test_runs_and_escapes(raw, meant):
    """The byte before ``*`` is repeated by the value of the next one, less 29."""
    assert decode_payload(raw) == meant


def test_events_in_order():
    """Acknowledgements, notifications and replies, with noise between them."""
    sent = b"+$OK#9a" + b"noise" + b"%Stop:T05#" + b"%02x" % 0 + b"-$E01#a6"
    assert events(sent) == [
        Acknowledgement(is_good=True),
        Reply(b"OK"),
        Notification(b"Stop:T05"),
        Acknowledgement(is_good=False),
        Reply(b"E01"),
    ]


def test_checksum_00_is_accepted_without_acknowledgements_only():
    assert events(b"$OK#9b") == [DamagedPacket(b"OK", b"9b")]
    assert events(b"$OK#00") == [DamagedPacket(b"OK", b"00")]
    assert events(b"$OK#xy") == [DamagedPacket(b"OK", b"xy")]
    decoder = PacketDecoder()
    decoder.may_lack_checksums = True
    decoder.feed(b"$OK#00$OK#9b")
    assert decoder.next_event() == Reply(b"OK")
    assert decoder.next_event() == DamagedPacket(b"OK", b"9b")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=200), max_size=6), st.integers(0, 1 << 30))
def test_any_data_decodes_unchanged_however_the_stream_is_cut(payloads, seed):
    """Any compressed data decompresses unchanged, wherever the stream is cut."""
    sent = b"".join(map(encode_packet, payloads))
    chance = random.Random(seed)  # noqa: S311 - cuts, not secrets
    cuts = sorted(chance.randrange(len(sent) + 1) for _ in range(4)) if sent else []
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert events(*pieces) == [Reply(payload) for payload in payloads]


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=400))
def test_hostile_bytes_are_events_or_nothing(data):
    """Only their size is limited; no bytes raise anything else."""
    assert len(events(data)) <= len(data)


def test_a_reply_without_end_is_an_error():
    """The size is bounded, also if a few bytes expand to many."""
    with pytest.raises(ConnectionLostError, match="exceeds the limit"):
        events(b"$", b"0" * 3000, limit=2000)
    with pytest.raises(ConnectionLostError, match="exceeds the limit"):
        decode_payload(b"0*~" * 100, limit=2000)


def test_compressed_replies():
    """``N`` is plain, ``C`` has its size and a deflate stream without a header."""
    packer = zlib.compressobj(wbits=-15)
    plain = b"l<target/>" * 100
    packed = packer.compress(plain) + packer.flush()
    name, inflate = choose_compression(["lzfse", "zlib-deflate", "lzma"])
    assert name == "zlib-deflate"
    assert plain_payload(b"NOK", inflate) == b"OK"
    assert plain_payload(b"C%d:%s" % (len(plain), packed), inflate) == plain
    assert choose_compression(["lzma"]) is None


@pytest.mark.parametrize(
    "payload",
    [b"C10:junk", b"C999999999:junk", b"C5:" + zlib.compress(b"hello"), b"C4:\x4b\x4c\x4a\x06\x00"],
)
def test_bad_compression_is_an_error(payload):
    """An invalid stream, an excessive size, and a wrong size."""
    _, inflate = choose_compression(["zlib-deflate"])
    with pytest.raises(RemoteProtocolError, match="compressed reply"):
        plain_payload(payload, inflate)
