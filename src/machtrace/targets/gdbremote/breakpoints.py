"""Breakpoints at functions' first instructions: every call, with one round trip.

When a thread calls a function, the stub reports its registers. The process continues from a copy of
the function's first instruction (:mod:`machtrace.targets.gdbremote.breakpoints`), so that no
breakpoint is removed and no call of another thread is missed. Reading the stack, setting the
program counter and continuing are sent at once, or with ``waits`` in two round trips, so that more
of the stack can be read while the thread is where it called. Where several threads are stopped at
breakpoints at once, each is reported at a stop of its own: the others' instructions are executed
again, and stop again. Where a stub cannot set one register or has no
room for a copy, or the instruction uses its own address, the thread alone makes one step without
the breakpoint: two round trips. gdbserver is such a stub; it can stop a process between two calls
only if that leads a process group, since it sends SIGINT to the group.

Sources: *Debugging with GDB*, "Packets" (``Z0``, ``P``, ``vCont``); lldb's
``docs/resources/lldbgdbremote.md``, "_M" and "QThreadSuffixSupported"; debugserver's
``RNBRemote.cpp`` for what a stop reply has.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from machtrace.errors import MachtraceError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from machtrace.model.registers import RegisterSet
from machtrace.targets.gdbremote.connection import StubConnection
from machtrace.targets.gdbremote.memory import Piece, RemoteMemory
from machtrace.targets.gdbremote.registers import RegisterReader, register_bytes
from machtrace.targets.gdbremote.replies import StopReply, ThreadName, is_error, refused
from machtrace.targets.gdbremote.threads import list_threads, read_registers
from machtrace.targets.shared.paged_memory import PAGE
from machtrace.unwinder.arch.x86.encoding import MAX_LENGTH, Encoding, parse

# --- Copies of first instructions, to continue from a breakpoint without removing it ---
#
# A copy is executed at another address and then jumps behind the original. It is made only of an
# instruction that means the same at any address.
#
# Sources: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2, appendix A;
# *Arm Architecture Reference Manual for A-profile*, C4.1 "A64 instruction set encoding".

COPY_SIZE = 32
"""Bytes that a copy has room for."""
CODE_SIZE = MAX_LENGTH
"""Bytes of a function that determine a copy."""
_WORD = 4
_LDR_X16_8 = (0x58000050).to_bytes(_WORD, "little")
_RET_X16 = (0xD65F0200).to_bytes(_WORD, "little")
"""Unlike ``br``, it may land where branch targets are checked."""
_JMP_RIP = b"\xff\x25\x00\x00\x00\x00"
_A64_RELATIVE = (
    (0x1F000000, 0x10000000),  # adr, adrp
    (0x7C000000, 0x14000000),  # b, bl
    (0xFF000000, 0x54000000),  # b.cond, bc.cond
    (0x7E000000, 0x34000000),  # cbz, cbnz
    (0x7E000000, 0x36000000),  # tbz, tbnz
    (0x3B000000, 0x18000000),  # ldr (literal), prfm (literal)
)
"""Masks and values of instructions that use their own address."""
_X86_RELATIVE = frozenset((*range(0x70, 0x80), *range(0xE0, 0xE4), 0xC7, 0xCC, 0xE8, 0xE9, 0xEB))
"""Conditional jumps, loops, int3, call and jmp; C7 may begin a transaction."""
_X86_RELATIVE_0F = frozenset(range(0x80, 0x90))
_GROUP_FIVE, _CALLS = 0xFF, (2, 3)
"""Calls store the address behind them."""
_A64_BL_REGISTER = (0xFE000000, 0xD6000000)


def displaced_copy(arch: Arch, code: bytes, address: int) -> bytes | None:
    """Return code that does what the first instruction of ``code`` does, and continues behind it.

    On arm64 the jump back changes x16, which every call may change.

    Args:
        arch: of the code; others than arm64 and x86-64 have no copies.
        code: the function's first bytes, :data:`CODE_SIZE` of them at most.
        address: theirs.

    Returns:
        None if the instruction uses its own address, or is invalid.
    """
    if arch.is_arm64:
        return _copy_a64(code, address)
    return _copy_x86(code, address) if arch is Arch.X86_64 else None


def _copy_a64(code: bytes, address: int) -> bytes | None:
    if len(code) < _WORD:
        return None
    word = int.from_bytes(code[:_WORD], "little")
    transfers = word & _A64_BL_REGISTER[0] == _A64_BL_REGISTER[1]
    if transfers or any(word & mask == value for mask, value in _A64_RELATIVE):
        return None
    target = (address + _WORD).to_bytes(8, "little")
    return code[:_WORD] + _LDR_X16_8 + _RET_X16 + target


def _copy_x86(code: bytes, address: int) -> bytes | None:
    parsed = parse(code, 0)
    if parsed is None or _uses_rip(parsed):
        return None
    target = (address + parsed.length).to_bytes(8, "little")
    return code[: parsed.length] + _JMP_RIP + target


def _uses_rip(parsed: Encoding) -> bool:
    """Whether an instruction uses its own address, or may."""
    memory = parsed.memory
    if memory is not None and memory.base is None and not memory.has_index:
        return True
    if parsed.is_vector:
        return False
    if parsed.opcode_map == 0:
        is_indirect_call = parsed.opcode == _GROUP_FIVE and parsed.reg & 7 in _CALLS
        return parsed.opcode in _X86_RELATIVE or is_indirect_call
    return parsed.opcode_map == 1 and parsed.opcode in _X86_RELATIVE_0F


# --- Breakpoints at functions' first instructions: every call, with one round trip ---

_POINTER = 8
_SIGTRAP = 5
_CONTINUE = b"vCont;c"
_HEX = frozenset("0123456789abcdefABCDEF")
_NUMBER_DIGITS = 4


@dataclass(frozen=True, slots=True)
class CallStop:
    """A thread at the first instruction of a function with a breakpoint."""

    thread: int
    at_ns: int
    """When the stop was reported, by the monotonic clock."""
    registers: RegisterSet
    """All general registers, or, of gdbserver, pc, sp and the frame pointer."""
    memory: tuple[MemoryRegion, ...]
    """Frame records that the stub reported, and the stack from sp on, as much as was requested."""
    has_more: bool = False
    """Whether more of the stack is read if :data:`OnCall` returns how much is needed."""


OnCall: TypeAlias = Callable[[CallStop], int | None]
"""Takes a call; returns how many bytes of the stack it needs, if more than it got."""


@dataclass(slots=True)
class _Breakpoint:
    """A breakpoint, and the address of its instruction's copy; None without one."""

    address: Avma
    copy: Avma | None
    calls: int = 0
    steps: int = 0
    on_hit: Callable[[], None] | None = None
    """Called while the process is stopped, instead of a report of the call."""


class CallBreakpoints:
    """Breakpoints of a stub's process, which is stopped when they are set.

    Args:
        stub: its connection; the process runs only in :meth:`run`.
        memory: reads it.
        stack_bytes: how much of each stack is read with a stop, or a function of the thread. On
            x86-64 it is 8 at least, the return address.
        waits: whether the process continues only after a call was taken, which may then read more.
    """

    def __init__(
        self,
        stub: StubConnection,
        memory: RemoteMemory,
        *,
        stack_bytes: int | Callable[[int], int] = 0,
        waits: bool = False,
    ) -> None:
        self._stub = stub
        self._session = stub.session
        self._memory = memory
        self._arch = stub.host.arch
        self._reader = RegisterReader.of(stub.table, self._arch)
        self._stack_bytes = stack_bytes
        self._least = 0 if self._arch.is_arm64 else _POINTER
        self._waits = waits
        self._kind = 4 if self._arch.is_arm64 else 1
        self._breakpoints: dict[int, _Breakpoint] = {}
        self._past_calls: Counter[Avma] = Counter()
        self._past_steps = 0
        self._room: list[tuple[int, int]] = []
        """Starts and ends of memory with copies."""
        self._stepped: _Breakpoint | None = None
        """The breakpoint that is removed while a thread makes a step."""
        self._mask = stub.host.pointer_mask or stub.host.usual_mask
        self.stops = 0
        """How often the process has stopped."""
        self.round_trips = 0
        """How often the stub was waited for while the process was to run."""

    @property
    def calls(self) -> Counter[Avma]:
        """The number of calls of each function."""
        now = {breakpoint_.address: breakpoint_.calls for breakpoint_ in self._breakpoints.values()}
        return self._past_calls + Counter(now)

    @property
    def steps(self) -> int:
        """How many calls were continued by a single step, which takes two round trips."""
        return self._past_steps + sum(
            breakpoint_.steps for breakpoint_ in self._breakpoints.values()
        )

    def insert(
        self, addresses: Iterable[Avma], on_hit: Callable[[], None] | None = None
    ) -> dict[Avma, MachtraceError]:
        """Set breakpoints while the process is stopped.

        Args:
            addresses: AVMAs of functions' first instructions.
            on_hit: called at each call while the process is stopped, and may set more breakpoints;
                without it calls are reported by :meth:`run`.

        Returns:
            The errors of those that cannot be set.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub makes no sense.
        """
        wanted = [
            address for address in dict.fromkeys(addresses) if address not in self._breakpoints
        ]
        codes = self._memory.read_many([(each, CODE_SIZE) for each in wanted])
        copies = self._write_copies(wanted, codes)
        requests = [b"Z0,%x,%x" % (each, self._kind) for each in wanted]
        errors: dict[Avma, MachtraceError] = {}
        for address, request, reply in zip(
            wanted, requests, self._session.ask_all(requests), strict=True
        ):
            if reply == b"OK":
                self._breakpoints[address] = _Breakpoint(
                    address, copies.get(address), on_hit=on_hit
                )
            else:
                errors[address] = refused(f"no breakpoint at {address:#x}", request, reply)
        return errors

    def _write_copies(self, addresses: Sequence[Avma], codes: Sequence[bytes]) -> dict[int, Avma]:
        """Write copies of first instructions to the process; return their addresses."""
        possible = (
            (address, displaced_copy(self._arch, code, address))
            for address, code in zip(addresses, codes, strict=True)
        )
        copies = [(address, copy) for address, copy in possible if copy is not None]
        if not copies or not self._stub.features.has_thread_suffix:
            return {}  # stubs that know it set single registers, and allocate
        request = b"_M%x,rx" % (COPY_SIZE * len(copies))
        reply = self._session.ask(request)
        try:
            start = int(reply, 16)
        except ValueError:
            return {}
        if is_error(reply) or not start:
            return {}
        self._room.append((start, start + COPY_SIZE * len(copies)))
        places = [start + COPY_SIZE * number for number in range(len(copies))]
        writes = [
            b"M%x,%x:%s" % (place, len(copy), copy.hex().encode())
            for place, (_, copy) in zip(places, copies, strict=True)
        ]
        written = self._session.ask_all(writes)
        return {
            address: Avma(place)
            for place, (address, _), answer in zip(places, copies, written, strict=True)
            if answer == b"OK"
        }

    # --- calls ---

    def run(
        self,
        on_call: OnCall,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        patience: float = 0.1,
    ) -> None:
        """Let the process run, and report calls, until ``should_stop`` returns True.

        The process is stopped afterwards.

        Args:
            on_call: called for each, while the process runs; with ``waits`` before it runs, and
                again if it needs more of the stack.
            should_stop: called after each call, and when none came for ``patience`` seconds.
            patience: see there.

        Raises:
            TargetGoneError: the process has exited.
            ConnectionLostError, RemoteProtocolError: the stub makes no sense.
        """
        requests: list[bytes] = []
        resume = b""
        take: Callable[[Sequence[bytes]], None] = _ignore
        before = self._session.round_trips
        try:
            while True:
                replies = self._stub.proceed(requests, resume)
                take(replies)
                stop = self._stub.next_stop(patience, should_stop)
                if stop is None:
                    return
                self.stops += 1
                requests, resume, take = self._answer(stop, on_call)
        finally:
            self.round_trips += self._session.round_trips - before

    def _answer(
        self, stop: StopReply, on_call: OnCall
    ) -> tuple[list[bytes], bytes, Callable[[Sequence[bytes]], None]]:
        """Return requests, the packet that continues, and what takes the requests' replies."""
        if self._stepped is not None:
            stepped, self._stepped = self._stepped, None
            return [b"Z0,%x,%x" % (stepped.address, self._kind)], b"", _ignore
        at_ns = time.monotonic_ns()
        values = reported_registers(stop)
        registers = self._reader.of_values(values, self._mask)
        hit = None if registers is None else self._breakpoints.get(registers.pc)
        if stop.signal != _SIGTRAP or hit is None or registers is None or stop.thread is None:
            return [], b"", _ignore
        thread = stop.thread
        hit.calls += 1
        reads: list[bytes] = []
        take: Callable[[Sequence[bytes]], None] = _ignore
        if hit.on_hit is not None:
            hit.on_hit()
        elif self._waits:
            self._report(stop, thread.id, at_ns, registers, on_call)
        else:
            pieces = list(self._pieces(registers.sp or 0, self._size(thread.id)))
            reads = [self._memory.request(piece) for piece in pieces]

            def take(replies: Sequence[bytes]) -> None:
                regions = self._regions(pieces, reads, replies)
                on_call(CallStop(thread.id, at_ns, registers, (*stop.memory, *regions)))

        return *self._onward(hit, thread, reads), take

    def _onward(
        self, hit: _Breakpoint, thread: ThreadName, reads: Sequence[bytes]
    ) -> tuple[list[bytes], bytes]:
        """Return requests, and the packet by which a thread continues behind a breakpoint."""
        if hit.copy is not None:
            place = hit.copy.to_bytes(self._reader.pc.size, "little").hex().encode()
            move = b"P%x=%s;thread:%s;" % (self._reader.pc.number, place, thread.text.encode())
            return [*reads, move], _CONTINUE
        hit.steps += 1
        self._stepped = hit
        remove = b"z0,%x,%x" % (hit.address, self._kind)
        return [*reads, remove], b"vCont;s:%s" % thread.text.encode()

    def _report(
        self,
        stop: StopReply,
        thread: int,
        at_ns: int,
        registers: RegisterSet,
        on_call: OnCall,
    ) -> None:
        """Report a call with as much of the stack as it needs, while the process is stopped."""
        sp, size = registers.sp or 0, self._size(thread)
        pieces = list(self._pieces(sp, size))
        reads = [self._memory.request(piece) for piece in pieces]
        replies = self._session.ask_all(reads)
        data = b"".join(part.data for part in self._regions(pieces, reads, replies))
        has_more = len(data) >= size
        while True:
            memory = (*stop.memory, MemoryRegion(Avma(sp), data))
            needed = on_call(CallStop(thread, at_ns, registers, memory, has_more))
            if not has_more or needed is None or needed <= len(data):
                return
            (more,) = self._memory.read_many([(sp + len(data), needed - len(data))])
            data += more
            has_more = len(data) >= needed

    def _size(self, thread: int) -> int:
        size = self._stack_bytes
        return max(self._least, size if isinstance(size, int) else size(thread))

    def _regions(
        self, pieces: Sequence[Piece], reads: Sequence[bytes], replies: Sequence[bytes]
    ) -> list[MemoryRegion]:
        """Return what was read of a stack, up to what cannot be read."""
        regions: list[MemoryRegion] = []
        for piece, request, reply in zip(pieces, reads, replies, strict=False):
            data = self._memory.data(piece, request, reply)
            if data:
                regions.append(MemoryRegion(Avma(piece.address), data))
            if len(data) < piece.size:
                break
        return regions

    @staticmethod
    def _pieces(sp: int, size: int) -> Iterator[Piece]:
        """Yield the parts of a stack that are read, none with a page of another."""
        at, end = sp, sp + size
        while at < end:
            upto = min(end, (at // PAGE + 1) * PAGE)
            yield Piece(at, upto - at)
            at = upto

    def remove(self, addresses: Iterable[Avma]) -> None:
        """Remove some breakpoints while the process is stopped: their code is no longer there.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub makes no sense.
        """
        gone = [
            self._breakpoints.pop(address) for address in addresses if address in self._breakpoints
        ]
        self._past_steps += sum(each.steps for each in gone)
        self._past_calls.update({each.address: each.calls for each in gone})
        self._session.ask_all([b"z0,%x,%x" % (each.address, self._kind) for each in gone])

    def remove_all(self) -> None:
        """Remove all breakpoints while the process is stopped.

        Copies are freed unless a thread is in one.

        Raises:
            ConnectionLostError, RemoteProtocolError: the stub makes no sense.
        """
        self.remove([breakpoint_.address for breakpoint_ in self._breakpoints.values()])
        threads = list_threads(self._session, self._stub.features)
        values, _ = read_registers(self._session, self._stub.features, self._reader, threads)
        pcs = [self._pc(value) for value in values]
        for start, end in self._room:
            if all(pc is not None and not start <= pc < end for pc in pcs):
                self._session.ask(b"_m%x" % start)
        self._room.clear()

    def _pc(self, values: Mapping[int, bytes] | MachtraceError) -> int | None:
        if isinstance(values, MachtraceError):
            return None
        registers = self._reader.of_values(values, self._mask)
        return None if registers is None else registers.pc


def _ignore(_: Sequence[bytes]) -> None:
    pass


def reported_registers(stop: StopReply) -> dict[int, bytes]:
    """Return the registers of a stop reply, by the stub's numbers."""
    return {
        int(key, 16): register_bytes(value)
        for key, value in stop.details.items()
        if 0 < len(key) <= _NUMBER_DIGITS and _HEX.issuperset(key)
    }
