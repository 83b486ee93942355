"""Writing a snapshot as a small core: the memory that unwinding and naming its threads reads."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from os import PathLike, fsdecode
from typing import BinaryIO, Literal, NamedTuple

from machtrace.atomic_write import replace_file
from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import ElfMemoryContents
from machtrace.formats.elf.core.loader_memory import AT_SYSINFO_EHDR, loaded_objects
from machtrace.formats.elf.core.notes import auxiliary_values
from machtrace.formats.elf.structs import LAYOUTS, PF_W
from machtrace.formats.macho.structs import VM_PROT_WRITE
from machtrace.formats.object_file import ObjectFile
from machtrace.frozen import dataclass
from machtrace.images.resolver import ImageResolver
from machtrace.model.address import Avma, FileOffset
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import (
    LayeredMemory,
    MemoryReader,
    MemoryRegion,
    without_overlap,
)
from machtrace.model.snapshot import Snapshot
from machtrace.model.stack import Backtrace, FrameAddress
from machtrace.model.symbol import FrameStatus
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.unwinder.unwinder import unwind

GRANULE = 256
"""Alignment in bytes to which ranges are widened: each region of a core costs a header of 56 to 72
bytes, and tables are read a few bytes at a time."""

_Range = tuple[int, int]
"""Start and end, both Avma."""


class RecordingMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` that records the ranges read through it."""

    def __init__(self, memory: MemoryReader) -> None:
        self._memory = memory
        self._ranges: set[_Range] = set()

    def read(self, address: Avma, size: int, /) -> bytes | memoryview:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        data = self._memory.read(address, size)
        if size:
            self._ranges.add((address, address + size))
        return data

    def forget(self) -> None:
        """Clear the recorded ranges."""
        self._ranges.clear()

    def regions(self, *, granule: int = GRANULE) -> list[MemoryRegion]:
        """Return the recorded ranges by address, widened to granules where these are readable."""
        exact = list(_joined(sorted(self._ranges)))
        starts = [start for start, _ in exact]
        wide = _joined((s // granule * granule, -(-e // granule) * granule) for s, e in exact)

        def readable(start: int, end: int) -> Iterator[MemoryRegion]:
            """Yield the range; else its halves; else the recorded parts of a granule."""
            data = self._data(start, end)
            if data is not None:
                yield MemoryRegion(Avma(start), data)
            elif end - start > granule:
                middle = start + (end - start) // (2 * granule) * granule
                yield from readable(start, middle)
                yield from readable(middle, end)
            else:
                first = max(0, bisect_right(starts, start) - 1)
                last = bisect_right(starts, end - 1)
                for low, high in exact[first:last]:
                    begin, finish = max(low, start), min(high, end)
                    part = self._data(begin, finish) if begin < finish else None
                    if part is not None:
                        yield MemoryRegion(Avma(begin), part)

        return [region for start, end in wide for region in _adjoined(readable(start, end))]

    def _data(self, start: int, end: int) -> bytes | memoryview | None:
        try:
            return self._memory.read(Avma(start), end - start)
        except MemoryReadError:
            return None


def _joined(ranges: Iterable[_Range]) -> Iterator[_Range]:
    """Yield ``ranges``, sorted by start, with neighbours and overlaps merged."""
    last: _Range | None = None
    for start, end in ranges:
        if last is None:
            last = start, end
        elif start <= last[1]:
            last = last[0], max(last[1], end)
        else:
            yield last
            last = start, end
    if last is not None:
        yield last


def _adjoined(regions: Iterable[MemoryRegion]) -> Iterator[MemoryRegion]:
    """Yield ``regions``, sorted by address, with neighbours merged."""
    parts: list[MemoryRegion] = []
    for region in regions:
        if parts and parts[-1].end != region.start:
            yield _whole(parts)
            parts = []
        parts.append(region)
    if parts:
        yield _whole(parts)


def _whole(parts: list[MemoryRegion]) -> MemoryRegion:
    if len(parts) == 1:
        return parts[0]
    return MemoryRegion(parts[0].start, b"".join(part.data for part in parts))


class _Segment(NamedTuple):
    start: Avma
    size: int
    contents: ObjectFile
    offset: FileOffset


class ImageFileMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` over the read-only parts of images' files.

    These are code, constants and tables, at the addresses where a target has the images. A file is
    opened when its image is first read, and used only if its identifier is the image's.
    """

    def __init__(self, images: ImageList, files: ImageResolver | None = None) -> None:
        self._images = images
        self._files = ImageResolver() if files is None else files
        self._opened: set[Avma] = set()
        self._segments: list[_Segment] = []

    def read(self, address: Avma, size: int, /) -> memoryview:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        image = self._images.find(address)
        if image is not None and image.load_address not in self._opened:
            self._opened.add(image.load_address)
            for segment in self._unchanging(image):
                insort(self._segments, segment, key=_start)
        index = bisect_right(self._segments, address, key=_start) - 1
        if index < 0 or size < 0:
            raise MemoryReadError(address, size)
        segment = self._segments[index]
        delta = address - segment.start
        if delta + size > segment.size:
            raise MemoryReadError(address, size)
        return segment.contents.read_file(FileOffset(segment.offset + delta), size)

    def _unchanging(self, image: BinaryImage) -> Iterator[_Segment]:
        contents = self._files.binary(image)
        if isinstance(contents, FrameStatus):
            return
        slide = image.load_address - contents.image.header_svma
        if contents.format is ImageFormat.ELF:
            for load in contents.image.load_segments:
                if load.file_size and not load.flags & PF_W:
                    yield _Segment(
                        Avma(load.address + slide), load.file_size, contents, load.offset
                    )
            return
        encryption = contents.image.encryption_info
        if encryption is not None and encryption.cryptid:
            return  # memory has it decrypted
        for part in contents.image.segments:
            size = min(part.filesize, part.vmsize)
            if size and not part.initprot & VM_PROT_WRITE:
                yield _Segment(Avma(part.vmaddr + slide), size, contents, part.fileoff)


def _start(segment: _Segment) -> Avma:
    return segment.start


WALK_LIMIT = 1 << 16
"""Frames of a stack that are unwound to record reads; deeper ones read the same tables."""

KeptImages = Literal["used", "none"]
"""The images' contents in a saved core: the bytes that unwinding and names read, or none."""

NAMES_LIMIT = 1 << 23
"""Maximum bytes of all images together that are saved for names alone."""

_PAGE = 4096
_MAX_IMAGES = 1 << 13
"""Images whose headers are saved even if no walk read them."""
_MAX_BEHIND = 16 * _PAGE
"""Bytes; a vdso has one page or two."""


def used_memory(snapshot: Snapshot, images: KeptImages) -> list[MemoryRegion]:
    """Return the memory that unwinding ``snapshot`` reads, besides stacks; by address, disjoint.

    With ``used``, this includes what it would read of images without their files, and the symbol
    tables of images that no file of this machine has.
    """
    debugged = debugger_memory(snapshot)
    memory = RecordingMemory(snapshot.memory)
    files = ImageResolver()
    walks = unwind(replace(snapshot, memory=memory), limit=WALK_LIMIT, search=files)
    walked = memory.regions()
    if images == "none":
        outside = [part for region in walked for part in _outside(region, snapshot.images)]
        return without_overlap(debugged, outside)
    bare = RecordingMemory(
        LayeredMemory((snapshot.memory, ImageFileMemory(snapshot.images, files)))
    )
    nameless = ImageList(replace(image, path="", local_path=None) for image in snapshot.images)
    unwind(replace(snapshot, memory=bare, images=nameless), limit=WALK_LIMIT)
    return without_overlap(debugged, walked, bare.regions(), _names_memory(walks, memory, files))


def _names_memory(
    walks: Sequence[Backtrace], memory: RecordingMemory, files: ImageResolver
) -> list[MemoryRegion]:
    """Return the memory that naming ``walks`` reads of images without files on this machine.

    The images with the smallest tables come first, up to :data:`NAMES_LIMIT`.
    """
    symbolicator = Symbolicator(files, lines=False)
    addresses: dict[BinaryImage, list[FrameAddress]] = {}
    for walk in walks:
        rest = () if walk.physical_remainder is None else walk.physical_remainder.addresses
        for address in (*walk.addresses, *rest):
            image = walk.snapshot.images.find(address.lookup)
            if image is not None:
                addresses.setdefault(image, []).append(address)
    tables: list[tuple[int, list[MemoryRegion]]] = []
    for image, own in addresses.items():
        if isinstance(files.binary(image), FrameStatus):
            memory.forget()
            # Not a stack, but it is only looked up.
            symbolicator.symbolicate(
                replace(walks[0], addresses=tuple(own), gap=None, physical_remainder=None)
            )
            regions = memory.regions()
            tables.append((sum(len(region.data) for region in regions), regions))
    saved: list[MemoryRegion] = []
    left = NAMES_LIMIT
    for size, regions in sorted(tables, key=lambda table: table[0]):
        left -= size
        if left < 0:
            break
        saved.extend(regions)
    return without_overlap(saved)


def debugger_memory(snapshot: Snapshot) -> list[MemoryRegion]:
    """Return the memory that debuggers read of an ELF core to find the program's images."""
    if core_format(snapshot) is not ImageFormat.ELF:
        return []
    memory = RecordingMemory(snapshot.memory)
    layout = LAYOUTS[2 if snapshot.process.arch.pointer_size == 8 else 1, 1]  # noqa: PLR2004 (bytes)
    vector = b"" if snapshot.linux is None else snapshot.linux.auxiliary_vector
    loaded_objects(memory, vector, layout)
    kernels_own = dict(auxiliary_values(vector, layout)).get(AT_SYSINFO_EHDR)
    whole: list[MemoryRegion] = []
    for image in islice(snapshot.images, _MAX_IMAGES):
        try:
            # Its headers and the note with its build-id.
            ElfMemoryContents(memory, image.load_address, image.path)
            if image.load_address == kernels_own:
                whole.append(_to_the_end(snapshot.memory, image))
        except (FormatError, MemoryReadError):
            continue
    return without_overlap(whole, memory.regions())


def _to_the_end(memory: MemoryReader, image: BinaryImage) -> MemoryRegion:
    """Return an image and the memory behind it, where the vdso has its section headers."""
    start, size = image.load_address, image.size
    data = memory.read(start, size)
    for end in range(-(-size // _PAGE) * _PAGE, size + _MAX_BEHIND, _PAGE):
        try:
            data = memory.read(start, end)
        except MemoryReadError:
            break
    return MemoryRegion(start, data)


def core_format(snapshot: Snapshot) -> ImageFormat:
    """Return the format of a core: that of the images, or without any that of the system."""
    for image in snapshot.images:
        return image.format
    return ImageFormat.MACHO if snapshot.linux is None else ImageFormat.ELF


def _outside(region: MemoryRegion, images: ImageList) -> list[MemoryRegion]:
    """Return the parts of ``region`` outside all ``images``."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCore:
    """A written core."""

    path: str
    format: ImageFormat
    size: int
    """Bytes of the file."""


def save_snapshot(
    snapshot: Snapshot, path: str | PathLike[str], *, images: KeptImages = "used"
) -> SavedCore:
    """Write a small core that :func:`machtrace.open_target` reads back, and debuggers open.

    It is a Mach-O core, or an ELF core of a process that runs ELF images. The stacks unwound from
    it have the addresses and names that they have now. An existing file is replaced once the core
    is complete.

    Args:
        snapshot: the process.
        path: the core's path; only the owner may read the file.
        images: ``used`` also stores the bytes of images that unwinding reads, and names that no
            file has; with ``none`` both take the images' files later.

    Raises:
        FileAccessError: the file cannot be written.
        CoreFileError: the process cannot be put into a core.
    """
    name = fsdecode(path)
    kind, parts = _core(snapshot, images)
    return SavedCore(path=name, format=kind, size=replace_file(name, parts, is_private=True))


def write_snapshot(snapshot: Snapshot, sink: BinaryIO, *, images: KeptImages = "used") -> SavedCore:
    """Write ``snapshot`` as a core to ``sink``, which need not be a file.

    It is the core that :func:`save_snapshot` writes. Its path is the sink's name.

    Raises:
        OSError: the sink cannot be written.
        CoreFileError: the process cannot be put into a core.
    """
    kind, parts = _core(snapshot, images)
    size = 0
    for part in parts:
        sink.write(part)
        size += len(part)
    return SavedCore(path=str(sink.name), format=kind, size=size)


def _core(
    snapshot: Snapshot, images: KeptImages
) -> tuple[ImageFormat, Iterable[bytes | memoryview]]:
    kind = core_format(snapshot)
    regions = used_memory(snapshot, images)
    if kind is ImageFormat.ELF:
        from machtrace.formats.elf.core.writer import core_chunks
    else:
        from machtrace.formats.macho.core.writer import core_chunks
    return kind, core_chunks(snapshot, regions)
