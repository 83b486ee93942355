"""Writing a snapshot as a small core."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import fsdecode
from typing import BinaryIO

from machtrace.reports.atomic_write import replace_file
from machtrace.pipeline.used_memory import core_format, used_memory
from machtrace.model.image import ImageFormat
from machtrace.model.snapshot import FilePath, KeptImages, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCore:
    """What was written."""

    path: str
    format: ImageFormat
    size: int
    """In bytes."""


def save_snapshot(
    snapshot: Snapshot, path: str | FilePath, *, images: KeptImages = "used"
) -> SavedCore:
    """Write ``snapshot`` as a core; see :meth:`~machtrace.model.snapshot.Snapshot.save`.

    Raises:
        FileAccessError: the file cannot be written.
        CoreFileError: the process cannot be put into a core.
    """
    name = fsdecode(path)
    kind, parts = _core(snapshot, images)
    return SavedCore(path=name, format=kind, size=replace_file(name, parts))


def write_snapshot(snapshot: Snapshot, sink: BinaryIO, *, images: KeptImages = "used") -> SavedCore:
    """Write ``snapshot`` as a core to ``sink``, which need not be a file.

    It is the core that :func:`save_snapshot` writes. Its path is the sink's name.

    Raises:
        OSError: the sink cannot be written.
        CoreFileError: the process cannot be put into a core.
    """
    kind, parts = _core(snapshot, images)
    size = 0
    for part in parts:
        sink.write(part)
        size += len(part)
    return SavedCore(path=str(sink.name), format=kind, size=size)


def _core(
    snapshot: Snapshot, images: KeptImages
) -> tuple[ImageFormat, Iterable[bytes | memoryview]]:
    kind = core_format(snapshot)
    regions = used_memory(snapshot, images)
    if kind is ImageFormat.ELF:
        from machtrace.formats.elf.core.writer import core_chunks
    else:
        from machtrace.formats.macho.core.writer import core_chunks
    return kind, core_chunks(snapshot, regions)
