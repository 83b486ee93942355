"""``/proc/PID/maps``: the memory mappings of a Linux process; and the memory that faulted.

Source of the format: ``Documentation/filesystems/proc.rst`` and ``fs/proc/task_mmu.c``
(``show_map_vma``).
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from machtrace.errors import FormatError
from machtrace.model.address import Avma, FileOffset
from machtrace.model.cause import Cause, below_stack
from machtrace.model.snapshot import FileMapping

_LINE = re.compile(
    r"([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-][sp]) ([0-9a-f]+)"
    r" ([0-9a-f]+):([0-9a-f]+) ([0-9]+) *(.*)"
)
_DELETED = " (deleted)"
_USER_END = 1 << 63
"""Above it is the kernel's half; x86-64 shows its vsyscall page there."""


class Mapping(NamedTuple):
    """One line: a range of pages with the same rights and the same file."""

    start: Avma
    end: Avma
    permissions: str
    """Read, write, execute and shared or private, as in ``r-xp``."""
    offset: FileOffset
    """Where in the file :attr:`start` is."""
    device: tuple[int, int]
    """Major and minor number. A stacked or copy-on-write file system may show others by stat."""
    inode: int
    """0 where no file is mapped."""
    path: str
    """The file's path, as this process would see it; a name in brackets for the kernel's mappings;
    else empty."""
    is_deleted: bool
    """Whether the file was deleted from its path."""

    @property
    def is_readable(self) -> bool:
        """Whether its bytes can be read."""
        return self.permissions[0] == "r"

    @property
    def is_writable(self) -> bool:
        """Whether the process can change its bytes as it stands."""
        return self.permissions[1] == "w"

    @property
    def is_executable(self) -> bool:
        """Whether it can be run."""
        return self.permissions[2] == "x"

    @property
    def is_private(self) -> bool:
        """Whether what the process changes there is its own, as loaders map images."""
        return self.permissions[3] == "p"

    @property
    def is_file(self) -> bool:
        """Whether a file is mapped."""
        return self.inode != 0 and self.path.startswith("/")


def parse_maps(text: str, source: str) -> tuple[Mapping, ...]:
    """Parse the mappings, by address as the kernel lists them.

    Raises:
        FormatError: a line is no mapping.
    """
    mappings: list[Mapping] = []
    offset = 0
    for line in text.removesuffix("\n").split("\n") if text else ():
        fields = _LINE.fullmatch(line)
        if fields is None:
            raise FormatError("invalid line of a memory map", source=source, offset=offset)
        start, end, permissions, at, major, minor, inode, path = fields.groups()
        # The kernel writes a newline in a name as octal, and nothing else so.
        path = path.replace("\\012", "\n")
        deleted = path.endswith(_DELETED)
        mappings.append(
            Mapping(
                Avma(int(start, 16)),
                Avma(int(end, 16)),
                permissions,
                FileOffset(int(at, 16)),
                (int(major, 16), int(minor, 16)),
                int(inode),
                path.removesuffix(_DELETED) if deleted else path,
                deleted,
            )
        )
        offset += len(line) + 1
    return tuple(mappings)


def stack_ranges(mappings: Iterable[Mapping]) -> array[int]:
    """Return start and end (Avma) of each readable range: stacks are copied up to the ends."""
    ranges: array[int] = array("Q")
    for mapping in mappings:
        if mapping.is_readable:
            ranges.extend((mapping.start, mapping.end))
    return ranges


def address_width(mappings: Sequence[Mapping]) -> int:
    """Return the bits of a user address: the main stack is near the end of the address space.

    On arm64 it depends on the kernel's build (39, 42, 47, 48 or 52); the bits above hold
    signatures and tags.
    """
    ends = (mapping.end for mapping in mappings if mapping.end <= _USER_END)
    return max(0, max(ends, default=0) - 1).bit_length()


class MemoryRange(Protocol):
    """A range of a process's memory."""

    @property
    def start(self) -> int:
        """The first address."""

    @property
    def end(self) -> int:
        """The address after the last one."""

    @property
    def permissions(self) -> str:
        """Letters of the rights, among other characters."""


_ACCESSES = frozenset({"SEGV_MAPERR", "SEGV_ACCERR", "SEGV_BNDERR", "SEGV_PKUERR"})
_FILE_PAGE = 4096
"""The unit of offsets in ``NT_FILE``."""


def address_region(
    cause: Cause,
    ranges: Sequence[MemoryRange],
    files: Iterable[FileMapping],
    stacks: Sequence[tuple[str, int]],
) -> str:
    """Return the memory at the address of ``cause`` in words; empty unless the ranges prove it.

    Args:
        cause: of a thread that was stopped.
        ranges: all memory of the process, by address.
        files: the ranges of mapped files.
        stacks: names and stack pointers of the threads, the stopped one first.
    """
    address = cause.address
    if address is None or cause.code_name not in _ACCESSES or cause.signal != "SIGSEGV":
        return ""
    if cause.region:
        return cause.region
    number = bisect_right(ranges, int(address), key=lambda memory: memory.start) - 1
    region = ranges[number] if number >= 0 else None
    above = ranges[number + 1] if number + 1 < len(ranges) else None
    if region is None or address >= region.end:
        return "" if above is None else below_stack(address, above.start, above.end, stacks)
    permissions = "".join(flag if flag in region.permissions else "-" for flag in "rwx")
    if permissions == "---" and above is not None and above.start == region.end:
        owners = [stack for stack, sp in stacks if region.start <= sp < above.end]
        if owners:
            return f"in the guard pages of {owners[0]}"
    for mapping in files:
        if mapping.start <= address < mapping.end:
            name = mapping.path.rpartition("/")[2]
            offset = mapping.offset // _FILE_PAGE * _FILE_PAGE + address - mapping.start
            return f"in {name} + {offset:#x} of the file, mapped {permissions}"
    return f"in memory mapped {permissions}"
