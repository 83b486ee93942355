"""What chained binds ask for by name: the imports of LC_DYLD_CHAINED_FIXUPS.

Source: ``mach-o/fixup-chains.h``: ``dyld_chained_import`` and its wider kin.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError
from machtrace.formats.macho.fixups.string_table import names_at

_UNCOMPRESSED = 0
_ZLIB = 1
_MOST_UNPACKED = 1 << 25
_BEST_RATIO = 64
"""Of packed names: symbols are packed to a tenth, and only noughts and their like to so little."""

_IMPORT = np.dtype([("bits", "<u4")])
_IMPORT_ADDEND = np.dtype([("bits", "<u4"), ("addend", "<i4")])
_IMPORT_ADDEND64 = np.dtype([("bits", "<u8"), ("addend", "<i8")])
_LAYOUTS = {1: (_IMPORT, 9), 2: (_IMPORT_ADDEND, 9), 3: (_IMPORT_ADDEND64, 32)}
"""Of each imports_format: the record, and the bit at which the name's offset begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Imports:
    """One row for each ordinal of binds, from 0."""

    names: tuple[str, ...]
    addends: npt.NDArray[np.int64]


def parse_imports(
    data: memoryview, imports_offset: int, symbols_offset: int, *, count: int,
    imports_format: int, symbols_format: int, source: str,
) -> Imports:  # fmt: skip
    """The imports that the header of the payload ``data`` tells of.

    Raises:
        MachOError: they are cut short, of an unknown format, or their names overlap.
    """
    layout = _LAYOUTS.get(imports_format)
    if layout is None:
        raise MachOError(
            f"imports of format {imports_format} are not known",
            source=source,
            offset=imports_offset,
        )
    record, shift = layout
    if imports_offset + count * record.itemsize > len(data):
        raise MachOError(f"{count} imports are cut short", source=source, offset=imports_offset)
    rows = np.frombuffer(data, record, count, imports_offset)
    strings = _strings(bytes(data[symbols_offset:]), symbols_format, source, symbols_offset)
    offsets = (rows["bits"] >> shift).astype(np.int64)
    names = names_at(strings, offsets, source)
    if "addend" in (record.names or ()):
        return Imports(tuple(names), rows["addend"].astype(np.int64))
    return Imports(tuple(names), np.zeros(count, np.int64))


def _strings(data: bytes, symbols_format: int, source: str, offset: int) -> bytes:
    if symbols_format == _UNCOMPRESSED:
        return data
    if symbols_format != _ZLIB:
        raise MachOError(
            f"symbol strings of format {symbols_format} are not known", source=source, offset=offset
        )
    try:
        most = min(_MOST_UNPACKED, _BEST_RATIO * len(data) + 1)
        return zlib.decompressobj().decompress(data, most)
    except zlib.error as error:
        raise MachOError(f"symbol strings: {error}", source=source, offset=offset) from None
