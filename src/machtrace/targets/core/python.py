"""Python functions of a process in an ELF core."""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.cpython.runs import PythonRuns
from machtrace.cpython.runtime import find_runtime
from machtrace.cpython.threads import read_threads, with_functions, with_problem
from machtrace.errors import MachtraceError, MemoryReadError, TargetError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.structs import PF_W
from machtrace.model.address import Avma
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.memory import LayeredMemory, MemoryRegion, RegionMemory, without_overlap
from machtrace.model.snapshot import Snapshot, ThreadId
from machtrace.targets.shared.file_mapping import map_file


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
