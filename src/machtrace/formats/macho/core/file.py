"""A core of a Darwin process (``MH_CORE``): its memory, its threads, its notes.

A core is a Mach-O whose segments are ranges of the process's memory and whose thread commands have
registers (xnu: ``bsd/kern/kern_core.c``, ``osfmk/kdp/user_core.c``; lldb: ``process save-core``).
Cores are often truncated or malformed in parts: the rest is read, and the errors are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TypeVar

from machtrace.errors import CoreFileError, FormatError
from machtrace.formats.macho.core.notes import (
    ADDRESSABLE_BITS,
    ALL_IMAGE_INFOS,
    LOAD_BINARY,
    MAIN_BINARY,
    PROCESS_METADATA,
    AddressableBits,
    MainBinary,
    Note,
    NotedImage,
    note_payload,
    parse_addressable_bits,
    parse_image_infos,
    parse_load_binary,
    parse_main_binary,
    parse_note,
)
from machtrace.formats.macho.header import FileType, MachHeader, parse_header
from machtrace.formats.macho.load_commands import LC_NOTE, LC_THREAD, LC_UNIXTHREAD, LoadCommand
from machtrace.formats.macho.segments import SEGMENT_COMMANDS, parse_segment
from machtrace.formats.macho.thread_state import ThreadState, parse_thread_state
from machtrace.frozen import dataclass
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.core_memory import CoreMemory, CoreSegment, map_memory
from machtrace.model.process_metadata import ProcessMetadata, metadata_of_json


def read_memory(
    commands: Sequence[LoadCommand], data: memoryview, source: str, problems: list[FormatError]
) -> CoreMemory:
    """Map the segments that ``commands`` state; see :func:`map_memory`."""

    def segments() -> Iterator[CoreSegment]:
        for command in commands:
            try:
                segment = parse_segment(command, source)
            except FormatError as error:
                problems.append(error)
                continue
            yield CoreSegment(
                segment.vmaddr,
                min(segment.filesize, segment.vmsize),
                segment.fileoff,
                segment.is_executable,
                command.offset,
            )

    return map_memory(segments(), data, source, problems)


def parse_process_metadata(file: memoryview, note: Note, source: str) -> ProcessMetadata:
    """Parse the "process metadata" note of ``file``, the whole core.

    Raises:
        CoreFileError: it is truncated, or not a JSON object.
    """
    metadata = metadata_of_json(bytes(note_payload(file, note, source)).rstrip(b"\0"))
    if metadata is None:
        raise CoreFileError(
            f"note {note.owner!r} is no JSON object", source=source, offset=note.offset
        )
    return metadata


_COMMAND_HEADER_SIZE = 8
_KERNEL_HALF = 1 << 63
_MIN_ADDRESS_BITS = 39
"""The minimum address bits of 64-bit Apple devices (iOS: 39, macOS: 47)."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CoreThread:
    """One thread command."""

    index: int
    """1-based, in the core's order."""
    state: ThreadState | FormatError
    """The registers, or the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFile:
    """A core, as far as it is readable."""

    source: str
    """The name in errors."""
    arch: Arch
    cputype: int
    """The header's ``CPU_TYPE_`` constant."""
    memory: CoreMemory
    threads: tuple[CoreThread, ...]
    pointer_mask: PacMask
    """The mask of "process metadata" or "addrable bits", else as wide as the captured addresses
    need."""
    metadata: ProcessMetadata
    noted_images: tuple[NotedImage, ...] = ()
    main_binary: MainBinary | None = None
    problems: tuple[FormatError, ...] = ()
    """Errors, except those of threads."""


@dataclass(slots=True)
class _Parts:
    """The load commands of a core, by kind."""

    segments: list[LoadCommand] = field(default_factory=list)
    threads: list[LoadCommand] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def parse_core(data: memoryview, source: str) -> CoreFile:
    """Read a core; its memory is only mapped.

    Raises:
        MachOError: ``data`` is not a Mach-O, or its header is truncated.
        CoreFileError: it is a Mach-O but not a core, or its architecture is not supported.
    """
    header = parse_header(data, source)
    arch = header.arch
    if header.filetype is not FileType.CORE:
        raise CoreFileError(
            f"a Mach-O of type {header.filetype.name.lower()}, not a core",
            source=source,
            offset=12,
            remedy="give a core; machtrace image describes other Mach-O files",
        )
    if arch is None or not header.little_endian:
        raise CoreFileError(
            f"stacks of {header.arch_name} cannot be walked",
            source=source,
            offset=4,
            remedy="give a core of an arm64, x86_64, arm or i386 process",
        )
    problems: list[FormatError] = []
    parts = _sort(_commands(header, data, source, problems), source, problems)
    if not parts.threads:
        problems.append(CoreFileError("a core without threads", source=source, offset=header.size))
    memory = read_memory(parts.segments, data, source, problems)
    notes = _NoteReader(data, source, parts.notes, problems)
    metadata = notes.first(PROCESS_METADATA, parse_process_metadata) or ProcessMetadata()
    bits = notes.first(ADDRESSABLE_BITS, parse_addressable_bits)
    mask = (
        _pointer_mask(arch, bits, memory)
        if metadata.pointer_mask is None
        else PacMask(metadata.pointer_mask)
    )
    threads = tuple(
        CoreThread(index, _thread_state(command, arch, mask, source))
        for index, command in enumerate(parts.threads, 1)
    )
    return CoreFile(
        source=source,
        arch=_arch_of_threads(threads, arch),
        cputype=header.cputype,
        memory=memory,
        threads=threads,
        pointer_mask=mask,
        metadata=metadata,
        noted_images=notes.images(),
        main_binary=notes.first(MAIN_BINARY, parse_main_binary),
        problems=tuple(problems),
    )


def _commands(
    header: MachHeader, data: memoryview, source: str, problems: list[FormatError]
) -> Iterator[LoadCommand]:
    """Yield commands up to the end of the file, which may truncate the last one."""
    claimed = header.size + header.sizeofcmds
    end = min(claimed, len(data))
    at = header.size
    for index in range(header.ncmds):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if at + _COMMAND_HEADER_SIZE > end:
            problems.append(
                CoreFileError(
                    f"the file ends after {index} of {header.ncmds} load commands, "
                    f"{claimed - len(data)} bytes early"
                    if claimed > len(data)
                    else f"{header.ncmds - index} of {header.ncmds} load commands do not fit in "
                    f"the {header.sizeofcmds} bytes they are given",
                    source=source,
                    offset=end,
                )
            )
            return
        if size < _COMMAND_HEADER_SIZE or size % 4:
            problems.append(
                CoreFileError(
                    f"load command {index} of {header.ncmds} has the size {size}; "
                    "those behind it cannot be found",
                    source=source,
                    offset=at,
                )
            )
            return
        cmd = int.from_bytes(data[at : at + 4], "little")
        yield LoadCommand(cmd, at, data[at : min(at + size, end)])
        at += size


def _sort(commands: Iterator[LoadCommand], source: str, problems: list[FormatError]) -> _Parts:
    parts = _Parts()
    for command in commands:
        if command.cmd in SEGMENT_COMMANDS:
            parts.segments.append(command)
        elif command.cmd in (LC_THREAD, LC_UNIXTHREAD):
            parts.threads.append(command)
        elif command.cmd == LC_NOTE:
            try:
                parts.notes.append(parse_note(command, source))
            except CoreFileError as error:
                problems.append(error)
    return parts


def _thread_state(
    command: LoadCommand, arch: Arch, mask: PacMask, source: str
) -> ThreadState | FormatError:
    try:
        return parse_thread_state(
            command.data, arch, mask=mask, source=source, offset=command.offset
        )
    except FormatError as error:
        return error


def _arch_of_threads(threads: tuple[CoreThread, ...], arch: Arch) -> Arch:
    """Return the core's architecture: arm64_32 for one marked arm with 64-bit registers."""
    for thread in threads:
        if isinstance(thread.state, ThreadState):
            return thread.state.registers.arch
    return arch


def _pointer_mask(arch: Arch, bits: AddressableBits | None, memory: CoreMemory) -> PacMask:
    if not arch.is_arm64 or arch.pointer_size == 4:  # noqa: PLR2004 (bytes)
        return PacMask()
    highest = memory.highest_address
    if highest >= _KERNEL_HALF:
        # The upper bits of kernel addresses are ones, which a mask would clear.
        return PacMask()
    if bits is not None:
        return PacMask.of_width(bits.low)
    return PacMask.of_width(max(_MIN_ADDRESS_BITS, highest.bit_length()))


class _NoteReader:
    """Reads notes by owner; a malformed one becomes a problem."""

    def __init__(
        self, data: memoryview, source: str, notes: list[Note], problems: list[FormatError]
    ) -> None:
        self._data = data
        self._source = source
        self._notes = notes
        self._problems = problems

    def first(self, owner: str, parse: Callable[[memoryview, Note, str], _T]) -> _T | None:
        """Parse the first note of ``owner``; writers write one."""
        for note in self._notes:
            if note.owner == owner:
                return self._read(note, parse)
        return None

    def images(self) -> tuple[NotedImage, ...]:
        """Return the images of "all image infos", then one for each "load binary"."""
        images: list[NotedImage] = []
        listed, problems = self.first(ALL_IMAGE_INFOS, parse_image_infos) or ((), ())
        images.extend(listed)
        self._problems.extend(problems)
        for note in self._notes:
            if note.owner == LOAD_BINARY:
                image = self._read(note, parse_load_binary)
                if image is not None:
                    images.append(image)
        return tuple(images)

    def _read(self, note: Note, parse: Callable[[memoryview, Note, str], _T]) -> _T | None:
        try:
            return parse(self._data, note, self._source)
        except FormatError as error:
            self._problems.append(error)
            return None
