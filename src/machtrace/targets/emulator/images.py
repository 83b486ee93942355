"""Mach-O images at their addresses, with their pointers rebased, and bound to one another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.formats.macho.fixups.rebase_opcodes import rebased_pointers, slid_segment
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.address import Avma

_POINTER = 8


class PlacedImage(NamedTuple):
    """An image, and where it is loaded."""

    contents: MachOFileContents
    slide: int


class LoadedSegment(NamedTuple):
    """A segment as dyld leaves it in memory."""

    start: Avma
    size: int
    data: bytes
    image: PlacedImage
    name: str


class Exports:
    """The addresses of external symbols of images; of a name, the first image's."""

    def __init__(self, images: Iterable[PlacedImage]) -> None:
        self._addresses: dict[str, Avma] = {}
        for contents, slide in images:
            table = parse_symbols(contents)
            rows = (table.is_in_section & table.is_external & ~table.is_stab).nonzero()[0].tolist()
            for name, address in zip(table.names(rows), table.n_value[rows].tolist(), strict=True):
                self._addresses.setdefault(name, Avma(address + slide))

    def address(self, name: str, contents: MachOFileContents) -> Avma:
        """Return the address that ``contents`` imports by a name.

        Raises:
            MachOError: no image exports it.
        """
        address = self._addresses.get(name)
        if address is None:
            raise MachOError(
                f"no library exports the import {name}", source=contents.source, offset=0
            )
        return address


def loaded_segments(images: Iterable[PlacedImage], exports: Exports) -> Iterator[LoadedSegment]:
    """Return the segments of images as they are in memory.

    Raises:
        MachOError: an image is malformed, or imports what no image exports.
        MemoryReadError: a segment is beyond the end of the file.
    """
    for image in images:
        contents, slide = image
        pointers = rebased_pointers(contents)
        binds = parse_pointers(contents).binds
        values = [exports.address(name, contents) for name in binds.names]
        for segment in contents.image.segments:
            if not segment.initprot or not segment.vmsize:
                continue  # __PAGEZERO
            data = bytearray(slid_segment(contents, segment, pointers, slide))
            for place, symbol, addend in zip(
                binds.places.tolist(), binds.symbols.tolist(), binds.addends.tolist(), strict=True
            ):
                at = place - segment.vmaddr
                if 0 <= at <= len(data) - _POINTER:
                    data[at : at + _POINTER] = (values[symbol] + addend).to_bytes(8, "little")
            start = Avma(segment.vmaddr + slide)
            yield LoadedSegment(start, segment.vmsize, bytes(data), image, segment.name)
