"""A process in an ELF core file, and the files of this machine that are its images.

A file matches an image by its build-id; without one, if it starts as the image does in the core;
and if the core has nothing of the image, if it fits the list of mappings and was not changed since
the core was written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path

from machtrace.cpython.runs import PythonRuns
from machtrace.cpython.runtime import find_runtime
from machtrace.cpython.threads import read_threads, with_functions, with_problem
from machtrace.errors import FormatError, MachtraceError, MemoryReadError, TargetError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.core.file import ElfCore, ElfCoreThread, parse_elf_core
from machtrace.formats.elf.core.images import FoundImages, find_core_images, image_of
from machtrace.formats.elf.headers import PAGE_SIZE
from machtrace.formats.elf.structs import PF_W
from machtrace.model.address import Avma
from machtrace.model.cause import Cause, stack_name
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import (
    LayeredMemory,
    MemoryReader,
    MemoryRegion,
    RegionMemory,
    without_overlap,
)
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import (
    FileMapping,
    Problem,
    ProcessInfo,
    Snapshot,
    ThreadId,
    ThreadInfo,
    ThreadSnapshot,
)
from machtrace.targets.core.target import CoreTarget, noted_indexes, stack_region
from machtrace.targets.shared.file_mapping import map_core, map_file
from machtrace.targets.shared.proc_maps import address_region

# --- Python functions of a process in an ELF core ---


def with_python(snapshot: Snapshot) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
    """Return a core's snapshot with problems added, and the Python functions of its threads.

    Memory that a core omits because files have it comes from the images' files on this machine.
    The core must have the heap, as those of the kernel and gdb do.
    """
    files = {
        image.load_address: data
        for image in snapshot.images
        if image.format is ImageFormat.ELF and (data := _file_of(image)) is not None
    }
    images = list(snapshot.images)
    pieces = without_overlap(*(_unchanging(image, files) for image in images))
    memory = LayeredMemory((snapshot.memory, RegionMemory(pieces)))
    try:
        runtime = find_runtime(
            images,
            memory,
            lambda image: files.get(image.load_address),
            snapshot.process.path,
        )
    except MemoryReadError:
        error = TargetError(
            "Python functions cannot be read: the core lacks CPython's memory",
            remedy="write a core with all memory, as the kernel and gdb's gcore do",
        )
        return with_problem(snapshot, error), {}
    except MachtraceError as error:
        return with_problem(snapshot, error), {}
    python = read_threads(memory, runtime.address, runtime.layout)
    ids = {int(thread.info.id): thread.info.id for thread in snapshot.threads}
    return with_functions(snapshot, python, ids)


def _file_of(image: BinaryImage) -> memoryview | None:
    """Return the file at the image's path, if it is known to be the image's."""
    path = image.local_path or image.path
    data = map_file(path) if path.startswith("/") else None
    if data is None or image.local_path:
        return data
    try:
        return data if ElfFileContents(data, path).image.build_id == image.uuid else None
    except MachtraceError:
        return None


def _unchanging(image: BinaryImage, files: dict[Avma, memoryview]) -> Iterator[MemoryRegion]:
    data = files.get(image.load_address)
    if data is None:
        return
    try:
        elf = ElfFileContents(data, image.path).image
    except MachtraceError:
        return
    slide = image.load_address - elf.header_svma
    for segment in elf.load_segments:
        end = segment.offset + segment.file_size
        if not segment.flags & PF_W and end <= len(data):
            yield MemoryRegion(Avma(segment.address + slide), data[segment.offset : end])


# --- A process in an ELF core file, and the files of this machine that are its images ---

_HEAD = 4096
"""Bytes at the start of an image that are compared at most."""
_MIN_BYTES = 256
"""Bytes required for a comparison: the headers with the segments' addresses and sizes."""


def images_with_files(
    core: ElfCore, core_images: FoundImages, core_path: str
) -> Iterator[BinaryImage]:
    """Yield the images of ``core`` and those known only from files; raises nothing."""
    memory = core.memory.regions
    for image in core_images.images:
        if image.uuid is None and image.path.startswith("/") and _starts_alike(image, memory):
            yield replace(image, local_path=image.path)
        else:
            yield image
    for run in core_images.headless:
        added = _of_file(run, core, core_path)
        if added is not None:
            yield added


def _starts_alike(image: BinaryImage, memory: MemoryReader) -> bool:
    data = map_file(image.path)
    for size in (_HEAD, _HEAD // 4, _MIN_BYTES):
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


class ElfCorefileTarget(CoreTarget[ElfCore]):
    """An ELF core as a :class:`~machtrace.targets.base.Target`."""

    def __init__(self, path: str | Path) -> None:
        """Map the file and read its notes.

        Raises:
            FileAccessError: there is no such file, or it cannot be read.
            ElfError, CoreFileError: it is not an ELF core.
        """
        super().__init__(str(path), parse_elf_core(map_core(str(path)), str(path)))

    @cached_property
    def process(self) -> ProcessInfo:
        """The process; its path is its program's."""
        core = self.core
        noted = core.metadata
        return ProcessInfo(
            pid=core.pid or (None if noted is None else noted.pid),
            path=self._images.program or core.facts.name,
            arch=core.header.arch,
            pointer_mask=core.pointer_mask,
        )

    def threads(self) -> tuple[ThreadInfo, ...]:
        """List its threads: as they were noted, else in the core's order.

        Raises:
            TargetError: the target was closed.
        """
        return tuple(info for _, info in self._threads())

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """Return ``threads`` (None: all) as the core has them; nothing is copied.

        A stack that is not in the core is empty; it is named in :attr:`Snapshot.problems`, and so
        is everything else that could not be read.
        """
        core, memory = self.core, self.core.memory.regions
        listed = self._threads()
        wanted = {info.id for _, info in listed} if threads is None else set(threads)
        errors: list[tuple[ThreadId | None, MachtraceError]] = [(None, e) for e in core.problems]
        notes = core.noted_threads
        pointers = [thread.registers.sp or 0 for thread, _ in listed]
        copied: list[ThreadSnapshot] = []
        for thread, info in listed:
            if info.id not in wanted:
                continue
            wanted.discard(info.id)
            noted = notes[thread.index - 1]
            registers = noted.restored(thread.registers)
            stack = stack_region(memory, registers, stack_limit, pointers)
            if not stack.data and stack_limit > 0:
                errors.append((info.id, self._no_stack(info, registers.sp)))
            copied.append(
                ThreadSnapshot(
                    info=info,
                    registers=registers,
                    stack=stack,
                    taken_at_ns=noted.taken_at_ns,
                    stopped_for_ns=noted.stopped_for_ns,
                    native_registers=thread.native_registers,
                    other_registers=noted.other_registers,
                )
            )
        errors += [(missing, self._no_thread(missing)) for missing in sorted(wanted)]
        problems = [Problem(thread=thread, error=error) for thread, error in errors]
        if core.metadata is not None:
            problems += [noted.problem for noted in core.metadata.problems]
        return Snapshot(
            process=self.process,
            threads=tuple(copied),
            images=ImageList(images_with_files(core, self._images, self._path)),
            memory=memory,
            problems=tuple(problems),
            linux=core.facts,
        )

    def snapshot_with_python(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
        stacks: bool = True,
    ) -> tuple[Snapshot, dict[ThreadId, PythonRuns]]:
        """See :meth:`~machtrace.targets.base.PythonTarget.snapshot_with_python`."""
        limit = stack_limit if stacks else 0
        return with_python(self.snapshot(threads, stack_limit=limit))

    @cached_property
    def _images(self) -> FoundImages:
        return find_core_images(self.core)

    def _cause(self, thread: ElfCoreThread) -> Cause | None:
        cause = thread.cause
        if cause is None or cause.address is None or self.core.metadata is not None:
            return cause
        core = self.core
        stacks = [
            (stack_name(other.id, is_own=other is thread), other.registers.sp or 0)
            for other in (thread, *core.threads)
        ]
        return replace(
            cause, region=address_region(cause, core.mapped, core.facts.file_mappings, stacks)
        )

    def _threads(self) -> list[tuple[ElfCoreThread, ThreadInfo]]:
        core = self.core
        notes = core.noted_threads
        crashed = next((place for place, note in enumerate(notes, 1) if note.crashed), None)
        if core.metadata is None:
            crashed = crashed_thread(core)
        indexes = noted_indexes(notes)
        ids = _distinct(
            [noted.id or note.id for note, noted in zip(core.threads, notes, strict=True)]
        )
        threads: list[tuple[ElfCoreThread, ThreadInfo]] = []
        for thread, noted, index, number in zip(core.threads, notes, indexes, ids, strict=True):
            is_main = thread.id == core.pid if noted.is_main is None else noted.is_main
            name = core.facts.name if is_main and core.metadata is None else noted.name
            info = ThreadInfo(
                id=number,
                index=index,
                name=name or None,
                queue=noted.queue,
                is_main=is_main,
                crashed=thread.index == crashed,
                cause=noted.cause or self._cause(thread),
            )
            threads.append((thread, info))
        return sorted(threads, key=lambda row: row[1].index)


def crashed_thread(core: ElfCore) -> int | None:
    """Return the index of the thread that a signal ended, with its process; None if none did.

    The first thread received the signal that ended the process. A debugger that writes a core of
    several threads has a signal for each.
    """
    if core.facts.signal:
        return 1
    fatal = [t.index for t in core.threads if t.cause is not None and t.cause.is_fatal]
    return fatal[0] if len(fatal) == 1 else None


def _distinct(ids: Sequence[ThreadId]) -> list[ThreadId]:
    """Replace ids that are duplicate or not positive by the lowest free numbers."""
    taken = set(ids)
    free = (number for number in count(1) if number not in taken)
    distinct: dict[ThreadId, None] = {}
    for number in ids:
        distinct[ThreadId(next(free)) if number <= 0 or number in distinct else number] = None
    return list(distinct)
