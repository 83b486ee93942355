"""The output of a gdb-remote stub: packets, and the replies in them.

An input is a number that chooses a parser, then bytes as they would come from the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from fuzz.mutation import Mutation
from fuzz.target import ContractError, Target
from machtrace.errors import MachtraceError
from machtrace.model.arch import Arch
from machtrace.targets.gdbremote.host import host_of
from machtrace.targets.gdbremote.json_documents import (
    parse_images_info,
    parse_shared_cache,
    parse_threads_info,
)
from machtrace.targets.gdbremote.memory import Piece, split_reads
from machtrace.targets.gdbremote.packets import (
    PacketDecoder,
    Reply,
    choose_compression,
    encode_packet,
    plain_payload,
)
from machtrace.targets.gdbremote.registers import (
    RegisterReader,
    RegisterTable,
    parse_register_documents,
    parse_register_info,
)
from machtrace.targets.gdbremote.replies import (
    parse_chunk,
    parse_file_result,
    parse_region,
    parse_stop,
    parse_supported,
    parse_thread_list,
)
from machtrace.targets.gdbremote.xml_documents import (
    parse_libraries_document,
    parse_threads_document,
)

_LIMIT = 1 << 20
_THREADS = (
    b'[{"tid":7,"name":"main","qname":"q","registers":{"0":"00ff"},'
    b'"memory":[{"address":4096,"bytes":"00ff"}]}]'
)
_IMAGES = (
    b'{"images":[{"load_address":4294967296,"pathname":"/a","uuid":'
    b'"02CF262C-ED6F-3965-9E14-63538B465CFF","mach_header":{"cputype":16777228},'
    b'"segments":[{"name":"__TEXT","vmaddr":4294967296,"vmsize":4096}]}]}'
)
_PIECES = [Piece(0x1000, 16), Piece(0x2000, 64)]


def _registers(table: RegisterTable | None, data: bytes) -> None:
    for arch in (Arch.ARM64, Arch.X86_64, Arch.I386, Arch.ARM):
        if table is None:
            return
        try:
            reader = RegisterReader.of(table, arch)
        except MachtraceError:
            continue
        reader.of_values(reader.split(data))


def _documents(data: bytes) -> None:
    _registers(parse_register_documents(lambda _: data), data)


def _information(data: bytes) -> None:
    lines = data.split(b"\n")
    table = parse_register_info(lambda number: lines[number] if number < len(lines) else b"E45")
    _registers(table, data)


def _memory(data: bytes) -> None:
    parts = split_reads(_PIECES, b"MultiMemRead", data)
    for part, piece in zip(parts, _PIECES, strict=True):
        if len(part) > piece.size:
            raise ContractError(f"{len(part)} bytes of memory, {piece.size} were requested")


def _compressed(data: bytes) -> None:
    chosen = choose_compression(["zlib-deflate"])
    if chosen is not None:
        plain_payload(data, chosen[1])


def _packets(data: bytes) -> None:
    decoder = PacketDecoder(_LIMIT)
    for at in range(0, len(data), 7):
        decoder.feed(data[at : at + 7])
        while (event := decoder.next_event()) is not None:
            if isinstance(event, Reply) and len(event.payload) > _LIMIT:
                raise ContractError(f"a reply of {len(event.payload)} bytes")


_PARSERS: tuple[Callable[[bytes], object], ...] = (
    _packets,
    _documents,
    _information,
    _memory,
    _compressed,
    parse_threads_info,
    parse_images_info,
    parse_shared_cache,
    parse_thread_list,
    parse_threads_document,
    parse_libraries_document,
    parse_stop,
    parse_region,
    parse_supported,
    parse_file_result,
    lambda data: parse_chunk(b"qXfer", data),
    lambda data: host_of(data, data, None, is_linux=False),
)


def run(data: bytes) -> None:
    """Read the rest by the parser that the first byte chooses."""
    if data:
        _PARSERS[data[0] % len(_PARSERS)](data[1:])


def _seeds() -> Sequence[bytes]:
    names = [*(f"x{number}" for number in range(31)), "sp", "pc"]
    rows = "".join(f'<reg name="{name}" bitsize="64"/>' for name in names)
    replies = [
        encode_packet(b"l<target/>") + b"+$0* #7a%Stop:T05#00",
        f"<target><architecture>aarch64</architecture>{rows}</target>".encode(),
        b"\n".join(
            b"name:%s;bitsize:64;offset:%d;" % (n.encode(), 8 * i) for i, n in enumerate(names)
        ),
        b"10,40;" + bytes(80),
        b"C3:\x4b\x4c\x4a\x06\x00",
        _THREADS,
        _IMAGES,
        b'{"shared_cache_base_address":140735683125248,"no_shared_cache":false}',
        b"mp1.2,p1.3",
        b'<threads><thread id="p1.2" name="main"/></threads>',
        b'<library-list-svr4><library name="a" l_addr="0x1000" l_ld="0x2000"/></library-list-svr4>',
        b"T05thread:p1.2;threads:2,3;",
        b"start:1000;size:4000;permissions:rw;type:stack;name:2f61;",
        b"PacketSize=47ff;qXfer:auxv:read+;multiprocess+",
        b"F10;0123456789abcdef",
        b"l<target/>",
        b"pid:1;triple:7838365f36342d70632d6c696e75782d676e75;cputype:100000c;addressing_bits:47;",
    ]
    return [bytes((number,)) + reply for number, reply in enumerate(replies)]


def _choose(data: bytearray, random: Random) -> None:
    """Another parser for the same bytes."""
    if data:
        data[0] = random.randrange(len(_PARSERS))


def _mark(data: bytearray, random: Random) -> None:
    """One of the bytes that mean something."""
    if len(data) > 1:
        data[random.randrange(1, len(data))] = random.choice(b"$#*}%+-;:,=<>/&\"'{}[]0fmlETEFC")


_MUTATIONS: tuple[Mutation, ...] = (_choose, _mark, _mark, _mark)

TARGET = Target("gdb_remote", run, _seeds, _MUTATIONS)
