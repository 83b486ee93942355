"""Where the functions of a Mach-O begin, for bounding names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from machtrace.dwarf.cfi_records import CallFrameSection
from machtrace.dwarf.frame_index import build_index
from machtrace.errors import MachtraceError
from machtrace.macho.contents import MachOContents
from machtrace.macho.function_starts import parse_function_starts
from machtrace.macho.linkedit import read_table
from machtrace.macho.unwind_info import UnwindInfo
from machtrace.model.address import Svma
from machtrace.symbolicate.macho_code_sections import Ranges
from machtrace.symbolicate.named_ranges import Offsets

_THUMB = np.uint64(1)


def function_starts(
    contents: MachOContents, sections: Ranges, problems: list[MachtraceError]
) -> tuple[Offsets, bool]:
    """The starts of functions, sorted, and whether they are all that there are.

    They are LC_FUNCTION_STARTS. Where that is absent, or holds none that is in code, as some
    linkers write it, they are what unwind tables show: those have few functions apart, and none
    that has no frame, but each is one.

    Args:
        contents: the image.
        sections: those that hold functions.
        problems: takes the errors of tables that could not be read.
    """
    starts = _asked(_stated, contents, problems)
    if _any_in(starts, sections):
        return starts, True
    found = [_asked(source, contents, problems) for source in (_compact, _call_frames)]
    return np.unique(np.concatenate(found)), False


def _any_in(starts: Offsets, sections: Ranges) -> bool:
    edges = np.array(sections, np.uint64).reshape(-1, 2)
    counts = starts.searchsorted(edges)
    return bool((counts[:, 0] < counts[:, 1]).any())


def _asked(
    source: Callable[[MachOContents], Offsets],
    contents: MachOContents,
    problems: list[MachtraceError],
) -> Offsets:
    try:
        return source(contents)
    except MachtraceError as error:
        problems.append(error)
        return np.empty(0, np.uint64)


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


def _compact(contents: MachOContents) -> Offsets:
    section = contents.image.section("__TEXT", "__unwind_info")
    if section is None or not section.size:
        return np.empty(0, np.uint64)
    data = contents.read_svma(section.address, section.size)
    return UnwindInfo(data, f"{contents.source}: __unwind_info").function_starts()


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
