"""Which ELF images a Linux process has loaded, and where their bytes can be had later.

An image is recognised by its header in the process's own memory, so what is found is what runs,
whatever has become of the file since. The bytes then come from the file if it still is that one,
and are copied from memory if no file can be had.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from operator import is_not
from pathlib import Path

from machtrace.errors import FormatError, MemoryReadError, TargetGoneError
from machtrace.formats.elf.contents import ElfMemoryContents
from machtrace.formats.elf.headers import Segment
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import MAGIC, PF_W
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryReader, MemoryRegion
from machtrace.targets.linux.memory import FileIdentity, FileMemory, FileSegment, MappedFile
from machtrace.targets.linux.procfs import ProcessDirectory
from machtrace.targets.shared.proc_maps import Mapping

VDSO = "[vdso]"

_COPY_LIMIT = 1 << 28
"""Bytes of one image that are copied from memory at most."""

_HEAD = 4096
"""Bytes at the start of an image by which a file is known to be the one that was loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedImage:
    """An image and its bytes: of a file, or copied."""

    image: BinaryImage
    segments: tuple[FileSegment, ...] = ()
    regions: tuple[MemoryRegion, ...] = ()


class LoadedImages(tuple[LoadedImage, ...]):  # noqa: SLOT001 - its properties are cached
    """The images of a process at one time, by address."""

    @cached_property
    def image_list(self) -> ImageList:
        """As snapshots have them: for all of them the same object."""
        return ImageList(loaded.image for loaded in self)

    @cached_property
    def files(self) -> FileMemory:
        """Their bytes that are in files."""
        return FileMemory(segment for loaded in self for segment in loaded.segments)


class ImageFinder:
    """Finds the images of one process; remembers them from one time to the next."""

    def __init__(self, directory: ProcessDirectory) -> None:
        self._directory = directory
        self._known: dict[Mapping, LoadedImage | None] = {}
        self._mappings: Sequence[Mapping] = ()
        self._found = LoadedImages()
        self._same_files = _mount_namespace(directory) == _own_mount_namespace()
        self._may_follow_mappings = True

    def find(self, mappings: Sequence[Mapping], memory: MemoryReader) -> LoadedImages:
        """Find the images in a process's ``memory`` by its ``mappings``, all of them by address.

        It is the same object as before, as long as the images are the same.
        """
        if mappings is self._mappings:
            return self._found
        self._mappings = mappings
        image_of: dict[Mapping, LoadedImage | None] = {}
        images: list[LoadedImage] = []
        runnable = [mapping for mapping in mappings if mapping.is_executable]
        inodes = {mapping.inode for mapping in runnable}
        for mapping in mappings:
            if not _may_be_header(mapping, inodes):
                continue
            if images and mapping.start in images[-1].image:
                continue  # a later segment that starts in the file's first page too
            if mapping in self._known:
                loaded = self._known[mapping]
            else:
                loaded = self._load(mapping, runnable, memory)
            image_of[mapping] = loaded
            if loaded is not None:
                images.append(loaded)
        self._known = image_of
        if len(images) != len(self._found) or any(map(is_not, images, self._found)):
            self._found = LoadedImages(images)
        return self._found

    def _load(
        self, mapping: Mapping, runnable: Sequence[Mapping], memory: MemoryReader
    ) -> LoadedImage | None:
        try:
            if bytes(memory.read(mapping.start, len(MAGIC))) != MAGIC:
                return None
            elf = ElfMemoryContents(memory, mapping.start, mapping.path).image
        except (FormatError, MemoryReadError):
            return None
        slide = mapping.start - elf.header_svma
        if not _is_loaded(elf, slide, mapping, runnable):
            return None
        image = BinaryImage(
            path=mapping.path,
            uuid=elf.build_id,
            arch=elf.arch,
            format=ImageFormat.ELF,
            load_address=mapping.start,
            header_svma=elf.header_svma,
            size=elf.size,
        )
        if mapping.path == VDSO:
            return LoadedImage(image=image, regions=_whole(mapping, memory))
        segments = [s for s in elf.load_segments if not s.flags & PF_W and s.file_size]
        file = self._file(mapping, memory)
        if file is None:
            return LoadedImage(image=image, regions=_copied(segments, slide, memory))
        image = replace(image, local_path=file.path)
        placed = tuple(
            FileSegment(Avma(s.address + slide), s.file_size, file, s.offset) for s in segments
        )
        return LoadedImage(image=image, segments=placed)

    def _file(self, mapping: Mapping, memory: MemoryReader) -> MappedFile | None:
        """Return the file that ``mapping`` maps; None if it cannot be opened any more."""
        if self._same_files and not mapping.is_deleted:
            status = _status(mapping.path)
            if status is not None and _is_mapped(mapping, status):
                return MappedFile(mapping.path, FileIdentity.of(status))
        return self._mapped_file(mapping) or self._named_file(mapping, memory)

    def _mapped_file(self, mapping: Mapping) -> MappedFile | None:
        """By ``map_files``, which leads to deleted files too, but takes CAP_CHECKPOINT_RESTORE."""
        if not self._may_follow_mappings:
            return None
        name = f"map_files/{mapping.start:x}-{mapping.end:x}"
        try:
            descriptor = self._directory.open(name)
        except PermissionError:
            self._may_follow_mappings = False
            return None
        except (OSError, TargetGoneError):
            return None
        return _held(descriptor)

    def _named_file(self, mapping: Mapping, memory: MemoryReader) -> MappedFile | None:
        """By its name as the process sees it, if the file of that name starts as the image does.

        Its numbers would not do: some file systems show others to stat than in the maps.
        """
        try:
            thread = self._directory.live_thread()
        except TargetGoneError:
            return None
        named = () if mapping.is_deleted else (f"task/{thread}/root{mapping.path}",)
        for name in (*named, f"task/{thread}/exe"):
            try:
                descriptor = self._directory.open(name)
            except (OSError, ValueError, TargetGoneError):
                continue
            if _starts_alike(descriptor, mapping, memory):
                return self._by_path(mapping, descriptor) or _held(descriptor)
            os.close(descriptor)
        return None

    def _by_path(self, mapping: Mapping, descriptor: int) -> MappedFile | None:
        """Return the file by its own path if that leads to it: then it need not stay open."""
        if not self._same_files or mapping.is_deleted:
            return None
        identity = FileIdentity.of(os.fstat(descriptor))
        status = _status(mapping.path)
        if status is None or FileIdentity.of(status) != identity:
            return None
        os.close(descriptor)
        return MappedFile(mapping.path, identity)


def with_earlier(images: LoadedImages, earlier: LoadedImages) -> LoadedImages:
    """``images``, and those ``earlier`` ones that are gone; by address.

    A thread that was copied in between may have been in either. Where one took the place of
    another, it is ambiguous: both are left out.
    """
    now = {loaded.image for loaded in images}
    gone = [loaded for loaded in earlier if loaded.image not in now]
    if not gone:
        return images
    before = {loaded.image for loaded in earlier}
    came = [loaded for loaded in images if loaded.image not in before]
    sure = [loaded for loaded in images if loaded.image in before]
    sure += [
        loaded for loaded in came if not any(_overlap(loaded.image, other.image) for other in gone)
    ]
    sure += [
        loaded for loaded in gone if not any(_overlap(loaded.image, other.image) for other in came)
    ]
    return LoadedImages(sorted(sure, key=lambda loaded: loaded.image.load_address))


def _overlap(one: BinaryImage, other: BinaryImage) -> bool:
    return one.load_address < other.end and other.load_address < one.end


def _may_be_header(mapping: Mapping, inodes_run: set[int]) -> bool:
    if mapping.path == VDSO:
        return mapping.is_readable
    # Reading a device's memory can do things; nobody loads code from there.
    return (
        mapping.is_file
        and mapping.is_readable
        and mapping.offset == 0
        and (mapping.inode in inodes_run or not mapping.path.startswith("/dev/"))
    )


def _is_loaded(elf: ElfImage, slide: int, header: Mapping, runnable: Sequence[Mapping]) -> bool:
    """Whether the code is where it would be if it were to run, and not just a file being read.

    A file that is read, such as one that names are looked up in, may lie just before an image: then
    there is code, and it is another file's.
    """
    code = next((s.address + slide for s in elf.load_segments if s.is_executable), None)
    if code is None:
        return False
    upto = bisect_right(runnable, code, key=_start)
    if not upto or code >= runnable[upto - 1].end:
        return False
    found = runnable[upto - 1]
    if not found.inode:  # the kernel's own, or moved to huge pages
        return header.is_private
    return (found.device, found.inode) == (header.device, header.inode)


def _start(mapping: Mapping) -> int:
    return mapping.start


def _is_mapped(mapping: Mapping, status: os.stat_result) -> bool:
    device = os.major(status.st_dev), os.minor(status.st_dev)
    return (device, status.st_ino) == (mapping.device, mapping.inode)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - a name as the kernel gives it, hundreds of times
    except (OSError, ValueError):
        return None


def _starts_alike(descriptor: int, mapping: Mapping, memory: MemoryReader) -> bool:
    try:
        head = os.pread(descriptor, _HEAD, 0)
        return bool(head) and bytes(memory.read(mapping.start, len(head))) == head
    except (OSError, MemoryReadError):
        return False


def _held(descriptor: int) -> MappedFile | None:
    try:
        identity = FileIdentity.of(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        return None
    return MappedFile("", identity, descriptor)


def _whole(mapping: Mapping, memory: MemoryReader) -> tuple[MemoryRegion, ...]:
    try:
        return (
            MemoryRegion(mapping.start, memory.read(mapping.start, mapping.end - mapping.start)),
        )
    except MemoryReadError:
        return ()


def _copied(
    segments: Sequence[Segment], slide: int, memory: MemoryReader
) -> tuple[MemoryRegion, ...]:
    regions: list[MemoryRegion] = []
    left = _COPY_LIMIT
    for segment in segments:
        start = Avma(segment.address + slide)
        if segment.file_size > left:
            continue
        try:
            regions.append(MemoryRegion(start, memory.read(start, segment.file_size)))
        except MemoryReadError:
            continue
        left -= segment.file_size
    return tuple(regions)


def _mount_namespace(directory: ProcessDirectory) -> str | None:
    try:
        return directory.link("ns/mnt")
    except OSError:
        return None


def _own_mount_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/mnt").readlink())
    except OSError:
        return ""
