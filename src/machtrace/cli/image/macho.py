"""The description of a Mach-O file for ``machtrace image``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from machtrace.cli.image.description import (
    AddressDescription,
    CommandDescription,
    DescribedImage,
    Facts,
    ImageDescription,
    NamedAddress,
    SectionDescription,
    SegmentDescription,
    SymbolDescription,
)
from machtrace.errors import FormatError
from machtrace.formats.macho.command_fields import command_fields
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fat import FatSlice
from machtrace.formats.macho.segments import Segment, protection
from machtrace.formats.macho.structs import (
    N_ABS,
    N_EXT,
    N_INDR,
    N_PBUD,
    N_PEXT,
    N_SECT,
    N_STAB,
    N_TYPE,
    N_UNDF,
    STAB_NAMES,
)
from machtrace.formats.macho.tables.function_starts import parse_function_starts
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.address import Svma
from machtrace.symbols.macho.table import macho_symbol_table

_MH_TWOLEVEL = 0x80
_KINDS = {
    N_UNDF: "undefined",
    N_ABS: "absolute",
    N_SECT: "defined",
    N_PBUD: "prebound",
    N_INDR: "indirect",
}
_ORDINALS = {0: "this image", 254: "looked up at run time", 255: "the executable"}
"""``SELF_LIBRARY_ORDINAL`` and the other special ordinals (``mach-o/nlist.h``)."""


class DescribedMachO(DescribedImage):
    """A Mach-O file or a slice of a fat one."""

    def __init__(self, part: FatSlice, source: str) -> None:
        """Read the load commands.

        Raises:
            MachOError: they are malformed.
        """
        super().__init__()
        self._part = part
        self._contents = MachOFileContents(part.data, source)
        self._image = self._contents.image

    def describe(self) -> ImageDescription:
        """See :meth:`DescribedImage.describe`."""
        image = self._image
        return ImageDescription(
            format="macho",
            arch=self._part.arch_name,
            offset=self._part.offset,
            size=self._part.size,
            type=image.header.filetype.name.lower(),
            identifier=None if image.uuid is None else str(image.uuid).upper(),
            facts=self._facts(),
            segments=tuple(_segment(segment) for segment in image.segments),
            commands=tuple(
                CommandDescription(
                    name=command.name,
                    offset=command.offset,
                    size=len(command.data),
                    fields=command_fields(command, image.source),
                )
                for command in image.commands
            ),
        )

    def _facts(self) -> Facts:
        image, header = self._image, self._image.header
        facts: Facts = {
            "bits": 64 if header.is_64 else 32,
            "byte_order": "little" if header.little_endian else "big",
            "cputype": header.cputype,
            "cpusubtype": header.cpusubtype,
            "flags": " ".join(header.flag_names),
        }
        if image.build_version is not None:
            facts["platform"] = image.build_version.platform.value
            facts["minimum_os"] = str(image.build_version.minos)
            facts["sdk"] = str(image.build_version.sdk)
        if image.install_name is not None:
            facts["install_name"] = image.install_name
        if image.entry is not None:
            facts["entry"] = image.header_svma + image.entry.entryoff
        if image.symtab is not None:
            facts["symbol_table_offset"] = image.symtab.symoff
            facts["symbols"] = image.symtab.nsyms
            facts["string_table_offset"] = image.symtab.stroff
            facts["string_table_size"] = image.symtab.strsize
        try:
            facts |= self._counts()
        except FormatError as error:
            self.problems.append(error)
        return facts

    def _counts(self) -> Facts:
        counts: Facts = {}
        if self._image.symtab is not None:
            symbols = parse_symbols(self._contents)
            counts["code_symbols"] = int(np.count_nonzero(symbols.is_code))
            counts["undefined_symbols"] = int(np.count_nonzero(symbols.is_undefined))
            counts["debugger_symbols"] = int(np.count_nonzero(symbols.is_stab))
        if self._image.function_starts is not None:
            counts["function_starts"] = len(parse_function_starts(self._contents))
        return counts

    def symbols(self) -> Iterator[SymbolDescription]:
        """See :meth:`DescribedImage.symbols`."""
        symbols = parse_symbols(self._contents)
        names = symbols.names()
        columns = (
            column.tolist()
            for column in (symbols.n_type, symbols.n_sect, symbols.n_desc, symbols.n_value)
        )
        for index, (kind, section, desc, value) in enumerate(zip(*columns, strict=True)):
            yield SymbolDescription(
                index,
                value,
                _kind(kind),
                _visibility(kind),
                self._place(kind, section, desc),
                names[index],
            )

    def _place(self, kind: int, section: int, desc: int) -> str:
        image = self._image
        if kind & N_STAB or kind & N_TYPE == N_SECT:
            if not 0 < section <= len(image.sections):
                return ""
            defined_in = image.sections[section - 1]
            return f"{defined_in.segment_name},{defined_in.name}"
        if kind & N_TYPE != N_UNDF or not image.header.flags & _MH_TWOLEVEL:
            return ""
        ordinal = desc >> 8
        if 0 < ordinal <= len(image.load_dylibs):
            return image.load_dylibs[ordinal - 1].name.rpartition("/")[2]
        return _ORDINALS.get(ordinal, "")

    def look_up(self, address: Svma, /) -> AddressDescription | None:
        """See :meth:`DescribedImage.look_up`."""
        image = self._image
        segment = image.segment_at(address)
        if segment is None:
            return None
        section = image.section_at(address)
        into = address - segment.vmaddr
        start, end = self._function(address)
        return AddressDescription(
            address=address,
            segment=segment.name,
            protection=protection(segment.initprot),
            section=None if section is None else f"{section.segment_name},{section.name}",
            section_offset=None if section is None else address - section.address,
            file_offset=segment.fileoff + into if into < segment.filesize else None,
            symbol=self._symbol(address),
            function_start=start,
            function_end=end,
        )

    def _symbol(self, address: Svma) -> NamedAddress | None:
        image = self._image
        symbol = macho_symbol_table(self._contents).find(image.offset_of(address))
        if symbol is None or not symbol.is_named:
            return None
        start = image.svma_of(symbol.offset)
        symbols = parse_symbols(self._contents)
        same = np.flatnonzero(symbols.is_code & (symbols.n_value == np.uint64(start)))
        return NamedAddress.of(symbol, start, address, symbols.names(same.tolist()))

    def _function(self, address: Svma) -> tuple[int, int] | tuple[None, None]:
        """Return the bounds of the function that contains ``address``, by function starts."""
        image = self._image
        section = next((section for section in image.code_sections if address in section), None)
        starts = parse_function_starts(self._contents).offsets
        offset = image.offset_of(address)
        if section is None or offset < 0 or not len(starts):
            return None, None
        index = bisect_right(starts, offset)
        if index == 0 or image.header_svma + starts[index - 1] < section.address:
            return None, None
        start = image.header_svma + starts[index - 1]
        if index == len(starts):
            return start, section.end
        return start, min(section.end, image.header_svma + starts[index])


def _segment(segment: Segment) -> SegmentDescription:
    return SegmentDescription(
        name=segment.name,
        address=segment.vmaddr,
        memory_size=segment.vmsize,
        file_offset=segment.fileoff,
        file_size=segment.filesize,
        protection=protection(segment.initprot),
        maximum_protection=protection(segment.maxprot),
        sections=tuple(
            SectionDescription(
                # An object file has all sections in one segment; they name their final ones.
                name=section.name
                if section.segment_name == segment.name
                else f"{section.segment_name},{section.name}",
                address=section.address,
                size=section.size,
                file_offset=section.offset,
                kind=section.type_name,
                is_code=section.is_code,
            )
            for section in segment.sections
        ),
    )


def _kind(n_type: int) -> str:
    if n_type & N_STAB:
        return f"stab {STAB_NAMES.get(n_type, hex(n_type))}"
    return _KINDS.get(n_type & N_TYPE, hex(n_type))


def _visibility(n_type: int) -> str:
    if n_type & N_STAB:
        return ""
    if n_type & N_PEXT:
        return "private"
    return "external" if n_type & N_EXT else "local"
