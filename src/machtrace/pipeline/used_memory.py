"""Which memory of a snapshot walking and naming its threads takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from machtrace.pipeline.image_file_memory import ImageFileMemory
from machtrace.pipeline.pipeline import unwind
from machtrace.pipeline.recording import RecordingMemory
from machtrace.formats.elf.contents import ElfMemoryContents
from machtrace.formats.elf.core.notes import auxiliary_values
from machtrace.formats.elf.core.loader_memory import AT_SYSINFO_EHDR, loaded_objects
from machtrace.formats.elf.structs import LAYOUTS
from machtrace.errors import FormatError, MemoryReadError
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import (
    LayeredMemory,
    MemoryReader,
    MemoryRegion,
    without_overlap,
)
from machtrace.model.snapshot import KeptImages, Snapshot
from machtrace.model.stack import Backtrace, FrameAddress
from machtrace.model.symbol import FrameStatus
from machtrace.images.resolver import ImageResolver
from machtrace.symbolizer.symbolicator import Symbolicator

WALK_LIMIT = 1 << 16
"""Frames of a stack that are walked to see what it takes; deeper ones repeat what is there."""

NAMES_LIMIT = 1 << 23
"""Bytes of all images together that are kept for names alone."""

_PAGE = 4096
_MOST_IMAGES = 1 << 13
"""Images whose headers are kept whether or not a walk took them."""
_MOST_BEHIND = 16 * _PAGE
"""Bytes; a vdso has one page or two."""


def used_memory(snapshot: Snapshot, images: KeptImages) -> list[MemoryRegion]:
    """What walking ``snapshot`` reads of its memory, besides stacks; by address, without overlap.

    With ``used`` that includes all that it would read of images if their files were gone, and the
    symbol tables of images that no file of this machine names.
    """
    found = debugger_memory(snapshot)
    memory = RecordingMemory(snapshot.memory)
    walks = unwind(replace(snapshot, memory=memory), limit=WALK_LIMIT)
    walked = memory.regions()
    if images == "none":
        outside = [part for region in walked for part in _outside(region, snapshot.images)]
        return without_overlap(found, outside)
    bare = RecordingMemory(LayeredMemory((snapshot.memory, ImageFileMemory(snapshot.images))))
    nameless = ImageList(replace(image, path="", local_path=None) for image in snapshot.images)
    unwind(replace(snapshot, memory=bare, images=nameless), limit=WALK_LIMIT)
    return without_overlap(found, walked, bare.regions(), _names_memory(walks, memory))


def _names_memory(walks: Sequence[Backtrace], memory: RecordingMemory) -> list[MemoryRegion]:
    """What naming ``walks`` reads of images that no file of this machine is of.

    The smallest images come first, for as many as :data:`NAMES_LIMIT` has room for.
    """
    files, symbolicator = ImageResolver(), Symbolicator(lines=False)
    addresses: dict[BinaryImage, list[FrameAddress]] = {}
    for walk in walks:
        rest = () if walk.physical_remainder is None else walk.physical_remainder.addresses
        for address in (*walk.addresses, *rest):
            image = walk.snapshot.images.find(address.lookup)
            if image is not None:
                addresses.setdefault(image, []).append(address)
    tables: list[tuple[int, list[MemoryRegion]]] = []
    for image, found in addresses.items():
        if isinstance(files.file(image), FrameStatus):
            memory.forget()
            # No stack, but it is only to be looked up.
            symbolicator.symbolicate(
                replace(walks[0], addresses=tuple(found), gap=None, physical_remainder=None)
            )
            regions = memory.regions()
            tables.append((sum(len(region.data) for region in regions), regions))
    kept: list[MemoryRegion] = []
    left = NAMES_LIMIT
    for size, regions in sorted(tables, key=lambda table: table[0]):
        left -= size
        if left < 0:
            break
        kept.extend(regions)
    return without_overlap(kept)


def debugger_memory(snapshot: Snapshot) -> list[MemoryRegion]:
    """What debuggers read of an ELF core to find the program, its libraries and the vdso."""
    if core_format(snapshot) is not ImageFormat.ELF:
        return []
    memory = RecordingMemory(snapshot.memory)
    layout = LAYOUTS[2 if snapshot.process.arch.pointer_size == 8 else 1, 1]  # noqa: PLR2004 (bytes)
    vector = b"" if snapshot.linux is None else snapshot.linux.auxiliary_vector
    loaded_objects(memory, vector, layout)
    kernels_own = dict(auxiliary_values(vector, layout)).get(AT_SYSINFO_EHDR)
    whole: list[MemoryRegion] = []
    for image in islice(snapshot.images, _MOST_IMAGES):
        try:
            # Its headers and the note with its build-id.
            ElfMemoryContents(memory, image.load_address, image.path)
            if image.load_address == kernels_own:
                whole.append(_to_the_end(snapshot.memory, image))
        except (FormatError, MemoryReadError):
            continue
    return without_overlap(whole, memory.regions())


def _to_the_end(memory: MemoryReader, image: BinaryImage) -> MemoryRegion:
    """An image and what lies behind it in memory: section headers, of which it does not tell."""
    start, size = image.load_address, image.size
    data = memory.read(start, size)
    for end in range(-(-size // _PAGE) * _PAGE, size + _MOST_BEHIND, _PAGE):
        try:
            data = memory.read(start, end)
        except MemoryReadError:
            break
    return MemoryRegion(start, data)


def core_format(snapshot: Snapshot) -> ImageFormat:
    """The format of a core of ``snapshot``: that of its images, and of its system without any."""
    for image in snapshot.images:
        return image.format
    return ImageFormat.MACHO if snapshot.linux is None else ImageFormat.ELF


def _outside(region: MemoryRegion, images: ImageList) -> list[MemoryRegion]:
    """The parts of ``region`` that are in none of ``images``."""
    parts: list[MemoryRegion] = []
    at = region.start
    for image in images:
        if image.end <= at or image.load_address >= region.end:
            continue
        if image.load_address > at:
            parts.append(MemoryRegion(at, region.read(at, image.load_address - at)))
        at = min(image.end, region.end)
    if at < region.end:
        parts.append(MemoryRegion(at, region.read(at, region.end - at)))
    return parts
