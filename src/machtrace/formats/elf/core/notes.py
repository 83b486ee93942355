"""The notes of an ELF core: threads, the process, its mappings.

Sources: ``struct elf_prstatus`` and ``elf_prpsinfo`` (``linux/elfcore.h``; of 32-bit processes
``fs/compat_binfmt_elf.c``), ``fs/binfmt_elf.c`` (``fill_files_note``), ``struct user_pac_mask``
(``asm/ptrace.h``). All numbers have the process's own width and byte order, which is little-endian
on every supported machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from machtrace.errors import CoreFileError
from machtrace.formats.elf.core.registers import RegisterLayout
from machtrace.formats.elf.structs import ElfLayout
from machtrace.frozen import dataclass
from machtrace.model.address import Avma, FileOffset
from machtrace.model.cause import Cause, linux_cause
from machtrace.model.snapshot import FileMapping, LinuxFacts

CORE = "CORE"
LINUX = "LINUX"
MACHTRACE = "machtrace"
"""Owners of notes. For ours see :mod:`machtrace.model.process_metadata`."""

NT_PRSTATUS = 1
NT_PRPSINFO = 3
NT_AUXV = 6
NT_FILE = 0x46494C45
NT_SIGINFO = 0x53494749
NT_ARM_PAC_MASK = 0x406
NT_MACHTRACE = 0x4D414348
"""A number that no other owner uses: binutils ignores a note's owner."""

FILE_PAGE = 4096
"""The unit of file offsets in the ``NT_FILE`` notes that are written."""

PAC_MASK = Struct("<2Q")
"""The bits of data and of instruction pointers that are signatures."""
_SIGNED_BITS = (1 << 55) - 1
"""Bit 55 selects the half of the address space; those above it are tags."""

_SIGINFO_SIZE = 128
_HEADER = Struct("<3ih2x")
"""``pr_info``: signal, code, error number; ``pr_cursig``."""
_MAX_SIGNAL = (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class StatusLayout:
    """The layout of ``elf_prstatus``."""

    ids: int
    """The offset of ``pr_pid``, ``pr_ppid``, ``pr_pgrp`` and ``pr_sid``, of 32 bits each."""
    registers: int
    """The offset of ``pr_reg``."""
    word: int
    """Bytes of a long, to which the whole is padded after ``pr_fpvalid``."""

    @classmethod
    def of(cls, layout: ElfLayout) -> StatusLayout:
        """Return the layout of a process of this width."""
        return cls(32, 112, 8) if layout.is_64 else cls(24, 72, 4)

    def size(self, registers: int) -> int:
        """Return the size of the whole, with ``registers`` bytes of registers."""
        return -(-(self.registers + registers + 4) // self.word) * self.word


_IDS = Struct("<4i")
_INFO_64 = Struct("<4b4xQ2I4i16s80s")
_INFO_32 = Struct("<4bI2H4i16s80s")
"""State, its letter, zombie, nice, flags, user, group, process, parent, process group, session,
name, arguments."""


class ThreadStatus(NamedTuple):
    """``NT_PRSTATUS``."""

    id: int
    signal: int
    """``pr_cursig``; Linux gives every thread the signal that ended the process."""
    registers: bytes


class ProcessStatus(NamedTuple):
    """``NT_PRPSINFO``."""

    pid: int
    parent: int
    user: int
    group: int
    name: str
    arguments: str


def read_thread_status(
    data: bytes, layout: ElfLayout, registers: RegisterLayout, source: str
) -> ThreadStatus:
    """Parse a thread's note.

    Raises:
        CoreFileError: it is cut short.
    """
    status = StatusLayout.of(layout)
    size = registers.words.size
    if len(data) < status.registers + size:
        raise CoreFileError(
            f"a thread's status of {len(data)} bytes, {status.size(size)} are needed for "
            f"{registers.arch.value}",
            source=source,
            offset=0,
        )
    return ThreadStatus(
        id=_IDS.unpack_from(data, status.ids)[0],
        signal=_HEADER.unpack_from(data)[3],
        registers=data[status.registers : status.registers + size],
    )


def thread_status(status: ThreadStatus, facts: LinuxFacts, pid: int, layout: ElfLayout) -> bytes:
    """Return the bytes of ``NT_PRSTATUS``."""
    offsets = StatusLayout.of(layout)
    data = bytearray(offsets.size(len(status.registers)))
    # A damaged siginfo may have a number that pr_cursig has no room for.
    current = status.signal if 0 <= status.signal <= _MAX_SIGNAL else 0
    _HEADER.pack_into(data, 0, current, 0, 0, current)
    _IDS.pack_into(data, offsets.ids, _id(status.id), _id(facts.parent), _id(pid), _id(pid))
    data[offsets.registers : offsets.registers + len(status.registers)] = status.registers
    return bytes(data)


def read_process_status(data: bytes, layout: ElfLayout, source: str) -> ProcessStatus:
    """Parse the process's note.

    Raises:
        CoreFileError: it is cut short.
    """
    info = _INFO_64 if layout.is_64 else _INFO_32
    if len(data) < info.size:
        raise CoreFileError(
            f"a process' status of {len(data)} bytes, {info.size} are needed",
            source=source,
            offset=0,
        )
    _, _, _, _, _, user, group, pid, parent, _, _, name, arguments = info.unpack_from(data)
    return ProcessStatus(pid, parent, user, group, _text(name), _text(arguments).rstrip())


def process_status(facts: LinuxFacts, pid: int, layout: ElfLayout) -> bytes:
    """Return the bytes of ``NT_PRPSINFO``."""
    info, largest = (_INFO_64, (1 << 32) - 1) if layout.is_64 else (_INFO_32, (1 << 16) - 1)
    user, group = min(facts.user, largest), min(facts.group, largest)
    name, arguments = _bytes(facts.name)[:15], _bytes(facts.arguments)[:79]
    ids = (_id(pid), _id(facts.parent), _id(pid), _id(pid))
    return info.pack(0, ord("R"), 0, 0, 0, user, group, *ids, name, arguments)


def read_file_mappings(
    data: bytes, layout: ElfLayout, source: str
) -> tuple[tuple[FileMapping, ...], CoreFileError | None]:
    """Parse ``NT_FILE``; return the mappings by address, and the note's problem, if any."""
    word = layout.pointer_size
    head = Struct("<2Q" if layout.is_64 else "<2I")
    entry = Struct("<3Q" if layout.is_64 else "<3I")
    if len(data) < head.size:
        return (), CoreFileError("the list of files is cut short", source=source, offset=len(data))
    count, page = head.unpack_from(data)
    room = (len(data) - head.size) // entry.size
    names = data[head.size + min(count, room) * entry.size :].split(b"\0")
    mappings = [
        FileMapping(Avma(start), Avma(end), FileOffset(offset * page), _text(name))
        for (start, end, offset), name in zip(
            entry.iter_unpack(data[head.size : head.size + min(count, room) * entry.size]),
            names,
            strict=False,
        )
        # A larger number is no offset, and could not be written again.
        if start < end and name and offset * page // FILE_PAGE < 1 << (8 * word)
    ]
    problem = None
    if count > min(room, len(names)):
        problem = CoreFileError(
            f"a list of {count} files that ends after {len(mappings)}", source=source, offset=word
        )
    return tuple(sorted(mappings)), problem


def file_mappings(mappings: Sequence[FileMapping], layout: ElfLayout) -> bytes:
    """Return the bytes of ``NT_FILE``."""
    form = "Q" if layout.is_64 else "I"
    words = [len(mappings), FILE_PAGE]
    for mapping in mappings:
        words += (mapping.start, mapping.end, mapping.offset // FILE_PAGE)
    names = b"".join(_bytes(mapping.path).replace(b"\0", b"") + b"\0" for mapping in mappings)
    return Struct(f"<{len(words)}{form}").pack(*words) + names


def pac_mask(address_bits: int) -> bytes:
    """Return the bytes of ``NT_ARM_PAC_MASK``.

    ``address_bits``: those of a pointer that are not signature.
    """
    mask = ~address_bits & _SIGNED_BITS
    return PAC_MASK.pack(mask, mask)


def read_signal_information(data: bytes, layout: ElfLayout, source: str) -> Cause | None:
    """Parse ``NT_SIGINFO`` (``siginfo_t``); None for no signal.

    Raises:
        CoreFileError: it is cut short.
    """
    head, sender, address = _siginfo_layouts(layout)
    size = max(sender.size, address.size)
    if len(data) < size:
        raise CoreFileError(
            f"a signal's information of {len(data)} bytes, at least {size} are needed",
            source=source,
            offset=0,
        )
    number, _, code = head.unpack_from(data)
    if number <= 0:
        return None
    *_, process, user = sender.unpack_from(data)
    if not any(data[head.size - 4 :]):
        return linux_cause(number)  # a writer that knew no more
    return linux_cause(number, code, address.unpack_from(data)[-1], process, user)


def signal_information(cause: Cause, layout: ElfLayout) -> bytes:
    """Return the bytes of ``NT_SIGINFO``, as far as the signal is known."""
    head, sender, address = _siginfo_layouts(layout)
    number, code = cause.signal_number or 0, cause.code or 0
    data = bytearray(_SIGINFO_SIZE)
    head.pack_into(data, 0, number, 0, code)
    if cause.sender is not None:
        sender.pack_into(data, 0, number, 0, code, _id(cause.sender), cause.sender_user or 0)
    elif cause.address is not None:
        address.pack_into(data, 0, number, 0, code, cause.address)
    return bytes(data)


def _siginfo_layouts(layout: ElfLayout) -> tuple[Struct, Struct, Struct]:
    """Return the layouts of a siginfo's head, of a sent signal and of a fault."""
    # Pointers in the union align it to 8 bytes in 64-bit processes.
    padding, pointer = ("4x", "Q") if layout.is_64 else ("", "I")
    return Struct("<3i"), Struct(f"<3i{padding}iI"), Struct(f"<3i{padding}{pointer}")


def note(owner: str, kind: int, description: bytes) -> bytes:
    """Return the bytes of a whole note."""
    name = owner.encode() + b"\0"
    head = Struct("<3I").pack(len(name), len(description), kind)
    return head + _padded(name) + _padded(description)


def auxiliary_values(vector: bytes, layout: ElfLayout) -> Iterator[tuple[int, int]]:
    """Return types (``AT_``) and values in ``vector``, up to its end or ``AT_NULL``."""
    pair = Struct("<2Q" if layout.is_64 else "<2I")
    for kind, value in pair.iter_unpack(vector[: len(vector) // pair.size * pair.size]):
        if not kind:
            return
        yield kind, value


def _padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // 4) * 4, b"\0")


def _id(number: int) -> int:
    return number if 0 <= number < 1 << 31 else 0


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
