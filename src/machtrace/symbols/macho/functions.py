"""Where the functions of a Mach-O begin, for bounding names.

Which functions of a Mach-O its unwind tables describe, and which its initialisers are.

Compilers describe every function, those without a frame, too; assemblers only those whose author
did. So where linkers leave functions out of LC_FUNCTION_STARTS, these tables tell them, or that
nothing is known there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachtraceError
from machtrace.formats.dwarf.cfi_records import CallFrameSection
from machtrace.formats.dwarf.frame_index import build_index
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.formats.macho.tables.compact_encoding import (
    HAS_LSDA,
    MODE_MASK,
    MODE_SHIFT,
    Arm64Mode,
    X86Mode,
)
from machtrace.formats.macho.tables.function_starts import FunctionStarts, parse_function_starts
from machtrace.formats.macho.tables.unwind_info import UnwindInfo
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.symbols.macho.code_sections import Ranges
from machtrace.symbols.ranges import Offsets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownFunctions:
    """The starts of functions that are known, and who told of them."""

    offsets: Offsets
    """Sorted."""
    are_listed: bool
    """Whether the linker's list of functions, LC_FUNCTION_STARTS, is among them. It has nearly all:
    of a file of assembly code the first, and not what runs when an image is initialised."""

    def merged(self, others: Offsets) -> KnownFunctions:
        """With more of them."""
        both = np.unique(np.concatenate([self.offsets, others]))
        return KnownFunctions(offsets=both, are_listed=self.are_listed)

    def hold(self, starts: Offsets) -> npt.NDArray[np.bool_]:
        """Which of ``starts`` are among them."""
        if not len(self.offsets):
            return np.zeros(len(starts), np.bool_)
        at = np.minimum(self.offsets.searchsorted(starts), len(self.offsets) - 1)
        found: npt.NDArray[np.bool_] = self.offsets[at] == starts
        return found


def listed_functions(
    contents: MachOContents, sections: Ranges, problems: list[MachtraceError]
) -> KnownFunctions:
    """The functions in LC_FUNCTION_STARTS; none where none of these is in code.

    Some linkers write a list without functions.

    Args:
        contents: the image.
        sections: those that hold functions.
        problems: takes the error of a table that could not be read.
    """
    try:
        listed = parse_function_starts(contents)
    except MachtraceError as error:
        problems.append(error)
        listed = FunctionStarts()
    if listed.holds_code(sections):
        return KnownFunctions(offsets=np.frombuffer(listed.offsets, np.uint64), are_listed=True)
    return KnownFunctions(offsets=np.empty(0, np.uint64), are_listed=False)


def read_or_empty(
    source: Callable[[MachOContents], Offsets],
    contents: MachOContents,
    problems: list[MachtraceError],
) -> Offsets:
    """What a source says; nothing, and its error among the problems, where it cannot be read."""
    try:
        return source(contents)
    except MachtraceError as error:
        problems.append(error)
        return np.empty(0, np.uint64)


Mask = npt.NDArray[np.bool_]

_MOD_INIT_FUNC_POINTERS, _MOD_TERM_FUNC_POINTERS, _INIT_FUNC_OFFSETS = 0x9, 0xA, 0x16
"""``S_…`` in ``mach-o/loader.h``."""
_THUMB_BIT = np.uint64(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DescribedFunctions:
    """Rows of ``__unwind_info`` and of ``__eh_frame``, each sorted by start."""

    entries: Offsets
    """Where compact encodings begin to hold; the last one's end is behind them."""
    encodings: npt.NDArray[np.uint32]
    """0 where nothing is known, as behind the last."""
    frames: Offsets
    """Where FDEs begin."""
    arch: Arch | None

    @property
    def starts(self) -> Offsets:
        """All places at which one begins: the start of a function, or the end of one."""
        return np.union1d(self.entries, self.frames)

    def describe(self, starts: Offsets) -> Mask:
        """Which functions are described, by an encoding that holds at their start or an FDE."""
        row = self.entries.searchsorted(starts, "right").astype(np.int64) - 1
        encoding = np.append(self.encodings, np.uint32(0))[row]
        found: Mask = (encoding != 0) | np.isin(starts, self.frames)
        return found

    def bound(self, starts: Offsets) -> Mask:
        """Which functions are described by an encoding that is theirs alone.

        Linkers make one entry of neighbours with equal encodings, unless that says more of where
        it begins: that there are data for exceptions, an FDE, or an instruction to look at.
        """
        if not len(self.entries):
            return np.zeros(len(starts), np.bool_)
        at = np.minimum(self.entries.searchsorted(starts), len(self.entries) - 1)
        encoding = self.encodings[at]
        mode = (encoding & np.uint32(MODE_MASK)) >> np.uint32(MODE_SHIFT)
        alone = np.isin(mode, _own_modes(self.arch)) | (encoding & np.uint32(HAS_LSDA) != 0)
        found: Mask = (self.entries[at] == starts) & (encoding != 0) & alone
        return found


def described_functions(
    contents: MachOContents, problems: list[MachtraceError]
) -> DescribedFunctions:
    """What an image's unwind tables describe; ``problems`` takes the errors of bad ones."""
    entries, encodings = np.empty(0, np.uint64), np.empty(0, np.uint32)
    try:
        entries, encodings = _compact(contents)
    except MachtraceError as error:
        problems.append(error)
    return DescribedFunctions(
        entries=entries,
        encodings=encodings,
        frames=read_or_empty(_call_frames, contents, problems),
        arch=contents.image.header.arch,
    )


def initialisers(
    contents: MachOContents, pointers: Callable[[], Pointers], problems: list[MachtraceError]
) -> Offsets:
    """The functions that run when the image is loaded or unloaded: linkers do not list C++'s.

    Args:
        contents: the image.
        pointers: gives where its pointers lead.
        problems: takes the errors of lists that could not be read.
    """
    return read_or_empty(lambda some: _initialisers(some, pointers), contents, problems)


def _initialisers(contents: MachOContents, pointers: Callable[[], Pointers]) -> Offsets:
    image, found = contents.image, [np.empty(0, np.uint64)]
    base, width = image.header_svma, 8 if image.header.is_64 else 4
    for section in image.sections:
        if section.type == _INIT_FUNC_OFFSETS:
            data = contents.read_svma(section.address, section.size & ~3)
            order = "<" if image.header.little_endian else ">"
            found.append(np.frombuffer(data, f"{order}u4").astype(np.uint64))
        elif section.type in (_MOD_INIT_FUNC_POINTERS, _MOD_TERM_FUNC_POINTERS):
            # Its size is only good once the section was read.
            size = len(contents.read_svma(section.address, section.size)) // width * width
            places = np.arange(size // width, dtype=np.uint64) * np.uint64(width)
            targets = pointers().targets(places + np.uint64(section.address))
            found.append(targets[targets >= np.uint64(base)] - np.uint64(base))
    starts = np.concatenate(found)
    arch = image.header.arch
    return starts & ~_THUMB_BIT if arch is not None and arch.is_arm else starts


def _own_modes(arch: Arch | None) -> list[int]:
    if arch is not None and arch.is_arm64:
        return [Arm64Mode.DWARF]
    return [X86Mode.STACK_INDIRECT, X86Mode.DWARF]  # DWARF is 4 on armv7k, too


def _compact(contents: MachOContents) -> tuple[Offsets, npt.NDArray[np.uint32]]:
    section = contents.image.section("__TEXT", "__unwind_info")
    if section is None or not section.size:
        return np.empty(0, np.uint64), np.empty(0, np.uint32)
    data = contents.read_svma(section.address, section.size)
    return UnwindInfo(data, f"{contents.source}: __unwind_info").columns()


def _call_frames(contents: MachOContents) -> Offsets:
    section, arch = contents.image.section("__TEXT", "__eh_frame"), contents.image.header.arch
    if section is None or not section.size or arch is None:
        return np.empty(0, np.uint64)
    address = section.address
    records = CallFrameSection(
        read=lambda offset, size: contents.read_svma(Svma(address + offset), size),
        size=section.size,
        arch=arch,
        source=f"{contents.source}: __eh_frame",
        address=address,
    )
    starts, base = build_index(records).starts, np.uint64(contents.image.header_svma)
    offsets: Offsets = starts[starts >= base] - base
    return offsets
