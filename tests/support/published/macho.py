"""Mach-O files in the emulator: rebased pointers, imports, function starts and names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.go_images import macho_go_functions
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.formats.macho.segments import Segment
from machtrace.formats.macho.tables.function_starts import parse_function_starts
from machtrace.formats.macho.tables.stubs import parse_stubs
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.unwinder.functions.bounds import code_ranges
from machtrace.unwinder.functions.starts import starts_of
from tests.support.published.image import (
    Addresses,
    LoadedSegment,
    PublishedImage,
    import_addresses,
    slide_of,
)

_STUB_SECTIONS = ("__stubs", "__auth_stubs", "__objc_stubs", "__stub_helper", "__symbol_stub")
_ABSOLUTE = {"_swift_async_extendedFramePointerFlags": 1 << 60}
"""Symbols whose address is a number."""
_WORD = 8
_WRITABLE, _EXECUTABLE = 2, 4


def load_macho(contents: MachOFileContents, name: str) -> PublishedImage:
    """Load a Mach-O file; see :func:`tests.support.published.image.load`."""
    image = contents.image
    slide = slide_of(image.header_svma, is_movable=True)
    segments = [
        _segment(contents, segment, slide)
        for segment in image.segments
        if segment.vmsize and segment.name != "__PAGEZERO" and segment.initprot
    ]
    imports = _write_pointers(contents, segments, slide)
    symbols = parse_symbols(contents)
    code = tuple((low + slide, high + slide) for low, high in code_ranges(contents))
    rows = np.flatnonzero(symbols.is_code)
    names = {
        int(address) + slide: text
        for address, text in zip(
            symbols.n_value[rows].tolist(), symbols.names(rows.tolist()), strict=True
        )
    }
    go = macho_go_functions(contents, lambda: parse_pointers(contents))
    if go is not None:
        names |= {int(start) + slide: go.name(row) for row, start in enumerate(go.starts.tolist())}
    stubs = parse_stubs(contents, symbols)
    sections = [(section.name, section.address, section.end) for section in image.sections]
    return PublishedImage(
        contents=contents,
        name=name,
        slide=slide,
        segments=segments,
        code=code,
        starts=_starts(contents, slide),
        stub_names={
            int(address) + slide: text
            for address, text in zip(stubs.addresses.tolist(), stubs.names, strict=True)
        },
        stub_ranges=tuple(
            (low + slide, high + slide) for text, low, high in sections if text in _STUB_SECTIONS
        ),
        import_names=imports,
        names=names,
        is_swift=any(text.startswith("__swift5") for text, _, _ in sections),
        is_go=any(text == "__gopclntab" for text, _, _ in sections),
    )


def _segment(contents: MachOFileContents, segment: Segment, slide: int) -> LoadedSegment:
    start, size = segment.vmaddr, segment.vmsize
    available = min(segment.filesize, size)
    data = bytearray(size)
    data[:available] = contents.read_file(segment.fileoff, available)
    protection: int = segment.initprot
    return LoadedSegment(
        start + slide,
        data,
        is_writable=bool(protection & _WRITABLE),
        is_executable=bool(protection & _EXECUTABLE),
    )


def _write_pointers(
    contents: MachOFileContents, segments: list[LoadedSegment], slide: int
) -> dict[int, str]:
    """Write the image's pointers as dyld would, unsigned; return the names of imports."""
    pointers = parse_pointers(contents)
    rebases, binds = pointers.rebases, pointers.binds
    addresses, names = import_addresses(binds.names)
    for row, name in enumerate(binds.names):
        if name in _ABSOLUTE:
            addresses[row] = _ABSOLUTE[name]
    bound = (
        addresses[binds.symbols] + binds.addends.astype(np.uint64)
        if len(binds)
        else np.zeros(0, np.uint64)
    )
    for segment in segments:
        begin, last = segment.address - slide, len(segment.data) - _WORD
        if last < 0:
            continue
        data = np.frombuffer(segment.data, np.uint8)
        for places, values in (
            (rebases.places, rebases.targets + np.uint64(slide)),
            (binds.places, bound),
        ):
            offsets = places - np.uint64(begin)
            mine = offsets <= np.uint64(last)  # those before the segment wrap
            write_words(data, offsets[mine], values[mine])
    return names


def write_words(data: npt.NDArray[np.uint8], offsets: Addresses, values: Addresses) -> None:
    """Write 64-bit words at any offsets, aligned or not."""
    if len(offsets):
        at = offsets.astype(np.int64)[:, None] + np.arange(_WORD)
        data[at] = np.ascontiguousarray(values.astype("<u8")).view(np.uint8).reshape(-1, _WORD)


def _starts(contents: MachOFileContents, slide: int) -> Addresses:
    sections, base = code_ranges(contents), contents.image.header_svma
    try:
        listed = parse_function_starts(contents)
    except (FormatError, MemoryReadError):
        listed = None
    if listed is not None and listed.holds_code(
        (low - base, high - base) for low, high in sections
    ):
        starts = np.frombuffer(listed.offsets, np.uint64) + np.uint64(base)
    else:
        starts = starts_of(contents, sections)
    go = macho_go_functions(contents, lambda: parse_pointers(contents))
    if go is not None:
        starts = np.concatenate([starts, go.starts])
    return np.unique(starts) + np.uint64(slide)
