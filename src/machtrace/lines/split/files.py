"""The ``.dwo`` and ``.dwp`` files of an image with split DWARF."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.dwarf.split_units import DwarfReader, SkeletonUnit, SplitUnit
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.structs import SHF_COMPRESSED
from machtrace.images.debug_file import DebugFile
from machtrace.images.open_file import open_image_file
from machtrace.images.resolver import ImageResolver
from machtrace.images.search_record import Outcome, SearchRecord
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import FrameStatus

_MAX_COMPRESSED_SIZE = 4 << 20
"""Bytes of a compressed ``.debug_info`` that is searched for skeletons."""


class SplitFiles:
    """Finds the units of one image's skeletons, in a package or in files of their own."""

    def __init__(
        self, file: DebugFile, search: ImageResolver, image: BinaryImage, record: SearchRecord
    ) -> None:
        """Open nothing yet.

        Args:
            file: the file with the skeletons.
            search: has the image's file, beside which packages are, and folders to search.
            image: the image.
            record: takes the packages, and why files are missing.
        """
        self._file = file
        binary = search.binary(image)
        paths = [] if isinstance(binary, FrameStatus) else [binary.source]
        self._paths = list(dict.fromkeys([*paths, file.path]))
        self._folders = [path for path in search.path.paths if os.path.isdir(path)]  # noqa: PTH112
        self._record = record
        self._opened: dict[str, dict[int, SplitUnit] | None] = {}

    @cached_property
    def reader(self) -> DwarfReader:
        """The reader of the file with the skeletons."""
        return _reader(self._contents)

    @property
    def _contents(self) -> ElfFileContents:
        contents = self._file.contents
        assert contents.format is ImageFormat.ELF  # noqa: S101 - only these have skeletons
        return contents

    @cached_property
    def skeletons(self) -> list[SkeletonUnit]:
        """The skeleton units; none if they are malformed."""
        section = self._contents.image.section(".debug_info")
        size = 0 if section is None else section.size
        if section is not None and section.flags & SHF_COMPRESSED and size > _MAX_COMPRESSED_SIZE:
            return []  # skeletons are small
        try:
            return list(self.reader.skeletons())
        except (FormatError, MemoryReadError) as error:
            self._record.add(self._file.path, Outcome.MALFORMED, str(error))
            return []

    def unit(self, skeleton: SkeletonUnit) -> SplitUnit | None:
        """Return the unit of a skeleton; None, and why in the record, if it is not to be had."""
        unit = self._packaged.get(skeleton.unit_id)
        if unit is not None:
            return unit
        outcome, location = Outcome.NO_FILE, skeleton.file_name
        for path in self._unit_paths(skeleton):
            units = self._units(path)
            if units is None:
                continue
            if skeleton.unit_id in units:
                return units[skeleton.unit_id]
            outcome, location = Outcome.OTHER_IDENTIFIER, path
        detail = f"the unit {skeleton.unit_id:016x}"
        self._record.add(location, outcome, detail)
        return None

    @cached_property
    def package(self) -> str | None:
        """The path of the ``.dwp`` file that has any of the units."""
        return self._package[0]

    @property
    def _packaged(self) -> dict[int, SplitUnit]:
        return self._package[1]

    @cached_property
    def _package(self) -> tuple[str | None, dict[int, SplitUnit]]:
        wanted = {skeleton.unit_id for skeleton in self.skeletons}
        for path in self._package_paths():
            units = self._units(path)
            if units is None:
                continue
            if wanted & set(units):
                return path, units
            self._record.add(path, Outcome.OTHER_IDENTIFIER, f"{len(units)} other units")
        return None, {}

    def _package_paths(self) -> Iterator[str]:
        for path in self._paths:
            yield f"{path}.dwp"
        for path in self._paths:
            name = os.path.basename(path)  # noqa: PTH119
            yield from (os.path.join(folder, f"{name}.dwp") for folder in self._folders)  # noqa: PTH118

    def _unit_paths(self, skeleton: SkeletonUnit) -> Iterator[str]:
        """Yield where a unit's file may be: recorded, and in given folders."""
        recorded = os.path.join(skeleton.folder, skeleton.file_name)  # noqa: PTH118
        beside = os.path.dirname(self._paths[0])  # noqa: PTH120
        yield os.path.join(beside, recorded)  # noqa: PTH118
        for folder in self._folders:
            yield os.path.join(folder, recorded.lstrip("/"))  # noqa: PTH118
            yield os.path.join(folder, os.path.basename(recorded))  # noqa: PTH118, PTH119

    def _units(self, path: str) -> dict[int, SplitUnit] | None:
        """Return the units in a file; None, and why in the record, if it cannot be read."""
        if path not in self._opened:
            self._opened[path] = self._read(path)
        return self._opened[path]

    def _read(self, path: str) -> dict[int, SplitUnit] | None:
        if not os.path.isfile(path):  # noqa: PTH113
            return None
        try:
            return _reader(ElfFileContents(open_image_file(path), path)).split_units()
        except OSError as error:  # a FileAccessError is one
            self._record.add(path, Outcome.UNREADABLE, error.strerror or "")
        except (FormatError, MemoryReadError) as error:
            self._record.add(path, Outcome.MALFORMED, str(error))
        return None


def _reader(contents: ElfFileContents) -> DwarfReader:
    sections: dict[str, memoryview] = {}

    def read(name: str) -> memoryview:
        if name not in sections:
            section = contents.image.section(name)
            sections[name] = memoryview(b"") if section is None else contents.read_section(section)
        return sections[name]

    little_endian = contents.image.layout.little_endian
    return DwarfReader(read, contents.source, little_endian=little_endian)
