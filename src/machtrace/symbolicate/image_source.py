"""Finding an image's bytes: in files that the user named, where the target had it, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import isdir
from pathlib import Path

from machtrace.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.errors import FileAccessError, FormatError, MemoryReadError
from machtrace.macho.contents import FileContents, MemoryContents
from machtrace.macho.fat import parse_slices
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import FrameStatus
from machtrace.symbolicate.image_file import open_image_file

Found = FileContents | MemoryContents | ElfFileContents | ElfMemoryContents | FrameStatus
"""An image's bytes, or why there are none."""


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Opens images by identity: a file with another UUID is never used.

    Of an image whose UUID is not known, only a file is used that the user pointed to by the
    image's name, or that the target found to be the one that is mapped.
    """

    search: tuple[Path, ...] = ()
    """Files, and folders that hold files by their names or by their paths on the target."""

    @classmethod
    def of(cls, search: str | Path | Sequence[str | Path] = ()) -> ImageSource:
        """From paths as a user gives them: one, or several."""
        places = (search,) if isinstance(search, str | Path) else search
        return cls(tuple(Path(path) for path in places))

    def file(self, image: BinaryImage) -> Found:
        """The image's file, or why none will do. Raises nothing."""
        status = FrameStatus.MISSING_FILE
        for path, is_proven in self._candidates(image):
            found = _open(path, image, is_proven=is_proven)
            if not isinstance(found, FrameStatus):
                return found
            if status is FrameStatus.MISSING_FILE:
                status = found
        return status

    def _candidates(self, image: BinaryImage) -> Iterator[tuple[Path, bool]]:
        """Paths to try, and of each whether it is the image's even if no UUID tells."""
        for place in self.search:
            if isdir(place):  # noqa: PTH112 - Path.is_dir raises where it may not look
                if image.path:
                    yield place / image.name, True
                    yield place / image.path.lstrip("/"), True
            else:
                yield place, place.name == image.name
        if image.local_path is not None:
            yield Path(image.local_path), True
        if image.path.startswith("/"):
            yield Path(image.path), False


def in_memory(image: BinaryImage, memory: MemoryReader) -> Found:
    """The image as the target has it loaded, or why its bytes cannot be had. Raises nothing."""
    source = image.path or f"image at {image.load_address:#x}"
    try:
        if image.format is ImageFormat.ELF:
            return ElfMemoryContents(memory, image.load_address, source)
        return MemoryContents(memory, image.load_address, source)
    except MemoryReadError:
        return FrameStatus.MISSING_FILE
    except FormatError:
        return FrameStatus.MALFORMED_FILE


def _open(path: Path, image: BinaryImage, *, is_proven: bool) -> Found:
    try:
        data = open_image_file(path)
    except FileAccessError:
        return FrameStatus.MISSING_FILE
    may_guess = image.uuid is None and is_proven
    try:
        if image.format is ImageFormat.ELF:
            elf = ElfFileContents(data, str(path))
            is_same = elf.image.build_id == image.uuid
            return elf if is_same and (may_guess or image.uuid) else FrameStatus.MISMATCHED_FILE
        for part in parse_slices(data, str(path)):
            macho = FileContents(part.data, str(path))
            if image.uuid is not None and macho.image.uuid == image.uuid:
                return macho
            if may_guess and macho.image.header.arch is image.arch:
                return macho
    except (FormatError, MemoryReadError):
        return FrameStatus.MALFORMED_FILE
    return FrameStatus.MISMATCHED_FILE
