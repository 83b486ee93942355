"""Writing a :class:`~machtrace.model.snapshot.Snapshot` as a small Mach-O core.

What is written is what lldb writes and reads: a thread command for each thread, a segment for each
region of memory, and the notes "all image infos", "process metadata" and "addrable bits". "main bin
spec" is left out: it would lead to dyld's list of images, and a list is already there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from machtrace.errors import CoreFileError
from machtrace.formats.macho.command_numbers import LC_NOTE, LC_SEGMENT, LC_SEGMENT_64
from machtrace.formats.macho.core.core_note_writer import (
    WrittenImage,
    addressable_bits,
    image_infos,
    process_metadata,
)
from machtrace.formats.macho.core.notes import (
    ADDRESSABLE_BITS,
    ALL_IMAGE_INFOS,
    NOTE_COMMAND,
    PROCESS_METADATA,
)
from machtrace.formats.macho.cpu import (
    CPU_TYPE_ARM,
    CPU_TYPE_ARM64,
    CPU_TYPE_ARM64_32,
    CPU_TYPE_I386,
    CPU_TYPE_X86_64,
)
from machtrace.formats.macho.header import FileType
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
from machtrace.formats.macho.thread_state import parse_thread_state
from machtrace.formats.macho.thread_state_writer import thread_command
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion, without_overlap
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ProcessInfo, Snapshot

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
"""Of the first segment's bytes in the file."""
_NOTE_ALIGNMENT = 16
_WIDE = 8
"""Bytes of a pointer in a 64-bit process."""


def core_bytes(snapshot: Snapshot, regions: Iterable[MemoryRegion] = ()) -> bytes:
    """A core of ``snapshot``, whole; see :func:`core_chunks`."""
    return b"".join(core_chunks(snapshot, regions))


def core_chunks(
    snapshot: Snapshot, regions: Iterable[MemoryRegion] = ()
) -> Iterator[bytes | memoryview]:
    """The bytes of a core of ``snapshot``, in order and in pieces.

    It holds each thread's registers and stack, the images and, where the snapshot can read them,
    their headers with load commands. A register whose value is not known is written as 0.

    Args:
        snapshot: of a process that runs Mach-O images.
        regions: further memory to hold; where regions overlap, the stacks' bytes are written,
            and of others those of the lower region.

    Raises:
        CoreFileError: an image is no Mach-O, or an address does not fit the process' pointers.
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
    """All memory to write, by address and without overlap."""
    arch = snapshot.process.arch
    limit = 1 << (8 * arch.pointer_size)
    first = [thread.stack for thread in snapshot.threads]
    second = [image.header_region for image in images if image.header_region is not None]
    second += regions
    kept = without_overlap(first, second)
    for region in kept:
        if region.end > limit:
            raise CoreFileError(
                f"the memory at {region.start:#x} is beyond the pointers of {arch.value}",
                source="snapshot",
                offset=0,
            )
    return [_Placed(region, _protection(region, snapshot)) for region in kept]


def _protection(region: MemoryRegion, snapshot: Snapshot) -> int:
    image = snapshot.images.find(region.start)
    return VM_PROT_READ | (VM_PROT_WRITE if image is None else VM_PROT_EXECUTE)


def _chunks(
    snapshot: Snapshot, images: list[WrittenImage], memory: list[_Placed]
) -> Iterator[bytes | memoryview]:
    arch = snapshot.process.arch
    wide = arch.pointer_size == _WIDE
    threads = [thread_command(thread.registers) for thread in snapshot.threads]
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
    # This note's bytes say where in the file they are.
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
    """What a reader finds in a thread command."""
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
