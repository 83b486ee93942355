"""The starts of a Mach-O's functions, for bounding names.

Compilers describe every function in unwind tables, those without a frame, too; assemblers only
those whose author did. So where linkers leave functions out of LC_FUNCTION_STARTS, these tables
have them, or show that nothing is known there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachtraceError
from machtrace.formats.dwarf.cfi_records import CallFrameSection
from machtrace.formats.dwarf.frame_index import build_index
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.formats.macho.tables.function_starts import FunctionStarts, parse_function_starts
from machtrace.formats.macho.tables.unwind_info import (
    HAS_LSDA,
    MODE_MASK,
    MODE_SHIFT,
    Arm64Mode,
    UnwindInfo,
    X86Mode,
)
from machtrace.frozen import dataclass
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.symbols.macho.code_sections import Ranges
from machtrace.symbols.ranges import Offsets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownFunctions:
    """The known starts of functions, and their source."""

    offsets: Offsets
    """Sorted."""
    are_listed: bool
    """Whether LC_FUNCTION_STARTS is among the sources. It has nearly all: of a file of assembly
    code the first, and not the functions that run when an image is initialised."""

    def merged(self, others: Offsets) -> KnownFunctions:
        """Return these and more of them."""
        both = np.unique(np.concatenate([self.offsets, others]))
        return KnownFunctions(offsets=both, are_listed=self.are_listed)

    def hold(self, starts: Offsets) -> npt.NDArray[np.bool_]:
        """Return which of ``starts`` are among them."""
        if not len(self.offsets):
            return np.zeros(len(starts), np.bool_)
        at = np.minimum(self.offsets.searchsorted(starts), len(self.offsets) - 1)
        found: npt.NDArray[np.bool_] = self.offsets[at] == starts
        return found


def listed_functions(
    contents: MachOContents, sections: Ranges, problems: list[MachtraceError]
) -> KnownFunctions:
    """Return the functions in LC_FUNCTION_STARTS; none if none of these is in code.

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
    """Return a source's result; if it is unreadable, nothing, and add its error."""
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
    """The starts of compact encodings; the last one is the end of the one before it."""
    encodings: npt.NDArray[np.uint32]
    """0 if nothing is known, as after the last."""
    frames: Offsets
    """The starts of FDEs."""
    arch: Arch | None

    @property
    def starts(self) -> Offsets:
        """All starts and ends of functions."""
        return np.union1d(self.entries, self.frames)

    def describe(self, starts: Offsets) -> Mask:
        """Return which functions have an FDE, or an encoding that is valid at their start."""
        row = self.entries.searchsorted(starts, "right").astype(np.int64) - 1
        encoding = np.append(self.encodings, np.uint32(0))[row]
        found: Mask = (encoding != 0) | np.isin(starts, self.frames)
        return found

    def bound(self, starts: Offsets) -> Mask:
        """Return which functions are described by an encoding of their own.

        Linkers merge neighbours with equal encodings into one entry, unless the encoding refers to
        the function's start: data for exceptions, an FDE, or an instruction to read.
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
    """Read an image's unwind tables; ``problems`` takes the errors of malformed ones."""
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
    """Return the image's initialisers and terminators: linkers do not list C++'s.

    Args:
        contents: the image.
        pointers: reads its pointers.
        problems: takes the errors of lists that could not be read.
    """
    return read_or_empty(lambda some: _initialisers(some, pointers), contents, problems)


def _initialisers(contents: MachOContents, pointers: Callable[[], Pointers]) -> Offsets:
    image, columns = contents.image, [np.empty(0, np.uint64)]
    base, width = image.header_svma, 8 if image.header.is_64 else 4
    for section in image.sections:
        if section.type == _INIT_FUNC_OFFSETS:
            data = contents.read_svma(section.address, section.size & ~3)
            order = "<" if image.header.little_endian else ">"
            columns.append(np.frombuffer(data, f"{order}u4").astype(np.uint64))
        elif section.type in (_MOD_INIT_FUNC_POINTERS, _MOD_TERM_FUNC_POINTERS):
            # Its size is only good once the section was read.
            size = len(contents.read_svma(section.address, section.size)) // width * width
            places = np.arange(size // width, dtype=np.uint64) * np.uint64(width)
            targets = pointers().targets(places + np.uint64(section.address))
            columns.append(targets[targets >= np.uint64(base)] - np.uint64(base))
    starts = np.concatenate(columns)
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
