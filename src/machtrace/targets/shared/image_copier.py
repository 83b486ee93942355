"""Copying what walks and names take of images that no file of this machine has.

The memory is that of a remote process; many ranges are requested at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.macho.contents import MachOMemoryContents
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion, without_overlap
from machtrace.targets.shared.paged_memory import MemoryOfRanges, PagedMemory

COPY_LIMIT = 1 << 26
"""Bytes of all images together that are copied of one process."""


class ImageCopier:
    """Copies bytes of one process's images and caches them."""

    def __init__(
        self, memory: MemoryOfRanges, pages: PagedMemory, arch: Arch, mask: PacMask
    ) -> None:
        self._memory = memory
        self._pages = pages
        self._arch = arch
        self._mask = mask
        self._copied: dict[BinaryImage, list[MemoryRegion]] = {}
        self._left = COPY_LIMIT

    def copy_used(
        self,
        images: ImageList,
        elves: Mapping[Avma, ElfImage],
        stacks: Iterable[MemoryRegion],
        registers: Iterable[int],
    ) -> list[MemoryRegion]:
        """Copy the bytes that unwinding and symbolication need of images without a file here.

        Args:
            images: of the process.
            elves: headers of those that are ELF, by load address.
            stacks: what was copied of the threads.
            registers: what they held.

        Raises:
            ConnectionLostError, RemoteProtocolError: the request failed.
        """
        from machtrace.targets.shared.image_bytes import (
            elf_ranges,
            macho_ranges,
            pointers_in,
            within,
        )

        pointers = pointers_in(stacks, registers, self._arch, self._mask)
        lacking = [
            (image, [address - image.slide for address in addresses])
            for image in images
            if image.local_path is None and (addresses := within(pointers, image))
        ]
        machos = [image for image, _ in lacking if image.format is ImageFormat.MACHO]
        parsed = self._pages.gather(lambda: {macho: self.macho(macho) for macho in machos})
        wanted: list[tuple[BinaryImage, tuple[int, int]]] = []
        for image, addresses in lacking:
            contents, elf = parsed.get(image), elves.get(image.load_address)
            ranges: list[tuple[int, int]] = []
            if contents is not None:
                ranges = list(macho_ranges(contents.image, addresses))
            elif elf is not None:
                ranges = list(elf_ranges(elf, addresses))
            wanted += [(image, macho) for macho in self._affordable(image, ranges)]
        found = self._memory.read_many([place for _, place in wanted])
        for (image, (start, _)), data in zip(wanted, found, strict=True):
            self._copied.setdefault(image, []).append(MemoryRegion(Avma(start), data))
        return without_overlap(*(self._copied.get(image, ()) for image in images))

    def macho(self, image: BinaryImage) -> MachOMemoryContents | None:
        """Read the load commands of a Mach-O, from pages; None if they cannot be read."""
        try:
            return MachOMemoryContents(self._pages, image.load_address, image.path)
        except (FormatError, MemoryReadError):
            return None

    def _affordable(
        self, image: BinaryImage, ranges: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        from machtrace.targets.shared.image_bytes import merged

        slid = [(start + image.slide, size) for start, size in ranges if start + image.slide >= 0]
        held = self._copied.get(image, ())
        affordable = merged(
            (
                (start, size)
                for start, size in slid
                if not any(one.start <= start and start + size <= one.end for one in held)
            ),
            self._left,
        )
        self._left -= sum(size for _, size in affordable)
        return affordable
