"""The images of another process of macOS, by the list that its dyld keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from uuid import UUID

from machtrace.errors import CoreFileError, FormatError, MachtraceError, MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
from machtrace.formats.macho.dyld import DyldImage, DyldProcess, change_time, read_dyld_process
from machtrace.formats.macho.fat import parse_slices
from machtrace.formats.macho.header import FileType
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryReader
from machtrace.model.snapshot import SharedCache
from machtrace.targets.darwin.memory import TaskMemory
from machtrace.targets.shared.file_mapping import map_file
from machtrace.targets.shared.paged_memory import PagedMemory

_TRIES = 40
_PAUSE_S = 0.0005
"""Pause before the list is read again while dyld changes it, which takes some microseconds."""
_MAX_CODE = 1 << 30
"""Bytes of ``__TEXT`` that an image is believed to have at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskImages:
    """The images of a process."""

    images: ImageList = field(default_factory=ImageList)
    program: str = ""
    """The program's path; empty if unknown."""
    shared_cache: SharedCache | None = None
    problems: tuple[MachtraceError, ...] = ()
    changed_at: int | None = None


class TaskImageFinder:
    """Finds the images of one process, and caches them until the list changes.

    Args:
        memory: of the process.
        pages: the same, by pages.
        arch: of the process.
        is_here: whether the file at a path is the image of a UUID.
        pause: what waits for that many seconds.
    """

    def __init__(
        self,
        memory: TaskMemory,
        pages: PagedMemory,
        arch: Arch,
        *,
        is_here: Callable[[str, UUID], bool] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._memory = memory
        self._pages = pages
        self._arch = arch
        self._is_here = _has_image if is_here is None else is_here
        self._known_files: dict[tuple[str, UUID], bool] = {}
        self._pause = pause
        self._found: TaskImages | None = None

    def find(self, infos: Avma) -> TaskImages:
        """Find the current images of the process; raises nothing."""
        known = self._found
        try:
            now = change_time(self._memory, infos)
            if known is not None and now is not None and known.changed_at == now:
                return known
            listed = self._listed(infos)
        except (CoreFileError, MemoryReadError) as error:
            return TaskImages(problems=(error,)) if known is None else known
        self._pages.forget()
        found = self._pages.gather(lambda: self._images(listed))
        self._found = found
        return found

    def _listed(self, infos: Avma) -> DyldProcess:
        """Read the list while dyld does not change it."""
        source = "dyld's list of images"
        for _ in range(_TRIES):
            try:
                before = change_time(self._memory, infos)
                listed = read_dyld_process(self._memory, infos, source=source)
            except (CoreFileError, MemoryReadError):
                self._pause(_PAUSE_S)
                continue
            if before == listed.changed_at == change_time(self._memory, infos):
                return listed
            self._pause(_PAUSE_S)
        return read_dyld_process(self._memory, infos, source=source)

    def _images(self, listed: DyldProcess) -> TaskImages:
        images: list[BinaryImage] = []
        problems: list[MachtraceError] = []
        program = ""
        for entry in _all(listed):
            uuid = listed.uuids.get(entry.load_address)
            try:
                image, filetype = loaded_image(self._pages, entry, uuid, self._arch)
            except MemoryReadError:
                image, filetype = _unread(entry, uuid, self._arch), None
            except FormatError as error:
                problems.append(error)
                continue
            if filetype is FileType.EXECUTE or (not images and filetype is None):
                program = program or image.path
            images.append(self.with_file(image))
        return TaskImages(
            images=ImageList(images),
            program=program,
            shared_cache=listed.shared_cache,
            problems=tuple(problems),
            changed_at=listed.changed_at,
        )

    def with_file(self, image: BinaryImage) -> BinaryImage:
        """``image`` with its file, where this machine has it: its bytes need not be copied."""
        if not isinstance(image.uuid, UUID):
            return image
        key = image.path, image.uuid
        if key not in self._known_files:
            self._known_files[key] = self._is_here(*key)
        return replace(image, local_path=image.path) if self._known_files[key] else image


def _all(listed: DyldProcess) -> Iterator[DyldImage]:
    """Yield each image once, dyld itself too, which its list may leave out."""
    seen: set[int] = set()
    for image in listed.images.images:
        if image.load_address not in seen:
            seen.add(image.load_address)
            yield image
    dyld = listed.images.dyld
    if dyld is not None and dyld not in seen:
        yield DyldImage(dyld, listed.dyld_path or "/usr/lib/dyld")


def loaded_image(
    memory: MemoryReader, listed: DyldImage, uuid: UUID | None, arch: Arch
) -> tuple[BinaryImage, FileType]:
    """Read an image from its header in memory, and its file type.

    Args:
        memory: of the process.
        listed: dyld's entry.
        uuid: dyld's, for a header without one.
        arch: of the process, for a header that is of none that is known.

    Raises:
        MemoryReadError: the header cannot be read.
        MachOError: it is malformed.
    """
    source = listed.path or f"image at {listed.load_address:#x}"
    parsed = MachOMemoryContents(memory, listed.load_address, source).image
    text = parsed.text_segment
    size = _MAX_CODE if text is None else text.vmsize
    image = BinaryImage(
        path=listed.path or parsed.install_name or "",
        uuid=parsed.uuid or uuid,
        arch=parsed.header.arch or arch,
        format=ImageFormat.MACHO,
        load_address=listed.load_address,
        header_svma=parsed.header_svma,
        size=min(size, (1 << 64) - listed.load_address),
    )
    return image, parsed.header.filetype


def _unread(listed: DyldImage, uuid: UUID | None, arch: Arch) -> BinaryImage:
    """Build an image of which only the address is known."""
    return BinaryImage(
        path=listed.path,
        uuid=uuid,
        arch=arch,
        format=ImageFormat.MACHO,
        load_address=listed.load_address,
        header_svma=listed.load_address,  # type: ignore[arg-type]  # as if not moved
        size=0,
    )


def _has_image(path: str, uuid: UUID) -> bool:
    """Whether the file at ``path``, or a slice of it, is the image of this UUID.

    What is in the shared cache mostly has no file.
    """
    data = map_file(path) if path.startswith("/") else None
    if data is None:
        return False
    try:
        slices = parse_slices(data, path)
    except FormatError:
        return False
    return any(_uuid_of(slice_.data, path) == uuid for slice_ in slices)


def _uuid_of(data: memoryview, path: str) -> UUID | None:
    try:
        return MachOFileContents(data, path).image.uuid
    except FormatError:
        return None
