"""The notes of a core that :mod:`machtrace.formats.macho.core.writer` makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from machtrace.errors import CoreFileError, FormatError, MemoryReadError
from machtrace.formats.macho.contents import MemoryContents
from machtrace.formats.macho.core.notes import ADDRESSABLE_BITS_3, NOT_KNOWN
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.core.noted_images import IMAGE_ENTRY, IMAGE_INFOS_HEADER, SEGMENT_ADDRESS
from machtrace.model.address import PacMask
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader, MemoryRegion
from machtrace.model.process_metadata import (
    NotedExtent,
    NotedProblem,
    NotedThread,
    ProcessMetadata,
    json_of_metadata,
)
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import Snapshot

_EVERY_VERSION = 3
"""Of "addrable bits": the one that every lldb reads."""
_POINTER_BITS = 64


@dataclass(frozen=True, slots=True)
class WrittenImage:
    """An image with its header and load commands, as far as the snapshot has them."""

    image: BinaryImage
    header: MachOImage | None
    """None where it was not captured."""
    header_region: MemoryRegion | None
    """The bytes of :attr:`header`."""

    @classmethod
    def of(cls, image: BinaryImage, memory: MemoryReader) -> WrittenImage:
        """``image``, with the header that ``memory`` has of it.

        Raises:
            CoreFileError: it is no Mach-O.
        """
        if image.format is not ImageFormat.MACHO:
            raise CoreFileError(
                f"a Mach-O core cannot hold the ELF image {image.path}",
                source="snapshot",
                offset=0,
                remedy="write a core of a process of an Apple platform",
            )
        try:
            header = MemoryContents(memory, image.load_address, image.path or "image").image
            data = memory.read(image.load_address, header.header.size + header.header.sizeofcmds)
        except (FormatError, MemoryReadError):
            return cls(image, None, None)
        return cls(image, header, MemoryRegion(image.load_address, data))

    @property
    def segments(self) -> list[tuple[bytes, int]]:
        """Names and actual addresses, of segments that are mapped from its file."""
        if self.header is None:
            return [(b"__TEXT", self.image.load_address)]
        slide = self.image.load_address - self.header.header_svma
        return [
            (segment.name.encode()[:16], (segment.vmaddr + slide) & NOT_KNOWN)
            for segment in self.header.segments
            if segment.initprot or segment.filesize
        ]


def addressable_bits(mask: PacMask) -> bytes | None:
    """An "addrable bits" note.

    None where ``mask`` keeps all bits, or others than the low ones: then there is nothing to say.
    """
    width = mask.bits.bit_length()
    if not 0 < width < _POINTER_BITS or mask != PacMask.of_width(width):
        return None
    return ADDRESSABLE_BITS_3.pack(_EVERY_VERSION, width, 0)


def process_metadata(
    snapshot: Snapshot, images: Sequence[WrittenImage], stored: Sequence[RegisterSet]
) -> bytes:
    """A "process metadata" note; ``stored`` is what the thread commands say."""
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
    """An "all image infos" note whose first byte is to be at the file offset ``at``."""
    # Readers take the first one for the program.
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
