"""Mach-O cores for tests from any parts, also such as no writer makes.

Nothing here uses the core writer, so that its reader can be tried on something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import pack

from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.load_commands import LC_NOTE, LC_SEGMENT, LC_SEGMENT_64, LC_THREAD
from machtrace.formats.macho.structs import (
    MACH_HEADER,
    MACH_HEADER_64_SIZE,
    MH_MAGIC,
    MH_MAGIC_64,
    SEGMENT_COMMAND,
    SEGMENT_COMMAND_64,
)
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.memory import MemoryRegion
from tests.support.writers.synthetic_image import synthetic_dyld

_READ_WRITE = 3
_PAGE = 4096
_NOTE_COMMAND_SIZE = 40


@dataclass(frozen=True, slots=True)
class CoreSegment:
    """A segment to put into a core."""

    region: MemoryRegion
    protection: int = _READ_WRITE


@dataclass(frozen=True, slots=True)
class CoreNote:
    """A note to put into a core."""

    owner: str
    payload: bytes | Callable[[int], bytes]
    """Its bytes; or what makes them from the file offset that they will have."""


def thread_state(flavour: int, state: bytes) -> bytes:
    """Write one ``{flavor, count, state}`` of a thread command."""
    return pack("<2I", flavour, len(state) // 4) + state


def assemble_core(
    cputype: int,
    *,
    cpusubtype: int = 0,
    wide: bool = True,
    threads: Sequence[bytes] = (),
    segments: Sequence[CoreSegment] = (),
    notes: Sequence[CoreNote] = (),
) -> bytes:
    """Write a core with these parts, in xnu's order: segments, notes, threads.

    Args:
        cputype: ``CPU_TYPE_ARM64`` or another.
        cpusubtype: goes with it.
        wide: whether the header and segments are of the 64-bit form.
        threads: of each thread command what follows ``cmdsize``.
        segments: memory.
        notes: notes.
    """
    layout = SEGMENT_COMMAND_64 if wide else SEGMENT_COMMAND
    header_size = MACH_HEADER_64_SIZE if wide else MACH_HEADER.size
    commands_size = (
        layout.size * len(segments)
        + _NOTE_COMMAND_SIZE * len(notes)
        + sum(8 + len(thread) for thread in threads)
    )
    body = bytearray()
    start = -(-(header_size + commands_size) // _PAGE) * _PAGE
    commands = []
    for segment in segments:
        size = len(segment.region.data)
        commands.append(
            layout.pack(
                LC_SEGMENT_64 if wide else LC_SEGMENT,
                layout.size,
                b"",
                segment.region.start,
                size,
                start + len(body),
                size,
                segment.protection,
                segment.protection,
                0,
                0,
            )
        )
        body += segment.region.data
    for note in notes:
        at = start + len(body)
        payload = note.payload if isinstance(note.payload, bytes) else note.payload(at)
        owner = note.owner.encode()
        commands.append(pack("<2I16s2Q", LC_NOTE, _NOTE_COMMAND_SIZE, owner, at, len(payload)))
        body += payload
    commands += [pack("<2I", LC_THREAD, 8 + len(thread)) + thread for thread in threads]
    header = MACH_HEADER.pack(
        MH_MAGIC_64 if wide else MH_MAGIC,
        cputype,
        cpusubtype,
        FileType.CORE.value,
        len(commands),
        commands_size,
        0,
    ).ljust(header_size, b"\0")
    return (header + b"".join(commands)).ljust(start, b"\0") + bytes(body)


def loaded_dyld(at: Avma, images: Sequence[tuple[Avma, str]], arch: Arch) -> MemoryRegion:
    """Return a dyld for arm64 or x86_64, loaded at ``at``, whose own list names ``images``.

    An image is given by its load address and its path.
    """
    blank = synthetic_dyld(arch, bytes(_infos_size(images)))
    infos_at = at + blank.text_size
    return MemoryRegion(at, synthetic_dyld(arch, _infos(infos_at, at, images)).data)


_INFOS_SIZE = 256
"""More than ``dyld_all_image_infos`` has up to ``sharedCacheBaseAddress``."""


def _infos_size(images: Sequence[tuple[Avma, str]]) -> int:
    return _INFOS_SIZE + sum(24 + len(path.encode()) + 1 for _, path in images)


def _infos(at: int, dyld: int, images: Sequence[tuple[Avma, str]]) -> bytes:
    array = at + _INFOS_SIZE
    path_at = array + 24 * len(images)
    rows, paths = bytearray(), bytearray()
    for address, path in images:
        rows += pack("<3Q", address, path_at + len(paths), 0)
        paths += path.encode() + b"\0"
    head = pack("<2I2Q8xQ", 17, len(images), array, 0, dyld)
    return head.ljust(_INFOS_SIZE, b"\0") + bytes(rows + paths)
