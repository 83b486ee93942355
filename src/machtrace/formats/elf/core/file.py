"""An ELF core: the notes of its process and threads, and its memory.

Cores are written by the kernel (``fs/binfmt_elf.c``), by gdb's ``gcore``, by emulators and by
:mod:`machtrace.formats.elf.core.writer`. In all of them each thread has a note, followed by its
further notes up to the next thread's; the process's are anywhere among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

from machtrace.errors import CoreFileError, ElfError, FormatError
from machtrace.formats.elf.core import notes
from machtrace.formats.elf.core.notes import (
    MACHTRACE,
    NT_MACHTRACE,
    PAC_MASK,
    read_file_mappings,
    read_process_status,
    read_signal_information,
    read_thread_status,
)
from machtrace.formats.elf.core.registers import RegisterLayout, layout_for, read_registers
from machtrace.formats.elf.headers import ElfHeader, first_section, read_header, read_notes
from machtrace.formats.elf.structs import PF_R, PF_W, PF_X, PN_XNUM, PT_LOAD, PT_NOTE, ElfType
from machtrace.frozen import dataclass
from machtrace.model.address import PacMask
from machtrace.model.cause import Cause, linux_cause
from machtrace.model.core_memory import CoreMemory, CoreSegment, map_memory
from machtrace.model.process_metadata import NotedThread, ProcessMetadata, metadata_of_json
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import LinuxFacts, ThreadId

_MAX_SEGMENTS = 1 << 18
"""Linux's default limit is 65,530 mappings per process (``vm.max_map_count``)."""
_MAX_PROBLEMS = 64
"""Malformed notes that are reported individually."""
_ADDRESS_LIMIT = 1 << 64
_USER_END = 1 << 63
"""The start of the kernel's half, in which x86-64 cores have its vsyscall page."""
_MIN_ADDRESS_BITS = 39
"""The least that Linux can be built with, on arm64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfCoreThread:
    """One thread's notes."""

    index: int
    """1-based, in the core's order."""
    id: ThreadId
    registers: RegisterSet
    native_registers: bytes
    """The bytes of ``pr_reg``."""
    signal: int
    """The signal that ended the process, or stopped the thread; 0 for none."""
    cause: Cause | None = None
    """The signal in the thread's own ``NT_SIGINFO``; of the first thread, else its number."""


@dataclass(frozen=True, slots=True)
class MappedRange:
    """A range of the process's memory, whether or not the core has its bytes."""

    start: int
    end: int
    permissions: str
    """Some of ``rwx``; empty for a range that can only be reserved."""

    @property
    def is_executable(self) -> bool:
        """Whether code in it can run."""
        return "x" in self.permissions


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfCore:
    """A core, parsed as far as possible."""

    source: str
    """Its name in errors."""
    header: ElfHeader
    memory: CoreMemory
    mapped: tuple[MappedRange, ...]
    """By address."""
    threads: tuple[ElfCoreThread, ...]
    facts: LinuxFacts
    pid: int | None
    pointer_mask: PacMask
    metadata: ProcessMetadata | None
    """None if another writer wrote the core."""
    problems: tuple[FormatError, ...] = ()
    """The parts that could not be parsed."""

    @property
    def noted_threads(self) -> tuple[NotedThread, ...]:
        """The metadata's facts of each thread."""
        noted = () if self.metadata is None else self.metadata.threads
        return noted if len(noted) == len(self.threads) else (NotedThread(),) * len(self.threads)


def parse_elf_core(data: memoryview, source: str) -> ElfCore:
    """Parse all of a core but its memory, which is only mapped.

    Raises:
        ElfError: ``data`` is no ELF, of an unsupported machine, or cut short in its header.
        CoreFileError: it is an ELF but no core, or of a machine whose stacks cannot be unwound.
    """
    header = read_header(data, source)
    if header.type is not ElfType.CORE:
        raise CoreFileError(
            f"an ELF file of type {header.type.name.lower()}, not a core",
            source=source,
            offset=16,
            remedy="give a core; machtrace image describes other ELF files",
        )
    layout = layout_for(header.arch)
    if layout is None or not header.layout.little_endian:
        order = "" if header.layout.little_endian else "big-endian "
        raise CoreFileError(
            f"stacks of {order}{header.arch.value} Linux processes cannot be unwound",
            source=source,
            offset=18,
            remedy="give a core of an x86_64, i386, arm64 or arm process",
        )
    return _Parser(data, source, header, layout).parse()


@dataclass(slots=True)
class _Parser:
    data: memoryview
    source: str
    header: ElfHeader
    registers: RegisterLayout
    problems: list[FormatError] = field(default_factory=list)
    bad_notes: int = 0
    left: int = 0
    """Bytes of notes that may still be read: headers that refer to the same notes can add up to
    more than the file."""
    threads: list[ElfCoreThread] = field(default_factory=list)
    facts: LinuxFacts = field(default_factory=LinuxFacts)
    pid: int | None = None
    signature_bits: int = 0
    metadata: ProcessMetadata | None = None

    def parse(self) -> ElfCore:
        segments = list(self._segments())
        self.left = len(self.data)
        for kind, _, offset, _, size, _ in segments:
            if kind == PT_NOTE:
                self._read_notes(offset, size)
        if self.bad_notes > _MAX_PROBLEMS:
            self.problems.append(
                CoreFileError(
                    f"{self.bad_notes - _MAX_PROBLEMS} more notes that could not be read",
                    source=self.source,
                    offset=0,
                )
            )
        stated_at = self.header.program_headers_offset
        memory = map_memory(
            (
                CoreSegment(address, size, offset, bool(flags & PF_X), stated_at)
                for kind, flags, offset, address, size, _ in segments
                if kind == PT_LOAD and address + size <= _ADDRESS_LIMIT
            ),
            self.data,
            self.source,
            self.problems,
        )
        mapped = tuple(
            MappedRange(address, address + in_memory, _permissions(flags))
            for kind, flags, _, address, _, in_memory in sorted(segments, key=_address)
            if kind == PT_LOAD and in_memory
        )
        if not self.threads:
            self._problem("a core without threads", 0)
        elif self.threads[0].cause is None and self.threads[0].signal:
            cause = linux_cause(self.threads[0].signal)
            self.threads[0] = replace(self.threads[0], cause=cause)
        return ElfCore(
            source=self.source,
            header=self.header,
            memory=memory,
            mapped=mapped,
            threads=tuple(self.threads),
            facts=replace(self.facts, signal=self._signal()),
            pid=self.pid,
            pointer_mask=self._pointer_mask(mapped),
            metadata=self.metadata,
            problems=tuple(self.problems),
        )

    def _segments(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield type, flags, file offset, address, and size in the file and in memory, of each."""
        header, layout = self.header, self.header.layout.program_header
        count, at = header.program_header_count, header.program_headers_offset
        if count == PN_XNUM:
            try:
                count = first_section(self.data, header, self.source)[7]
            except ElfError as error:
                self.problems.append(error)
        room = max(0, len(self.data) - at) // layout.size
        there = min(count, room, _MAX_SEGMENTS)
        if count > there:
            self._problem(f"{count} program headers, of which {there} can be read", at)
        for fields in layout.iter_unpack(self.data[at : at + there * layout.size]):
            if header.layout.is_64:
                kind, flags, offset, address, _, size, in_memory, _ = fields
            else:
                kind, offset, address, _, size, in_memory, flags, _ = fields
            yield kind, flags, offset, address, size, in_memory

    def _read_notes(self, offset: int, size: int) -> None:
        if offset + size > len(self.data):
            self._problem(
                f"the file is cut off in the notes: {offset + size - len(self.data)} bytes "
                "are missing",
                min(offset, len(self.data)),
            )
        size = min(size, max(0, len(self.data) - offset))
        if size > self.left:
            self._problem("notes that share their bytes", offset)
            return
        self.left -= size
        for note in read_notes(self.data[offset : offset + size], self.header.layout):
            try:
                self._read_note(note.owner, note.type, note.description)
            except FormatError as error:
                self.bad_notes += 1
                if self.bad_notes <= _MAX_PROBLEMS:
                    self.problems.append(error)

    def _read_note(self, owner: bytes, kind: int, data: bytes) -> None:
        layout = self.header.layout
        source = f"{self.source} note {kind:#x}"
        if owner == MACHTRACE.encode():
            if kind == NT_MACHTRACE and self.metadata is None:
                self.metadata = metadata_of_json(data)
                if self.metadata is None:
                    raise CoreFileError("not a JSON object", source=source, offset=0)
            return
        if kind == notes.NT_PRSTATUS:
            status = read_thread_status(data, layout, self.registers, source)
            self.threads.append(
                ElfCoreThread(
                    index=len(self.threads) + 1,
                    id=ThreadId(status.id),
                    registers=read_registers(status.registers, source),
                    native_registers=status.registers,
                    signal=status.signal,
                )
            )
        elif kind == notes.NT_ARM_PAC_MASK and len(data) >= PAC_MASK.size:
            self.signature_bits |= PAC_MASK.unpack_from(data)[1]
        elif kind == notes.NT_SIGINFO and owner == notes.CORE.encode():
            cause = read_signal_information(data, layout, source)
            if self.threads and cause is not None:
                # It follows its thread's status, in the kernel's cores after the process's notes.
                self.threads[-1] = replace(self.threads[-1], cause=cause)
        elif owner != b"GNU":
            self._read_process_note(kind, data, source)

    def _read_process_note(self, kind: int, data: bytes, source: str) -> None:
        layout = self.header.layout
        match kind:
            case notes.NT_PRPSINFO:
                info = read_process_status(data, layout, source)
                self.pid = info.pid
                self.facts = replace(
                    self.facts,
                    name=info.name,
                    arguments=info.arguments,
                    parent=info.parent,
                    user=info.user,
                    group=info.group,
                )
            case notes.NT_AUXV:
                self.facts = replace(self.facts, auxiliary_vector=data)
            case notes.NT_FILE:
                mappings, problem = read_file_mappings(data, layout, source)
                self.facts = replace(self.facts, file_mappings=mappings)
                if problem is not None:
                    raise problem
            case _:
                pass  # floating point, vectors, debug registers: unused by unwinding

    def _signal(self) -> int:
        """Return the signal that ended the process: the first thread received it."""
        cause = self.threads[0].cause if self.threads else None
        return (cause.signal_number or 0) if cause is not None and cause.is_fatal else 0

    def _pointer_mask(self, mapped: tuple[MappedRange, ...]) -> PacMask:
        if self.metadata is not None and self.metadata.pointer_mask is not None:
            return PacMask(self.metadata.pointer_mask)
        if not self.header.arch.is_arm64 or not self.header.layout.is_64:
            return PacMask()
        if self.signature_bits:
            lowest = self.signature_bits & -self.signature_bits
            return PacMask(lowest - 1)
        # The main stack is near the end of the address space.
        highest = max((region.end for region in mapped if region.end <= _USER_END), default=0)
        return PacMask.of_width(max(_MIN_ADDRESS_BITS, max(0, highest - 1).bit_length()))

    def _problem(self, message: str, offset: int) -> None:
        self.problems.append(CoreFileError(message, source=self.source, offset=offset))


def _permissions(flags: int) -> str:
    named = ((PF_R, "r"), (PF_W, "w"), (PF_X, "x"))
    return "".join(letter for bit, letter in named if flags & bit)


def _address(segment: tuple[int, int, int, int, int, int]) -> int:
    return segment[3]
