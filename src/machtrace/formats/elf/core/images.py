"""The images that the process of an ELF core had loaded, and their addresses.

A core saved by machtrace lists them. Others have a list of mapped files (``NT_FILE``), the loader's
own list in memory, and images in memory that begin with their headers; an image's header outweighs
what lists state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.contents import ElfMemoryContents
from machtrace.formats.elf.core.file import ElfCore, MappedRange
from machtrace.formats.elf.core.loader_memory import (
    AT_ENTRY,
    AT_EXECFN,
    AT_PHDR,
    AT_SYSINFO_EHDR,
    loaded_objects,
    read_string,
)
from machtrace.formats.elf.core.notes import auxiliary_values
from machtrace.formats.elf.headers import HEADER_SIZE, read_header
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import MAGIC, ElfType
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, BuildId, ImageFormat, ImageList
from machtrace.model.process_metadata import NotedExtent
from machtrace.model.snapshot import FileMapping

VDSO = "[vdso]"
"""The kernel's name for it in a process's maps."""

_ADDRESS_LIMIT = 1 << 64
_MIN_BUDGET = 1 << 20
_HEADERS_COST = 512
"""The least bytes of an image's headers."""
_MAX_FILES = 4096
"""Files that are examined because headers are missing."""


@dataclass(frozen=True, slots=True)
class FoundImages:
    """The images of a core."""

    images: tuple[BinaryImage, ...]
    program: str
    """The program's path; empty if unknown."""
    headless: tuple[tuple[FileMapping, ...], ...] = ()
    """Mappings, of one file each, that may be an image whose header the core lacks."""


def find_core_images(core: ElfCore) -> FoundImages:
    """Find the images of ``core``. Raises nothing."""
    metadata = core.metadata
    if metadata is not None and metadata.extents:
        # JSON cannot represent the bytes of a path that are no text; the list of files can.
        exact = {
            file.start: file.path for file in core.facts.file_mappings if not file.path.isascii()
        }
        images = tuple(_noted(extent, core, exact) for extent in metadata.extents)
        return FoundImages(images, metadata.path)
    finder = _Finder(core)
    images = tuple(finder.images())
    return FoundImages(images, _program(core, images), tuple(finder.headless))


def _noted(extent: NotedExtent, core: ElfCore, exact: Mapping[Avma, str]) -> BinaryImage:
    try:
        arch = Arch(extent.arch)
    except ValueError:
        arch = core.header.arch
    return BinaryImage(
        path=exact.get(extent.load_address, extent.path),
        uuid=BuildId(extent.build_id) if extent.build_id else None,
        arch=arch,
        format=ImageFormat.ELF,
        load_address=extent.load_address,
        header_svma=extent.header_svma,
        size=min(extent.size, _ADDRESS_LIMIT - extent.load_address),
    )


def image_of(elf: ElfImage, path: str, load_address: Avma) -> BinaryImage:
    """Return the image at ``load_address``, whose headers are ``elf``."""
    return BinaryImage(
        path=path,
        uuid=elf.build_id,
        arch=elf.arch,
        format=ImageFormat.ELF,
        load_address=load_address,
        header_svma=elf.header_svma,
        size=min(elf.size, _ADDRESS_LIMIT - load_address),
    )


class _Finder:
    """Searches for the starts of images, by address."""

    def __init__(self, core: ElfCore) -> None:
        self._core = core
        self._memory = core.memory.regions
        self._mapped = list(core.mapped)
        # gdb lists only what it writes, and it writes no code that files have.
        stated = {region.start for region in core.mapped}
        self._mapped += [
            MappedRange(file.start, file.end, "rx")
            for file in core.facts.file_mappings
            if file.start not in stated
        ]
        self._mapped.sort(key=_start)
        self._has_protection = any(region.is_executable for region in self._mapped)
        # Real headers do not overlap, so all of them together are no longer than their memory.
        self._budget = max(_MIN_BUDGET, core.memory.size)
        self.headless: list[tuple[FileMapping, ...]] = []

    def images(self) -> Iterator[BinaryImage]:
        names = self._names()
        runs = {run[0].start: run for run in _runs(self._core.facts.file_mappings)}
        starts = {region.start for region in self._core.mapped}
        end = 0
        for start in sorted({*names, *runs, *starts}):
            if start < end:
                continue  # a later part of an image, or a file that it embeds
            address = Avma(start)
            path = names.get(start, "")
            run = runs.get(address)
            image = self._at(address, path or (run[0].path if run else ""))
            if image is not None:
                end = image.end
                yield image
            elif run is not None and not self._holds(address) and len(self.headless) < _MAX_FILES:
                self.headless.append(run)

    def _names(self) -> dict[int, str]:
        """Return names by load address, for images without a file mapping."""
        facts, layout = self._core.facts, self._core.header.layout
        # A library is linked at 0, so the bias is its load address.
        names = {
            loaded.bias: loaded.name
            for loaded in loaded_objects(self._memory, facts.auxiliary_vector, layout)
            if loaded.bias and loaded.name
        }
        kernels_own = dict(auxiliary_values(facts.auxiliary_vector, layout)).get(AT_SYSINFO_EHDR)
        if kernels_own:
            names[kernels_own] = VDSO
        for mapping in facts.file_mappings:
            names.pop(mapping.start, None)
        return names

    def _holds(self, address: Avma) -> bool:
        return self._memory.region_at(address) is not None

    def _at(self, address: Avma, path: str) -> BinaryImage | None:
        try:
            if bytes(self._memory.read(address, len(MAGIC))) != MAGIC:
                return None
            source = path or f"image at {address:#x}"
            header = read_header(self._memory.read(address, HEADER_SIZE), source)
            self._budget -= _HEADERS_COST + header.program_header_count * header.program_header_size
            if self._budget < 0:
                return None
            elf = ElfMemoryContents(self._memory, address, source).image
        except (FormatError, MemoryReadError):
            return None
        if elf.type not in (ElfType.EXECUTABLE, ElfType.SHARED):
            return None
        return image_of(elf, path, address) if self._is_loaded(elf, address) else None

    def _is_loaded(self, elf: ElfImage, address: Avma) -> bool:
        """Return whether an image's code is mapped as if it were to run, and not another file's.

        A file that the process only read may be mapped just before an image.
        """
        slide = address - elf.header_svma
        code = next((s.address + slide for s in elf.load_segments if s.is_executable), None)
        if code is None:
            return False
        if not self._has_protection:
            return True
        upto = bisect_right(self._mapped, code, key=_start)
        if not upto or code >= (region := self._mapped[upto - 1]).end or not region.is_executable:
            return False
        files = self._file_at(address), self._file_at(code)
        return None in files or files[0] == files[1]

    def _file_at(self, address: int) -> str | None:
        """Return the file that is mapped at an address, according to the core."""
        files = self._core.facts.file_mappings
        upto = bisect_right(files, address, key=_first)
        return files[upto - 1].path if upto and address < files[upto - 1].end else None


def _start(mapped: MappedRange) -> int:
    return mapped.start


def _first(mapping: FileMapping) -> int:
    return mapping.start


def _runs(mappings: tuple[FileMapping, ...]) -> Iterator[tuple[FileMapping, ...]]:
    """Yield runs of consecutive mappings of one file that begin with the file's first byte."""
    run: list[FileMapping] = []
    for mapping in mappings:
        if run and mapping.path == run[0].path and mapping.offset:
            run.append(mapping)
            continue
        if run:
            yield tuple(run)
        run = [] if mapping.offset else [mapping]
    if run:
        yield tuple(run)


def _program(core: ElfCore, images: tuple[BinaryImage, ...]) -> str:
    """Return the path of the image with the entry point, or the kernel's name of the program."""
    values = dict(auxiliary_values(core.facts.auxiliary_vector, core.header.layout))
    image_list = ImageList(images)
    for kind in (AT_ENTRY, AT_PHDR):
        image = image_list.find(Avma(values.get(kind, 0)))
        if image is not None and image.path:
            return image.path
        for mapping in core.facts.file_mappings:
            if mapping.start <= values.get(kind, 0) < mapping.end:
                return mapping.path
    if AT_EXECFN in values:
        return read_string(core.memory.regions, Avma(values[AT_EXECFN]))
    return ""
