"""A gdb-remote stub that serves a snapshot, to try a client on: a well-behaved one, or a bad one.

It speaks as debugserver does for Darwin (lldb's extensions, many requests at once, compression), or
as the plainest stubs do (acknowledgements, hex, one thread at a time). Its answers are written from
the protocol's documentation, not recorded from a phone; and its framing is its own, so that a
mistake of the client's is not made twice.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.model.memory import LayeredMemory, RegionMemory
from machtrace.model.snapshot import Snapshot, ThreadSnapshot

_CPU_TYPE_ARM64 = 0x100000C
_GENERIC = {"fp": "fp", "lr": "ra", "sp": "sp", "pc": "pc"}
_NAMES = (*(f"x{number}" for number in range(29)), "fp", "lr", "sp", "pc")
_RANGE = re.compile(rb"([0-9a-f]+),([0-9a-f]+)")
_MIN_PACKED = 384


class Dialect(Enum):
    """Whose habits a stub has."""

    DEBUGSERVER = "debugserver"
    PLAIN = "plain"


class HangUpError(Exception):
    """The stub closes the connection now."""


Fault = Callable[[bytes, bytes], bytes | None]
"""From a request and the packet that answers it: the bytes to send instead; None for the packet."""


@dataclass(slots=True)
class SnapshotStub:
    """Answers requests out of an arm64 Darwin snapshot."""

    snapshot: Snapshot
    dialect: Dialect = Dialect.DEBUGSERVER
    packet_size: int = 0x20000
    attached: bytes = b""
    """The answer to ``qAttached``."""
    fault: Fault | None = None
    compresses: bool = False
    requests: list[bytes] = field(default_factory=list)
    """All that came, in order."""
    readings: int = 0
    """How often requests came after all before had been answered: the client's round trips."""
    acknowledges: bool = True
    packs: bool = False
    selected: int = 0
    memory: LayeredMemory | None = None
    """Stacks and the rest, made when it is first read."""

    # --- the connection ---

    @contextmanager
    def serving(self, connections: int = 1) -> Iterator[int]:
        """Serve at a port of this machine, one connection at a time."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            worker = threading.Thread(target=self._serve, args=(server, connections), daemon=True)
            worker.start()
            try:
                yield server.getsockname()[1]
            finally:
                with suppress(OSError):  # which wakes who waits for a connection, on Linux
                    server.shutdown(socket.SHUT_RDWR)
                server.close()
                worker.join(10)

    def _serve(self, server: socket.socket, connections: int) -> None:
        for _ in range(connections):
            try:
                server.settimeout(10)
                connection, _ = server.accept()
                if connection.family != socket.AF_UNIX:
                    # As every stub: else an acknowledgement keeps the reply waiting for another.
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                return
            self.acknowledges, self.packs = True, False
            with connection:
                try:
                    self._converse(connection)
                except (OSError, HangUpError):
                    continue

    def _converse(self, connection: socket.socket) -> None:
        held = b""
        last = b""
        while data := connection.recv(1 << 16):
            held += data
            self.readings += b"$" in data
            while True:
                held, again = _without_noise(held)
                if again and last:
                    connection.sendall(last)
                end = held.find(b"#")
                if end < 0 or len(held) < end + 3:
                    break
                request, held = _unescaped(held[1:end]), held[end + 3 :]
                if self.acknowledges:
                    connection.sendall(b"+")
                self.requests.append(request)
                last = self._packet(request)
                if last:
                    connection.sendall(last)

    def _packet(self, request: bytes) -> bytes:
        answer = self.answer(request)
        if answer is None:
            return b""
        packs, checksum = self.packs, None
        if request.startswith(b"QEnableCompression") and answer == b"OK":
            self.packs = True
        if packs:
            packed = zlib.compressobj(wbits=-15)
            checksum = b"00"
            if len(answer) >= _MIN_PACKED:
                size = len(answer)
                answer = b"C%d:" % size + packed.compress(answer) + packed.flush()
            else:
                answer = b"N" + answer
        escaped = re.sub(rb"[#$}*]", lambda found: b"}" + bytes((found[0][0] ^ 32,)), answer)
        packet = b"$" + escaped + b"#" + (checksum or b"%02x" % (sum(escaped) % 256))
        if self.fault is not None:
            instead = self.fault(request, packet)
            if instead is not None:
                return instead
        return packet

    # --- answers ---

    def answer(self, request: bytes) -> bytes | None:  # noqa: PLR0911 - one a request
        """Answer ``request``: empty if the stub does not know it, None for no answer."""
        if self.dialect is Dialect.DEBUGSERVER:
            found = self._extended(request)
            if found is not None:
                return found
        match request[:1]:
            case b"?":
                return b"T11thread:%x;" % self.snapshot.threads[0].info.id
            case b"g":
                return b"".join(self._values(self._selected(request)))
            case b"m":
                data = self._read(*_addresses(request))
                return data.hex().encode() if data else b"E03"
            case b"H":
                self.selected = int(request[2:] or b"0", 16)
                known = self.selected in {thread.info.id for thread in self.snapshot.threads}
                return b"OK" if known else b"E01"
            case b"D":
                return b"OK"
            case b"v" if request.startswith(b"vCont;"):
                return None
            case _:
                return self._query(request)
        return b""

    def _query(self, request: bytes) -> bytes:  # noqa: PLR0911 - one a request
        if request.startswith(b"qSupported"):
            packing = ";SupportedCompressions=zlib-deflate" if self.compresses else ""
            many = ";MultiMemRead+" if self.dialect is Dialect.DEBUGSERVER else ""
            said = f"PacketSize={self.packet_size:x};qXfer:features:read+{many}{packing}"
            return said.encode()
        if request.startswith(b"qXfer:features:read:target.xml:"):
            return self._part(request, self._description())
        if request == b"qfThreadInfo":
            return b"m" + b",".join(b"%x" % thread.info.id for thread in self.snapshot.threads)
        if request == b"qsThreadInfo":
            return b"l"
        if request == b"qC":
            return b"QC%x" % self.snapshot.threads[0].info.id
        if request == b"qAttached":
            return self.attached
        return b""

    def _extended(self, request: bytes) -> bytes | None:  # noqa: C901, PLR0911 - one a request
        name = request.partition(b":")[0]
        match name:
            case b"QStartNoAckMode":
                self.acknowledges = False
                return b"OK"
            case b"QThreadSuffixSupported" | b"QEnableCompression":
                return b"OK"
            case b"qHostInfo":
                return (
                    b"cputype:16777228;cpusubtype:2;addressing_bits:47;ostype:macosx;vendor:apple;"
                    b"endian:little;ptrsize:8;vm-page-size:16384;"
                )
            case b"qProcessInfo":
                pid = self.snapshot.process.pid or 1
                return (
                    b"pid:%x;cputype:100000c;cpusubtype:2;ptrsize:8;ostype:macosx;vendor:apple;"
                    b"endian:little;" % pid
                )
            case b"jThreadsInfo":
                return self._threads()
            case b"jGetLoadedDynamicLibrariesInfos":
                return self._libraries()
            case b"jGetSharedCacheInfo":
                return _shared_cache(self.snapshot)
            case b"qMemoryRegionInfo":
                return self._region(int(request[18:], 16))
            case b"MultiMemRead":
                return self._many(request)
            case _:
                pass
        if request[:1] == b"x":
            address, size = _addresses(request)
            return (self._read(address, size) or b"E08") if size else b"OK"
        return None

    def _threads(self) -> bytes:
        rows = [
            {
                "tid": thread.info.id,
                "name": thread.info.name or "",
                "qname": thread.info.queue or "",
                "associated_with_dispatch_queue": thread.info.queue is not None,
                "registers": {
                    str(number): value.decode() for number, value in enumerate(self._values(thread))
                },
            }
            for thread in self.snapshot.threads
        ]
        return json.dumps(rows).encode()

    def _libraries(self) -> bytes:
        images = [
            {
                "load_address": image.load_address,
                "pathname": image.path,
                "uuid": str(image.uuid).upper(),
                "mach_header": {
                    "magic": 0xFEEDFACF,
                    "cputype": _CPU_TYPE_ARM64,
                    "cpusubtype": 0,
                    "filetype": 2 if image.path == self.snapshot.process.path else 6,
                },
                "segments": [
                    {"name": "__PAGEZERO", "vmaddr": 0, "vmsize": 1 << 32},
                    {"name": "__TEXT", "vmaddr": image.header_svma, "vmsize": image.size},
                ],
            }
            for image in self.snapshot.images
        ]
        return json.dumps({"images": images}).encode()

    def _description(self) -> bytes:
        rows = "".join(
            f'<reg name="{name}" bitsize="64" regnum="{number}"'
            + (f' generic="{_GENERIC[name]}"' if name in _GENERIC else "")
            + "/>"
            for number, name in enumerate(_NAMES)
        )
        return (
            "<?xml version='1.0'?><!DOCTYPE target SYSTEM 'gdb-target.dtd'><target>"
            f"<architecture>aarch64</architecture><feature name='core'>{rows}</feature></target>"
        ).encode()

    def _part(self, request: bytes, document: bytes) -> bytes:
        at, size = (int(word, 16) for word in request.rpartition(b":")[2].split(b","))
        part = document[at : at + size]
        return (b"l" if at + size >= len(document) else b"m") + part

    def _region(self, address: int) -> bytes:
        for thread in self.snapshot.threads:
            if thread.stack.start <= address < thread.stack.end:
                return b"start:%x;size:%x;permissions:rw;type:stack;" % (
                    thread.stack.start,
                    len(thread.stack.data),
                )
        return b"start:%x;size:1000;" % (address & ~0xFFF)

    def _many(self, request: bytes) -> bytes:
        parts = [
            self._read(int(found[1], 16), int(found[2], 16))
            for found in _RANGE.finditer(request.partition(b"ranges:")[2])
        ]
        return b",".join(b"%x" % len(part) for part in parts) + b";" + b"".join(parts)

    def _selected(self, request: bytes) -> ThreadSnapshot:
        number = int(request.partition(b"thread:")[2].rstrip(b";") or b"0", 16) or self.selected
        threads = self.snapshot.threads
        return next((thread for thread in threads if thread.info.id == number), threads[0])

    def _values(self, thread: ThreadSnapshot) -> list[bytes]:
        known = [*(thread.registers.get(number) for number in range(32)), thread.registers.pc]
        return [(value or 0).to_bytes(8, "little").hex().encode() for value in known]

    def _read(self, address: int, size: int) -> bytes:
        """Read as much as possible from ``address`` on."""
        if self.memory is None:
            stacks = RegionMemory(thread.stack for thread in self.snapshot.threads)
            self.memory = LayeredMemory((stacks, self.snapshot.memory))
        memory, data = self.memory, bytearray()
        while len(data) < size:
            step = min(size - len(data), 4096 - (address + len(data)) % 4096)
            while step:
                try:
                    data += memory.read(Avma(address + len(data)), step)
                    break
                except MemoryReadError:
                    step //= 2
            if not step:
                break
        return bytes(data)


def _shared_cache(snapshot: Snapshot) -> bytes:
    cache = snapshot.shared_cache
    if cache is None:
        return b'{"no_shared_cache":true}'
    return json.dumps(
        {
            "shared_cache_base_address": cache.base,
            "shared_cache_uuid": str(cache.uuid).upper(),
            "no_shared_cache": False,
            "shared_cache_private_cache": False,
        }
    ).encode()


def _addresses(request: bytes) -> tuple[int, int]:
    first, _, second = request[1:].partition(b",")
    return int(first, 16), int(second, 16)


def _unescaped(data: bytes) -> bytes:
    return re.sub(rb"\}(.)", lambda found: bytes((found[1][0] ^ 32,)), data, flags=re.DOTALL)


def _without_noise(held: bytes) -> tuple[bytes, bool]:
    """Without acknowledgements and interrupts before the next packet; whether one was refused."""
    start = held.find(b"$")
    noise = held if start < 0 else held[:start]
    return held[len(noise) :], b"-" in noise
