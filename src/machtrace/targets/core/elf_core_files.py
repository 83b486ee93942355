"""Which files of this machine are the images of an ELF core.

A file is an image's by its build-id. Where there is none, it is if it starts as the image does in
the core; and where the core has nothing of the image, if it fits the list of mappings and was not
changed since the core was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.core.file import ElfCore
from machtrace.formats.elf.core.images import FoundImages, image_of
from machtrace.formats.elf.segments import PAGE_SIZE
from machtrace.errors import FormatError, MemoryReadError
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage
from machtrace.model.linux import FileMapping
from machtrace.model.memory import MemoryReader
from machtrace.targets.shared.file_mapping import map_file

_HEAD = 4096
"""Bytes at the start of an image that are compared at most."""
_LEAST = 256
"""Bytes that must be there to be compared: the headers with the segments' places and sizes."""


def images_with_files(core: ElfCore, found: FoundImages, core_path: str) -> Iterator[BinaryImage]:
    """The images of ``core``, with those added that only files tell of. Raises nothing."""
    memory = core.memory.regions
    for image in found.images:
        if image.uuid is None and image.path.startswith("/") and _starts_alike(image, memory):
            yield replace(image, local_path=image.path)
        else:
            yield image
    for run in found.headless:
        added = _of_file(run, core, core_path)
        if added is not None:
            yield added


def _starts_alike(image: BinaryImage, memory: MemoryReader) -> bool:
    data = map_file(image.path)
    for size in (_HEAD, _HEAD // 4, _LEAST):
        try:
            return data is not None and data[:size] == memory.read(image.load_address, size)
        except MemoryReadError:
            continue
    return False


def _of_file(run: tuple[FileMapping, ...], core: ElfCore, core_path: str) -> BinaryImage | None:
    path = run[0].path
    data = map_file(path)
    if data is None or _changed_at(path) > _changed_at(core_path):
        return None
    try:
        elf = ElfFileContents(data, path).image
    except (FormatError, MemoryReadError):
        return None
    if elf.arch is not core.header.arch:
        return None
    slide = run[0].start - elf.header_svma
    for segment in elf.load_segments:
        if not segment.is_executable:
            continue
        page = (segment.offset // PAGE_SIZE * PAGE_SIZE, segment.address // PAGE_SIZE * PAGE_SIZE)
        fits = any(
            mapping.offset <= page[0]
            and page[1] + slide - page[0] == mapping.start - mapping.offset
            and page[1] + slide < mapping.end
            for mapping in run
        )
        if not fits:
            return None
    image = image_of(elf, path, Avma(run[0].start))
    return replace(image, local_path=path) if image.size else None


def _changed_at(path: str) -> float:
    try:
        return Path(path).stat().st_mtime
    except (OSError, ValueError):
        return 0
