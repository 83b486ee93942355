"""Where the functions of a Mach-O begin, for bounding names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachtraceError
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.tables.function_starts import parse_function_starts
from machtrace.formats.macho.linkedit import read_table
from machtrace.symbols.macho.code_sections import Ranges
from machtrace.symbols.ranges import Offsets

_THUMB = np.uint64(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FunctionStarts:
    """The starts of functions that are known, and who told of them."""

    offsets: Offsets
    """Sorted."""
    are_listed: bool
    """Whether the linker's list of functions, LC_FUNCTION_STARTS, is among them. It has nearly all:
    of a file of assembly code the first, and not what runs when an image is initialised."""

    def merged(self, others: Offsets) -> FunctionStarts:
        """With more of them."""
        both = np.unique(np.concatenate([self.offsets, others]))
        return FunctionStarts(offsets=both, are_listed=self.are_listed)

    def hold(self, starts: Offsets) -> npt.NDArray[np.bool_]:
        """Which of ``starts`` are among them."""
        if not len(self.offsets):
            return np.zeros(len(starts), np.bool_)
        at = np.minimum(self.offsets.searchsorted(starts), len(self.offsets) - 1)
        found: npt.NDArray[np.bool_] = self.offsets[at] == starts
        return found


def listed_functions(
    contents: MachOContents, sections: Ranges, problems: list[MachtraceError]
) -> FunctionStarts:
    """The functions in LC_FUNCTION_STARTS; none where none of these is in code.

    Some linkers write a list without functions.

    Args:
        contents: the image.
        sections: those that hold functions.
        problems: takes the error of a table that could not be read.
    """
    starts = read_or_empty(_stated, contents, problems)
    if _any_in(starts, sections):
        return FunctionStarts(offsets=starts, are_listed=True)
    return FunctionStarts(offsets=np.empty(0, np.uint64), are_listed=False)


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


def _any_in(starts: Offsets, sections: Ranges) -> bool:
    edges = np.array(sections, np.uint64).reshape(-1, 2)
    counts = starts.searchsorted(edges)
    return bool((counts[:, 0] < counts[:, 1]).any())


def _stated(contents: MachOContents) -> Offsets:
    found = _by_extension(contents)
    return parse_function_starts(contents).offsets if found is None else found


def _by_extension(contents: MachOContents) -> Offsets | None:
    """The table as C decodes it; None where that is not built, or where something is wrong."""
    place, arch = contents.image.function_starts, contents.image.header.arch
    if place is None or not place.size or arch is None:
        return None
    try:
        from machtrace._native._walk import function_starts as decode
    except ImportError:
        return None
    found = decode(read_table(contents, place.offset, place.size, "the function starts"), 0)
    if found is None:
        return None
    offsets = np.frombuffer(found, np.uint64)
    return offsets & ~_THUMB if arch.is_arm else offsets
