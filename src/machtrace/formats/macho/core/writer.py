"""Writing a :class:`~machtrace.model.snapshot.Snapshot` as a small Mach-O core.

The contents are those that lldb writes and reads: a thread command for each thread, a segment for
each region of memory, and the notes "all image infos", "process metadata" and "addrable bits". It
has no "main bin spec", which refers to dyld's list of images: the core has its own list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from machtrace.errors import CoreFileError, FormatError, MemoryReadError
from machtrace.formats.macho.contents import MachOMemoryContents
from machtrace.formats.macho.core.notes import (
    ADDRESSABLE_BITS,
    ADDRESSABLE_BITS_3,
    ALL_IMAGE_INFOS,
    IMAGE_ENTRY,
    IMAGE_INFOS_HEADER,
    NOT_KNOWN,
    NOTE_COMMAND,
    PROCESS_METADATA,
    SEGMENT_ADDRESS,
)
from machtrace.formats.macho.header import (
    CPU_TYPE_ARM,
    CPU_TYPE_ARM64,
    CPU_TYPE_ARM64_32,
    CPU_TYPE_I386,
    CPU_TYPE_X86_64,
    FileType,
)
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.load_commands import LC_NOTE, LC_SEGMENT, LC_SEGMENT_64
from machtrace.formats.macho.structs import (
    MACH_HEADER,
    MACH_HEADER_64_SIZE,
    MH_MAGIC,
    MH_MAGIC_64,
    SEGMENT_COMMAND,
    SEGMENT_COMMAND_64,
    VM_PROT_EXECUTE,
    VM_PROT_READ,
    VM_PROT_WRITE,
)
from machtrace.formats.macho.thread_state import parse_thread_state, thread_command
from machtrace.frozen import dataclass
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader, MemoryRegion, without_overlap
from machtrace.model.process_metadata import (
    NotedExtent,
    NotedProblem,
    NotedThread,
    ProcessMetadata,
    json_of_metadata,
)
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ProcessInfo, Snapshot

_EVERY_VERSION = 3
"""The version of "addrable bits" that every lldb reads."""
_POINTER_BITS = 64


@dataclass(frozen=True, slots=True)
class WrittenImage:
    """An image with its header and load commands, if the snapshot has them."""

    image: BinaryImage
    header: MachOImage | None
    """None if it was not captured."""
    header_region: MemoryRegion | None
    """The bytes of :attr:`header`."""

    @classmethod
    def of(cls, image: BinaryImage, memory: MemoryReader) -> WrittenImage:
        """Read an image's header from ``memory``.

        Raises:
            CoreFileError: it is not a Mach-O.
        """
        if image.format is not ImageFormat.MACHO:
            raise CoreFileError(
                f"a Mach-O core cannot hold the ELF image {image.path}",
                source="snapshot",
                offset=0,
                remedy="write a core of a process of an Apple platform",
            )
        try:
            header = MachOMemoryContents(memory, image.load_address, image.path or "image").image
            data = memory.read(image.load_address, header.header.size + header.header.sizeofcmds)
        except (FormatError, MemoryReadError):
            return cls(image, None, None)
        return cls(image, header, MemoryRegion(image.load_address, data))

    @property
    def segments(self) -> list[tuple[bytes, int]]:
        """Names and actual addresses of segments mapped from the file."""
        if self.header is None:
            return [(b"__TEXT", self.image.load_address)]
        slide = self.image.load_address - self.header.header_svma
        return [
            (segment.name.encode()[:16], (segment.vmaddr + slide) & NOT_KNOWN)
            for segment in self.header.segments
            if segment.initprot or segment.filesize
        ]


def addressable_bits(mask: PacMask) -> bytes | None:
    """Return an "addrable bits" note; None if ``mask`` is not one of low bits, or has all bits."""
    width = mask.bits.bit_length()
    if not 0 < width < _POINTER_BITS or mask != PacMask.of_width(width):
        return None
    return ADDRESSABLE_BITS_3.pack(_EVERY_VERSION, width, 0)


def process_metadata(
    snapshot: Snapshot, images: Sequence[WrittenImage], stored: Sequence[RegisterSet]
) -> bytes:
    """Return a "process metadata" note; ``stored`` are the thread commands' registers."""
    mask = snapshot.process.pointer_mask
    metadata = ProcessMetadata(
        threads=tuple(map(NotedThread.of, snapshot.threads, stored)),
        pid=snapshot.process.pid,
        path=snapshot.process.path,
        pointer_mask=mask.bits if addressable_bits(mask) is None else None,
        extents=tuple(
            NotedExtent(
                load_address=written.image.load_address,
                header_svma=written.image.header_svma,
                size=written.image.size,
            )
            for written in images
            if written.header is None
        ),
        problems=tuple(map(NotedProblem.of, snapshot.problems)),
    )
    return json_of_metadata(metadata)


def image_infos(snapshot: Snapshot, images: Sequence[WrittenImage], at: int) -> bytes:
    """Return an "all image infos" note for the file offset ``at``."""
    # Readers treat the first one as the program.
    program = snapshot.process.path
    ordered = sorted(images, key=lambda written: not program or written.image.path != program)
    entries_at = at + IMAGE_INFOS_HEADER.size
    segments_at = entries_at + len(ordered) * IMAGE_ENTRY.size
    paths_at = segments_at + SEGMENT_ADDRESS.size * sum(len(one.segments) for one in ordered)
    entries, segments, paths = bytearray(), bytearray(), bytearray()
    executing = {snapshot.images.find(thread.registers.pc) for thread in snapshot.threads}
    for written in ordered:
        image = written.image
        entries += IMAGE_ENTRY.pack(
            paths_at + len(paths) if image.path else NOT_KNOWN,
            image.uuid.bytes if isinstance(image.uuid, UUID) else bytes(16),
            image.load_address,
            segments_at + len(segments),
            len(written.segments),
            image in executing,
        )
        for name, address in written.segments:
            segments += SEGMENT_ADDRESS.pack(name, address, 0)
        if image.path:
            paths += image.path.encode("utf-8", "replace").replace(b"\0", b"") + b"\0"
    header = IMAGE_INFOS_HEADER.pack(1, len(ordered), entries_at, IMAGE_ENTRY.size, 0)
    return header + bytes(entries + segments + paths)


_CPU = {
    Arch.X86_64: (CPU_TYPE_X86_64, 3),
    Arch.X86_64H: (CPU_TYPE_X86_64, 8),
    Arch.I386: (CPU_TYPE_I386, 3),
    Arch.ARM64: (CPU_TYPE_ARM64, 0),
    Arch.ARM64E: (CPU_TYPE_ARM64, 2),
    Arch.ARM64_32: (CPU_TYPE_ARM64_32, 1),
    Arch.ARM: (CPU_TYPE_ARM, 0),
    Arch.ARMV7: (CPU_TYPE_ARM, 9),
    Arch.ARMV7S: (CPU_TYPE_ARM, 11),
    Arch.ARMV7K: (CPU_TYPE_ARM, 12),
}
"""``mach/machine.h``: type and subtype."""
_DATA_ALIGNMENT = 4096
"""The file offset of the first segment's bytes."""
_NOTE_ALIGNMENT = 16
_WIDE = 8
"""Bytes of a pointer in a 64-bit process."""


def core_bytes(snapshot: Snapshot, regions: Iterable[MemoryRegion] = ()) -> bytes:
    """Return a core of ``snapshot``; see :func:`core_chunks`."""
    return b"".join(core_chunks(snapshot, regions))


def core_chunks(
    snapshot: Snapshot, regions: Iterable[MemoryRegion] = ()
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a core of ``snapshot`` in pieces.

    It has each thread's registers and stack, the images and, if available, their headers with load
    commands. Unknown registers are written as 0.

    Args:
        snapshot: a snapshot of a process with Mach-O images.
        regions: further memory; where regions overlap, stacks take precedence, then the lower
            region.

    Raises:
        CoreFileError: an image is not a Mach-O, or an address exceeds the process's pointer size.
            Raised before the first piece.
    """
    images = [WrittenImage.of(image, snapshot.memory) for image in snapshot.images]
    memory = _regions(snapshot, images, regions)
    return _chunks(snapshot, images, memory)


class _Placed(NamedTuple):
    region: MemoryRegion
    protection: int


def _regions(
    snapshot: Snapshot, images: list[WrittenImage], regions: Iterable[MemoryRegion]
) -> list[_Placed]:
    """Return all memory to write, by address and without overlap."""
    arch = snapshot.process.arch
    limit = 1 << (8 * arch.pointer_size)
    first = [thread.stack for thread in snapshot.threads]
    second = [image.header_region for image in images if image.header_region is not None]
    second += regions
    memory = without_overlap(first, second)
    for region in memory:
        if region.end > limit:
            raise CoreFileError(
                f"the memory at {region.start:#x} is beyond the pointers of {arch.value}",
                source="snapshot",
                offset=0,
            )
    return [_Placed(region, _protection(region, snapshot)) for region in memory]


def _protection(region: MemoryRegion, snapshot: Snapshot) -> int:
    image = snapshot.images.find(region.start)
    return VM_PROT_READ | (VM_PROT_WRITE if image is None else VM_PROT_EXECUTE)


def _chunks(
    snapshot: Snapshot, images: list[WrittenImage], memory: list[_Placed]
) -> Iterator[bytes | memoryview]:
    arch = snapshot.process.arch
    wide = arch.pointer_size == _WIDE
    threads = [
        thread_command(thread.registers, thread.other_registers) for thread in snapshot.threads
    ]
    stored = [_stored_registers(command, snapshot.process) for command in threads]
    segment_layout = SEGMENT_COMMAND_64 if wide else SEGMENT_COMMAND
    header_size = MACH_HEADER_64_SIZE if wide else MACH_HEADER.size

    bits = addressable_bits(snapshot.process.pointer_mask)
    sizeofcmds = (
        (2 if bits is None else 3) * NOTE_COMMAND.size
        + sum(map(len, threads))
        + len(memory) * segment_layout.size
    )
    at = _aligned(header_size + sizeofcmds, _NOTE_ALIGNMENT)
    notes: list[tuple[str, int, bytes]] = []

    def note(owner: str, payload: bytes) -> int:
        notes.append((owner, at, payload))
        return _aligned(at + len(payload), _NOTE_ALIGNMENT)

    if bits is not None:
        at = note(ADDRESSABLE_BITS, bits)
    at = note(PROCESS_METADATA, process_metadata(snapshot, images, stored))
    # This note's bytes depend on their file offset.
    at = note(ALL_IMAGE_INFOS, image_infos(snapshot, images, at))
    at = _aligned(at, _DATA_ALIGNMENT)

    commands = []
    for owner, offset, payload in notes:
        name = owner.encode()
        commands.append(NOTE_COMMAND.pack(LC_NOTE, NOTE_COMMAND.size, name, offset, len(payload)))
    commands += threads
    data_start = at
    for region, protection in memory:
        size = len(region.data)
        commands.append(
            segment_layout.pack(
                LC_SEGMENT_64 if wide else LC_SEGMENT,
                segment_layout.size,
                b"",
                region.start,
                size,
                at,
                size,
                protection,
                protection,
                0,
                0,
            )
        )
        at += size
    cputype, cpusubtype = _CPU[arch]
    header = MACH_HEADER.pack(
        MH_MAGIC_64 if wide else MH_MAGIC,
        cputype,
        cpusubtype,
        FileType.CORE.value,
        len(commands),
        sizeofcmds,
        0,
    )
    yield header.ljust(header_size, b"\0") + b"".join(commands)
    at = header_size + sizeofcmds
    for _, offset, payload in notes:
        yield bytes(offset - at) + payload
        at = offset + len(payload)
    yield bytes(data_start - at)
    for region, _ in memory:
        yield region.data


def _stored_registers(command: bytes, process: ProcessInfo) -> RegisterSet:
    """Return the registers that a reader finds in a thread command."""
    state = parse_thread_state(
        memoryview(command),
        process.arch,
        mask=process.pointer_mask,
        source="snapshot",
        offset=0,
    )
    return state.registers


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
