"""Writes a :class:`~machtrace.model.snapshot.Snapshot` of a Linux process as a small ELF core.

The format is the kernel's, which debuggers read (``fs/binfmt_elf.c``), without memory that is not
needed: a note for each thread and for the process, and a segment for each region.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from machtrace.errors import CoreFileError
from machtrace.formats.elf.core.notes import (
    CORE,
    LINUX,
    MACHTRACE,
    NT_ARM_PAC_MASK,
    NT_AUXV,
    NT_FILE,
    NT_MACHTRACE,
    NT_PRPSINFO,
    NT_PRSTATUS,
    NT_SIGINFO,
    ThreadStatus,
    file_mappings,
    note,
    pac_mask,
    process_status,
    signal_information,
    thread_status,
)
from machtrace.formats.elf.core.registers import layout_for, layout_of, read_registers
from machtrace.formats.elf.structs import (
    IDENT_SIZE,
    LAYOUTS,
    MAGIC,
    PF_R,
    PF_W,
    PF_X,
    PN_XNUM,
    PT_LOAD,
    PT_NOTE,
    ElfLayout,
    ElfType,
)
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.cause import linux_cause
from machtrace.model.image import BuildId, ImageFormat
from machtrace.model.memory import MemoryRegion, without_overlap
from machtrace.model.process_metadata import (
    NotedExtent,
    NotedProblem,
    NotedThread,
    ProcessMetadata,
    json_of_metadata,
)
from machtrace.model.snapshot import LinuxFacts, Snapshot, ThreadSnapshot

_MACHINES = {Arch.X86_64: 62, Arch.I386: 3, Arch.ARM64: 183, Arch.ARM: 40}
"""``e_machine``."""
_ELFOSABI_LINUX = 3


def core_bytes(snapshot: Snapshot, regions: Iterable[MemoryRegion] = ()) -> bytes:
    """Return a whole core of ``snapshot``; see :func:`core_chunks`."""
    return b"".join(core_chunks(snapshot, regions))


def core_chunks(
    snapshot: Snapshot, regions: Iterable[MemoryRegion] = ()
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a core of ``snapshot``, in order and in pieces.

    It has each thread's registers and stack, and the mappings of images and files. A register of
    unknown value is written as 0. The crashed thread comes first, which debuggers show.

    Args:
        snapshot: of a process that runs ELF images.
        regions: further memory; where regions overlap, the stacks' bytes are written, and of others
            those of the lower region.

    Raises:
        CoreFileError: an image is no ELF, a thread or the process is of an architecture without
            Linux cores, or an address does not fit its pointers. Raised before the first piece.
    """
    arch = snapshot.process.arch
    machine = _MACHINES.get(arch)
    if machine is None:
        raise _refused(f"there are no ELF cores of {arch.value} processes")
    layout = LAYOUTS[2 if arch.pointer_size == 8 else 1, 1]  # noqa: PLR2004 (bytes)
    for image in snapshot.images:
        if image.format is not ImageFormat.ELF:
            raise _refused(f"an ELF core cannot hold the image {image.path}, which is none")
    memory = without_overlap([thread.stack for thread in snapshot.threads], regions)
    for region in memory:
        if region.end > 1 << (8 * layout.pointer_size):
            raise _refused(
                f"the memory at {region.start:#x} is beyond the pointers of {arch.value}"
            )
    return _chunks(snapshot, layout, machine, memory)


def _refused(message: str) -> CoreFileError:
    return CoreFileError(
        message,
        source="snapshot",
        offset=0,
        remedy="write a core of a Linux process, whose images are all ELF",
    )


def _chunks(
    snapshot: Snapshot, layout: ElfLayout, machine: int, memory: list[MemoryRegion]
) -> Iterator[bytes | memoryview]:
    notes = b"".join(_notes(snapshot, layout))
    count = 1 + len(memory)
    header_size = IDENT_SIZE + layout.header.size
    notes_at = header_size + count * layout.program_header.size
    # If the count does not fit the header, it is in a section header (gABI, chapter 4).
    section = bytes(layout.section_header.size) if count >= PN_XNUM else b""
    sections_at = -(-(notes_at + len(notes)) // 8) * 8 if section else 0
    data_at = (sections_at or notes_at + len(notes)) + len(section)
    if section:
        fields = [0] * 10
        fields[7] = count  # sh_info
        section = layout.section_header.pack(*fields)
    # Without the system lldb identifies it by the names of libraries.
    ident = MAGIC + bytes((2 if layout.is_64 else 1, 1, 1, _ELFOSABI_LINUX))
    yield ident.ljust(IDENT_SIZE, b"\0") + layout.header.pack(
        ElfType.CORE.value,
        machine,
        1,
        0,
        header_size,
        sections_at,
        0,
        header_size,
        layout.program_header.size,
        min(count, PN_XNUM),
        layout.section_header.size if section else 0,
        1 if section else 0,
        0,
    )
    headers = [_program_header(layout, PT_NOTE, 0, notes_at, 0, len(notes), 4)]
    at = data_at
    for region in memory:
        flags = PF_R | (PF_W if snapshot.images.find(region.start) is None else PF_X)
        size = len(region.data)
        headers.append(_program_header(layout, PT_LOAD, flags, at, region.start, size, 1))
        at += size
    yield b"".join(headers)
    yield notes
    if section:
        yield bytes(sections_at - notes_at - len(notes)) + section
    for region in memory:
        yield region.data


def _program_header(
    layout: ElfLayout, kind: int, flags: int, offset: int, address: int, size: int, alignment: int
) -> bytes:
    in_memory = 0 if kind == PT_NOTE else size
    if layout.is_64:
        fields = (kind, flags, offset, address, 0, size, in_memory, alignment)
    else:
        fields = (kind, offset, address, 0, size, in_memory, flags, alignment)
    return layout.program_header.pack(*fields)


def _notes(snapshot: Snapshot, layout: ElfLayout) -> Iterator[bytes]:
    facts, process = snapshot.linux or LinuxFacts(name=snapshot.process.name), snapshot.process
    pid = process.pid or 0
    threads = sorted(snapshot.threads, key=lambda thread: not thread.info.crashed)
    statuses = [_status(thread, facts, layout) for thread in threads]
    process_notes = [note(CORE, NT_PRPSINFO, process_status(facts, pid, layout))]
    causes = [thread.info.cause for thread in threads]
    if causes and causes[0] is None and statuses[0].signal:
        causes[0] = linux_cause(statuses[0].signal)
    if facts.auxiliary_vector:
        process_notes.append(note(CORE, NT_AUXV, facts.auxiliary_vector))
    if facts.file_mappings:
        process_notes.append(note(CORE, NT_FILE, file_mappings(facts.file_mappings, layout)))
    signed = process.arch is Arch.ARM64 and process.pointer_mask != PacMask()
    for status, cause in zip(statuses, causes, strict=True):
        yield note(CORE, NT_PRSTATUS, thread_status(status, facts, pid, layout))
        # The kernel, too, puts the process's notes after the first thread's status.
        yield from process_notes
        process_notes = []
        if cause is not None and cause.signal_number:
            yield note(CORE, NT_SIGINFO, signal_information(cause, layout))
        if signed:
            yield note(LINUX, NT_ARM_PAC_MASK, pac_mask(process.pointer_mask.bits))
    yield from process_notes
    yield note(MACHTRACE, NT_MACHTRACE, json_of_metadata(_metadata(snapshot, threads, statuses)))


def _status(thread: ThreadSnapshot, facts: LinuxFacts, layout: ElfLayout) -> ThreadStatus:
    arch = thread.registers.arch
    known = layout_for(arch)
    if known is None or (arch.pointer_size == 8) is not layout.is_64:  # noqa: PLR2004 (bytes)
        raise _refused(f"thread {thread.info.id} has registers of {arch.value}")
    registers = thread.native_registers
    if layout_of(len(registers)) is not known:
        registers = known.bytes_of(thread.registers)
    cause = thread.info.cause
    # gdb reports the last thread's signal as the one that ended the process.
    signal = facts.signal or (0 if cause is None else cause.signal_number or 0)
    return ThreadStatus(thread.info.id, signal, registers)


def _metadata(
    snapshot: Snapshot, threads: list[ThreadSnapshot], statuses: list[ThreadStatus]
) -> ProcessMetadata:
    process = snapshot.process
    stored = [read_registers(status.registers, "snapshot") for status in statuses]
    return ProcessMetadata(
        threads=tuple(map(NotedThread.of, threads, stored)),
        pid=process.pid,
        path=process.path,
        pointer_mask=None if process.pointer_mask == PacMask() else process.pointer_mask.bits,
        extents=tuple(
            NotedExtent(
                load_address=image.load_address,
                header_svma=image.header_svma,
                size=image.size,
                path=image.path,
                build_id=image.uuid.value if isinstance(image.uuid, BuildId) else None,
                arch=image.arch.value,
            )
            for image in snapshot.images
        ),
        problems=tuple(map(NotedProblem.of, snapshot.problems)),
    )
