"""The images of a core's process.

They are from the first of these sources that has any: the notes "all image infos" and "load
binary"; dyld's list, found by "main bin spec" or dyld's header in memory; all Mach-O headers in
memory. A header in memory takes precedence over facts of its image elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from uuid import UUID

import numpy as np

from machtrace.errors import CoreFileError, FormatError, MachtraceError, MemoryReadError
from machtrace.formats.macho.contents import MachOMemoryContents
from machtrace.formats.macho.core.file import CoreFile
from machtrace.formats.macho.core.notes import NotedImage
from machtrace.formats.macho.dyld import DyldImages, find_image_infos, read_dyld_images
from machtrace.formats.macho.header import FileType, is_macho, parse_header
from machtrace.formats.macho.load_commands import LC_ID_DYLINKER, LC_REQ_DYLD
from machtrace.formats.macho.structs import MACH_HEADER, MACH_HEADER_64_SIZE, MH_MAGIC, MH_MAGIC_64
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion
from machtrace.model.process_metadata import NotedExtent

_ADDRESS_LIMIT = 1 << 64
_LC_STR_OFFSET = 8
"""The offset of the name's offset in ``struct dylinker_command``."""
_PROGRAM_SVMA = {8: Svma(1 << 32), 4: Svma(0x4000)}
"""The default stated address of a program's header, by pointer size: after a ``__PAGEZERO`` of
4 GiB or 16 KiB. Libraries are linked at 0."""
_MAX_CODE = 1 << 30
"""The assumed maximum size of ``__TEXT``, if it is unknown."""
_MIN_BUDGET = 1 << 20


@dataclass(frozen=True, slots=True)
class CoreImages:
    """The images of a core."""

    images: ImageList
    program: BinaryImage | None
    """The main executable."""
    problems: tuple[MachtraceError, ...] = ()
    """Errors of images."""


def find_images(core: CoreFile) -> CoreImages:
    """Return the images of ``core``; raises nothing."""
    finder = _Finder(core, max(_MIN_BUDGET, core.memory.size))
    finder.add_noted(core.noted_images)
    if not finder.found and not finder.add_main_binary():
        finder.add_scanned()
    return finder.result()


@dataclass(frozen=True, slots=True)
class _Found:
    image: BinaryImage
    filetype: FileType | None
    """None if the header was not captured."""


@dataclass(slots=True)
class _Finder:
    core: CoreFile
    budget: int
    """The remaining budget of load commands, in bytes. Real headers do not overlap, so all together
    are no larger than the captured memory."""
    found: dict[int, _Found] = field(default_factory=dict)
    """Images by load address, in the order of discovery."""
    problems: list[MachtraceError] = field(default_factory=list)

    # --- sources ---

    def add_noted(self, noted: Sequence[NotedImage]) -> None:
        starts = sorted({image.load_address for image in noted if image.load_address is not None})
        extents = {extent.load_address: extent for extent in self.core.metadata.extents}
        for index, image in enumerate(noted):
            address = image.load_address
            if address is None:
                self.problems.append(
                    CoreFileError(
                        f"image {image.path or image.uuid or index} without a load address",
                        source=self.core.source,
                        offset=0,
                    )
                )
            elif address not in self.found and not self.add_at(address, image.path, image.uuid):
                extent = extents.get(address)
                if extent is None:
                    next_start = _after(starts, address)
                    extent = self._guess(image, address, next_start, is_program=index == 0)
                self._add(extent, image.path, image.uuid, self.core.arch, None)

    def add_main_binary(self) -> bool:
        """Add images by "main bin spec"; return whether the search is complete."""
        main = self.core.main_binary
        if main is None or main.address is None:
            return False
        if not self._is_header(main.address):
            return self.add_listed(main.address)
        if not self.add_at(main.address, "", main.uuid):
            return False
        is_dyld = self.found[main.address].filetype is FileType.DYLINKER
        # A kernel, or a program without a system, is the only image.
        return not is_dyld or self.add_from_dyld(main.address)

    def add_scanned(self) -> None:
        """Add images by headers in memory; if dyld is among them, by its list."""
        memory, cputype = self.core.memory, self.core.cputype
        for regions in (memory.code, memory.regions.regions):
            end = 0
            for address in scan_headers(regions, cputype):
                # A header inside an image's code belongs to a file embedded in the image.
                if address >= end and self.add_at(address, "", None):
                    end = self.found[address].image.end
            if self.found:
                break
        for found in tuple(self.found.values()):
            if found.filetype is FileType.DYLINKER and self.add_from_dyld(found.image.load_address):
                break

    # --- dyld ---

    def add_from_dyld(self, dyld: Avma) -> bool:
        """Return the images that the dyld at ``dyld`` lists; whether it lists any."""
        try:
            contents = MachOMemoryContents(self.core.memory.regions, dyld, "dyld")
        except (FormatError, MemoryReadError):
            return False
        infos = find_image_infos(contents)
        return infos is not None and self.add_listed(infos)

    def add_listed(self, infos: Avma) -> bool:
        """Return the images in the ``dyld_all_image_infos`` at ``infos``; whether there are any."""
        try:
            listed = read_dyld_images(
                self.core.memory.regions,
                infos,
                pointer_size=self.core.arch.pointer_size,
                source=self.core.source,
            )
        except (FormatError, MemoryReadError) as error:
            self.problems.append(error)
            return False
        self._add_dyld_images(listed)
        return bool(listed.images)

    def _add_dyld_images(self, listed: DyldImages) -> None:
        # dyld's list has paths and an order; images that it lacks, such as dyld itself, follow.
        before, self.found = self.found, {}
        self.add_noted(
            [
                NotedImage(path=image.path, uuid=None, load_address=image.load_address)
                for image in listed.images
            ]
        )
        if listed.dyld is not None and listed.dyld not in self.found:
            self.add_at(listed.dyld, "", None)
        for address, found in before.items():
            self.found.setdefault(address, found)

    # --- one image ---

    def _is_header(self, address: Avma) -> bool:
        try:
            return is_macho(self.core.memory.regions.read(address, 4))
        except MemoryReadError:
            return False

    def add_at(self, address: Avma, path: str, uuid: UUID | None) -> bool:
        """Return the image whose header is at ``address``; False if it cannot be read."""
        memory = self.core.memory.regions
        source = path or f"image at {address:#x}"
        try:
            header = parse_header(memory.read(address, MACH_HEADER_64_SIZE), source)
            self.budget -= header.sizeofcmds
            if self.budget < 0:
                raise CoreFileError(
                    "load commands of images overlap", source=self.core.source, offset=0
                )
            image = MachOMemoryContents(memory, address, source).image
        except MemoryReadError:
            return False
        except FormatError as error:
            self.problems.append(error)
            return False
        text = image.text_segment
        if text is None:
            return False
        name = path or image.install_name or ""
        for command in image.commands_of(LC_ID_DYLINKER):
            name = name or command.text(
                int.from_bytes(command.data[_LC_STR_OFFSET : _LC_STR_OFFSET + 4], "little")
            )
        extent = NotedExtent(load_address=address, header_svma=text.vmaddr, size=text.vmsize)
        arch = header.arch or self.core.arch
        self._add(extent, name, image.uuid or uuid, arch, header.filetype)
        return True

    def _guess(
        self, noted: NotedImage, address: Avma, next_start: int, *, is_program: bool
    ) -> NotedExtent:
        """Return an image whose header was not captured."""
        svma = _PROGRAM_SVMA[self.core.arch.pointer_size] if is_program else Svma(0)
        if noted.slide is not None:
            svma = Svma((address - noted.slide) % _ADDRESS_LIMIT)
        # The code ends at the image's next segment or at the next image: in a shared cache, the
        # code of all libraries is contiguous, and their data elsewhere.
        own = (start for _, start in noted.segments if start > address)
        end = min(address + _MAX_CODE, next_start, *own)
        return NotedExtent(load_address=address, header_svma=svma, size=end - address)

    def _add(
        self,
        extent: NotedExtent,
        path: str,
        uuid: UUID | None,
        arch: Arch,
        filetype: FileType | None,
    ) -> None:
        image = BinaryImage(
            path=path,
            uuid=uuid,
            arch=arch,
            format=ImageFormat.MACHO,
            load_address=extent.load_address,
            header_svma=extent.header_svma,
            size=min(extent.size, _ADDRESS_LIMIT - extent.load_address),
        )
        self.found[extent.load_address] = _Found(image, filetype)

    # --- all ---

    def result(self) -> CoreImages:
        program = self._program()
        images: Iterable[BinaryImage] = (found.image for found in self.found.values())
        path = self.core.metadata.path
        if program is not None and path and not program.path:
            named = replace(program, path=path)
            images = [named if image is program else image for image in images]
            program = named
        return CoreImages(ImageList(images), program, tuple(self.problems))

    def _program(self) -> BinaryImage | None:
        candidates = tuple(self.found.values())
        for candidate in candidates:
            if candidate.filetype is FileType.EXECUTE:
                return candidate.image
        # Every list starts with the program; if the first header states another file type, the
        # list was written without it.
        return candidates[0].image if candidates and candidates[0].filetype is None else None


def _after(starts: Sequence[int], address: int) -> int:
    index = bisect_right(starts, address)
    return starts[index] if index < len(starts) else _ADDRESS_LIMIT


PAGE_SIZE = 4096
"""Headers are at the start of a page; a page of 16 KiB starts at a multiple of 4 KiB, too."""

LOADED_TYPES = frozenset(
    filetype.value
    for filetype in (FileType.EXECUTE, FileType.DYLIB, FileType.DYLINKER, FileType.BUNDLE)
)

_COMMAND_LIMIT = 1 << 16
_COMMANDS_SIZE_LIMIT = 1 << 24
_MIN_COMMAND_SIZE = 8
_KNOWN_COMMAND_LIMIT = 0x100
"""Above every load command's number without LC_REQ_DYLD."""


def scan_headers(regions: Iterable[MemoryRegion], cputype: int) -> Iterator[Avma]:
    """Yield addresses of apparent headers of loaded images for ``cputype``.

    Only the first word of each page is read, and more if it is a Mach-O magic number.
    """
    for region in regions:
        first = -region.start % PAGE_SIZE
        words = (len(region.data) - first) // 4
        if words <= 0:
            continue
        view = np.frombuffer(region.data, "<u4", count=words, offset=first)[:: PAGE_SIZE // 4]
        for page in np.flatnonzero((view == MH_MAGIC_64) | (view == MH_MAGIC)).tolist():
            offset = first + page * PAGE_SIZE
            if _is_header(region.data[offset:], cputype):
                yield Avma(region.start + offset)


def _is_header(data: bytes | memoryview, cputype: int) -> bool:
    if len(data) < MACH_HEADER_64_SIZE + _MIN_COMMAND_SIZE:
        return False
    row = MACH_HEADER.unpack(data)
    size = MACH_HEADER_64_SIZE if row.magic == MH_MAGIC_64 else MACH_HEADER.size
    first_command = int.from_bytes(data[size : size + 4], "little") & ~LC_REQ_DYLD
    return (
        row.cputype == cputype
        and row.filetype in LOADED_TYPES
        and 0 < row.ncmds <= _COMMAND_LIMIT
        and row.ncmds * _MIN_COMMAND_SIZE <= row.sizeofcmds <= _COMMANDS_SIZE_LIMIT
        and 0 < first_command < _KNOWN_COMMAND_LIMIT
    )
