"""The targets of an image's pointers, in any of the linkers' formats.

In a file, a pointer is rarely an address: newer linkers write chained fixups, older ones opcodes
(LC_DYLD_INFO), the oldest relocations. In memory it is a slid address, which is signed on arm64e.
In an image that cannot be moved, it is the address. :class:`Pointers` is the common interface.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError, MachtraceError, MemoryReadError
from machtrace.formats.macho.columns import (
    Addresses,
    BindRows,
    PointerRows,
    RebaseRows,
    ScatteredRecords,
    no_binds,
    no_rebases,
)
from machtrace.formats.macho.contents import MachOContents, MachOFileContents, read_table
from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.segments import S_LAZY_SYMBOL_POINTERS, S_NON_LAZY_SYMBOL_POINTERS
from machtrace.formats.macho.structs import (
    INDIRECT_SYMBOL_ABS,
    INDIRECT_SYMBOL_LOCAL,
    VM_PROT_WRITE,
    DyldInfoCommand,
)
from machtrace.formats.macho.tables.stubs import parse_indirect_symbols
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.address import FileOffset, PacMask, Svma
from machtrace.model.arch import Arch

if TYPE_CHECKING:
    from machtrace.formats.macho.fixups.bind_opcodes import BindReader
    from machtrace.formats.macho.fixups.rebase_opcodes import PointerRun

# --- Pointers of images from before LC_DYLD_INFO: relocation entries, and indirect symbols ---
#
# Source: ``mach-o/reloc.h``, ``mach-o/loader.h`` (``dysymtab_command``), and dyld's
# ``ImageLoaderMachOClassic.cpp`` for the base of relocations' addresses.

_RELOCATION = np.dtype([("address", "<u4"), ("bits", "<u4")])
_SCATTERED = np.uint32(0x80000000)
_SYMBOL = np.uint32(0xFFFFFF)
_EXTERN = np.uint32(1 << 27)
_LENGTH_SHIFT = 25
_MH_SPLIT_SEGS = 0x20


def local_relocations(contents: MachOFileContents) -> Addresses:
    """Return the addresses of an image's pointers into itself, from local relocations, in order.

    Raises:
        MachOError: the table is not in the file.
    """
    command = contents.image.dysymtab
    if command is None or not command.nlocrel:
        return np.zeros(0, np.uint64)
    rows = _rows(contents, command.locreloff, command.nlocrel)
    scattered = (rows["address"] & _SCATTERED) != 0
    # A scattered relocation has a 24-bit address, and its length in the two bits above the type.
    is_64 = contents.image.header.is_64
    address = np.where(scattered & (not is_64), rows["address"] & _SYMBOL, rows["address"])
    length = np.where(
        scattered & (not is_64), rows["address"] >> np.uint32(28), rows["bits"] >> _LENGTH_SHIFT
    ) & np.uint32(3)
    is_pointer = length == (3 if is_64 else 2)
    places: Addresses = _base(contents) + address[is_pointer].astype(np.uint64)
    return places


def named_pointers(contents: MachOFileContents) -> BindRows:
    """Return pointers to symbols of other images: external relocations, and symbol pointers.

    Raises:
        MachOError: a table is not in the file.
    """
    symbols = parse_symbols(contents)
    command = contents.image.dysymtab
    places: list[Addresses] = []
    numbers: list[npt.NDArray[np.int64]] = []
    if command is not None and command.nextrel:
        rows = _rows(contents, command.extreloff, command.nextrel)
        rows = rows[(rows["bits"] & _EXTERN) != 0]
        places.append(_base(contents) + rows["address"].astype(np.uint64))
        numbers.append((rows["bits"] & _SYMBOL).astype(np.int64))
    indirect = parse_indirect_symbols(contents)
    size = 8 if contents.image.header.is_64 else 4
    for section in contents.image.sections:
        if section.type not in (S_NON_LAZY_SYMBOL_POINTERS, S_LAZY_SYMBOL_POINTERS):
            continue
        entries = indirect[section.reserved1 : section.reserved1 + section.size // size]
        special = (entries & np.uint32(INDIRECT_SYMBOL_LOCAL | INDIRECT_SYMBOL_ABS)) != 0
        at = np.flatnonzero(~special)
        places.append(np.uint64(section.address) + at.astype(np.uint64) * np.uint64(size))
        numbers.append(entries[at].astype(np.int64))
    where = np.concatenate([np.zeros(0, np.uint64), *places])
    which = np.concatenate([np.zeros(0, np.int64), *numbers])
    known = which < len(symbols)
    used, rows_of = np.unique(which[known], return_inverse=True)
    return BindRows.sorted(
        where[known],
        rows_of.astype(np.int32),
        np.zeros(len(rows_of), np.int64),
        symbols.names(used.tolist()),
    )


def _rows(contents: MachOFileContents, offset: int, count: int) -> npt.NDArray[np.void]:
    data = read_table(contents, offset, count * _RELOCATION.itemsize, "the relocations")
    little_endian = contents.image.header.little_endian
    return np.frombuffer(data, _RELOCATION if little_endian else _RELOCATION.newbyteorder(">"))


def _base(contents: MachOFileContents) -> np.uint64:
    """Return the base of relocations' addresses: in 64 bits, the first writable segment."""
    image = contents.image
    if image.header.is_64 or image.header.flags & _MH_SPLIT_SEGS:
        for segment in image.segments:
            if segment.initprot & VM_PROT_WRITE:
                return np.uint64(segment.vmaddr)
    return np.uint64(image.segments[0].vmaddr if image.segments else 0)


# --- The targets of an image's pointers, in any of the linkers' formats ---

_CHUNK = 1 << 20
"""Bytes searched at once."""
_PAGE = 1 << 14
"""Bytes searched at once where a larger read fails."""
_MAX_READS = 1 << 12


def inside_image(image: MachOImage, addresses: Addresses) -> npt.NDArray[np.bool_]:
    """Return which of ``addresses`` are in a segment of ``image``."""
    is_inside = np.zeros(len(addresses), np.bool_)
    for segment in image.segments:
        if segment.filesize or segment.initprot:  # not __PAGEZERO
            # Addresses before the segment wrap, and so are beyond its end.
            is_inside |= (addresses - np.uint64(segment.vmaddr)) < np.uint64(
                min(segment.vmsize, (1 << 64) - 1)
            )
    return is_inside


class Pointers:
    """The pointers of an image, by their addresses: those that its tables list."""

    def __init__(self, rows: PointerRows) -> None:
        self._rows = rows

    @property
    def rebases(self) -> RebaseRows:
        """The pointers into the image."""
        return self._rows.rebases

    @property
    def binds(self) -> BindRows:
        """The pointers bound by name."""
        return self._rows.binds

    @property
    def problem(self) -> MachOError | None:
        """The error that truncated a table; pointers before it are known.

        Tables that were not needed so far are not included: parsing all takes seconds.
        """
        return self._rows.problem

    def target(self, at: Svma, /) -> Svma | None:
        """Return the target of the pointer at ``at``; None if it is not in the image."""
        return self.rebases.target_at(at)

    def targets(self, at: Addresses, /) -> Addresses:
        """Return the targets of the pointers at ``at``; 0 if not in the image."""
        return self.rebases.targets_at(at)

    def addresses(self, at: Addresses, /, mask: int | None = None) -> Addresses:  # noqa: ARG002
        """Return the targets of pointers, in the image or outside of it; 0 without a pointer.

        In a file, these are :meth:`targets`. In memory, a pointer may lead to the heap or to
        another image, at an address slid as the image's are.

        Args:
            at: the addresses of the pointers.
            mask: the address bits of loaded pointers, if they are not the usual ones.
        """
        return self.targets(at)

    def symbol(self, at: Svma, /) -> str | None:
        """Return the name that the pointer at ``at`` is bound to, or None."""
        return self.binds.symbol_at(at)

    def symbols(self, at: Addresses, /) -> list[str]:
        """Return the names that the pointers at ``at`` are bound to; empty for the others."""
        return self.binds.symbols_at(at) if len(at) else []


class RawPointers(Pointers):
    """Words whose values are addresses in the image."""

    def __init__(
        self,
        contents: MachOContents,
        *,
        slide: int,
        mask: PacMask,
        binds: BindRows,
        problem: MachOError | None = None,
    ) -> None:
        """Take the slide of the values, the mask of their address bits, and the listed binds."""
        super().__init__(PointerRows(no_rebases(), binds, problem))
        self._contents = contents
        self._slide = np.uint64(slide % (1 << 64))
        self._mask = np.uint64(mask.bits)
        header = contents.image.header
        self._word = np.dtype(
            ("<" if header.little_endian else ">") + f"u{8 if header.is_64 else 4}"
        )
        self._records = ScatteredRecords(contents)

    def target(self, at: Svma, /) -> Svma | None:
        """See :meth:`Pointers.target`."""
        found = int(self.targets(np.array([at], np.uint64))[0])
        return Svma(found) if found else None

    def targets(self, at: Addresses, /) -> Addresses:
        """See :meth:`Pointers.targets`."""
        words, _ = self._records.read(at, self._word)
        found = self._inside(words.astype(np.uint64))
        self._leave_bound(at, found)
        return found

    def addresses(self, at: Addresses, /, mask: int | None = None) -> Addresses:
        """See :meth:`Pointers.addresses`."""
        words, _ = self._records.read(at, self._word)
        words = words.astype(np.uint64)
        found: Addresses = (words & (self._mask if mask is None else np.uint64(mask))) - self._slide
        found[words == 0] = 0
        self._leave_bound(at, found)
        return found

    def _leave_bound(self, at: Addresses, found: Addresses) -> None:
        if len(self.binds):
            rows = self.binds.places.searchsorted(at).clip(max=len(self.binds) - 1)
            found[self.binds.places[rows] == at] = 0

    def _inside(self, words: Addresses) -> Addresses:
        targets = (words & self._mask) - self._slide
        is_inside = inside_image(self._contents.image, targets)
        return np.where(is_inside & (words != 0), targets, np.uint64(0))

    @cached_property
    def rebases(self) -> RebaseRows:
        """All aligned words of data with addresses in the image; some may be numbers by chance."""
        places, targets = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        for at, data in self._data():
            found = self._inside(np.frombuffer(data, self._word).astype(np.uint64))
            rows = np.flatnonzero(found)
            places.append(np.uint64(at) + rows.astype(np.uint64) * np.uint64(self._word.itemsize))
            targets.append(found[rows])
        rebases = RebaseRows.sorted(np.concatenate(places), np.concatenate(targets))
        kept = ~np.isin(rebases.places, self.binds.places)
        return RebaseRows(rebases.places[kept], rebases.targets[kept])

    def _data(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the readable parts of the image's data, in whole words."""
        size = self._word.itemsize
        reads = _MAX_READS
        for segment in self._contents.image.segments:
            if segment.is_executable or segment.name == "__LINKEDIT":
                continue
            start = -(-segment.vmaddr // size) * size
            end = segment.vmaddr + min(segment.vmsize, segment.filesize or segment.vmsize)
            if not self._contents.is_loaded:
                end = min(end, segment.vmaddr + len(self._contents.data) - segment.fileoff)
            at, chunk = start, _CHUNK
            while at + size <= end and reads:
                length = min(chunk, end - at) // size * size
                reads -= 1
                try:
                    yield at, self._contents.read_svma(Svma(at), length)
                except MemoryReadError:
                    if chunk == _CHUNK:  # parts of it may be readable
                        chunk = _PAGE
                        continue
                at += length
                if at % _CHUNK == 0:
                    chunk = _CHUNK


_ADDRESS_BITS = 56
"""The bits above are a tag in an image of a program, such as that of C++ type names."""


class OpcodePointers(Pointers):
    """The pointers of LC_DYLD_INFO.

    In the file, a pointer into the image has its stated target, so a known pointer can be followed
    without the opcodes. These are run when they are needed.
    """

    def __init__(self, contents: MachOFileContents, info: DyldInfoCommand) -> None:
        super().__init__(PointerRows(no_rebases(), no_binds()))
        self._contents = contents
        self._info = info
        header = contents.image.header
        self._word = ("<" if header.little_endian else ">") + ("u8" if header.is_64 else "u4")
        # For early arm64e, bind opcodes state the starts of chains of pointers.
        self._may_be_chained = header.arch is Arch.ARM64E
        self._records = ScatteredRecords(contents)

    @property
    def has_rebases(self) -> bool:
        """Whether the image can be moved; otherwise no table lists its pointers."""
        return self._info.rebase_size > 0 or self._may_be_chained

    @cached_property
    def _bound(self) -> tuple[BindReader, MachOError | None]:
        from machtrace.formats.macho.fixups.bind_opcodes import BindReader, BindTable

        problem: MachOError | None = None
        reader = BindReader(self._contents)
        for table in BindTable.all_of(self._info):
            try:
                reader.run(table)
            except (MachOError, MemoryReadError) as error:
                problem = problem or _as_macho(error, self._contents, table.offset)
        return reader, problem

    @cached_property
    def _moved(self) -> tuple[RebaseRows, MachOError | None]:
        from machtrace.formats.macho.fixups.rebase_opcodes import places_of, read_rebases

        info, problem = self._info, None
        runs: list[PointerRun] = []
        if info.rebase_size:
            try:
                table = self._contents.read_file(FileOffset(info.rebase_off), info.rebase_size)
                read_rebases(self._contents, table, runs)
            except (MachOError, MemoryReadError) as error:
                problem = _as_macho(error, self._contents, info.rebase_off)
        rebases = followed(self._contents, places_of(runs))
        chains = self._bound[0].rebases() if self._may_be_chained else None
        if chains is not None:
            rebases = RebaseRows.sorted(
                np.concatenate([chains.places, rebases.places]),
                np.concatenate([chains.targets, rebases.targets]),
            )
        return rebases, problem

    @property
    def rebases(self) -> RebaseRows:
        """The pointers into the image."""
        return self._moved[0]

    @cached_property
    def binds(self) -> BindRows:
        """The pointers bound by name."""
        return self._bound[0].rows()

    @property
    def problem(self) -> MachOError | None:
        """The error that truncated a table, of those needed so far."""
        read = (vars(self).get(name) for name in ("_moved", "_bound"))
        return next((one[1] for one in read if one is not None and one[1] is not None), None)

    def addresses(self, at: Addresses, /, mask: int | None = None) -> Addresses:  # noqa: ARG002
        """See :meth:`Pointers.addresses`."""
        if self._may_be_chained:
            return self.targets(at)
        words, _ = self._records.read(at, self._word)
        words = words.astype(np.uint64)
        return np.where(inside_image(self._contents.image, words), words, np.uint64(0))


def relocated_pointers(contents: MachOFileContents) -> PointerRows:
    """Return the pointers in the relocations of LC_DYSYMTAB."""
    rebases, binds = no_rebases(), no_binds()
    problem: MachOError | None = None
    try:
        rebases = followed(contents, local_relocations(contents))
        binds = named_pointers(contents)
    except (MachOError, MemoryReadError) as error:
        problem = _as_macho(error, contents, 0)
    return PointerRows(rebases, binds, problem)


def followed(contents: MachOFileContents, places: Addresses) -> RebaseRows:
    """Follow pointers whose values are stated addresses."""
    header = contents.image.header
    word = ("<" if header.little_endian else ">") + ("u8" if header.is_64 else "u4")
    words, known = ScatteredRecords(contents).read(places, word)
    targets = words[known].astype(np.uint64)
    if contents.image.header_svma < 1 << _ADDRESS_BITS:
        targets &= np.uint64((1 << _ADDRESS_BITS) - 1)
    return RebaseRows.sorted(places[known], targets)


def _as_macho(error: MachtraceError, contents: MachOFileContents, offset: int) -> MachOError:
    if isinstance(error, MachOError):
        return error
    return MachOError(str(error), source=contents.source, offset=offset)


_USER_ADDRESS_BITS = 47


def parse_pointers(
    contents: MachOContents,
    *,
    shared_cache_base: Svma | None = None,
    pac_mask: PacMask | None = None,
) -> Pointers:
    """Return the pointers of an image in a file or in memory.

    Rows before an error in a table are retained: see :attr:`Pointers.problem`.

    Args:
        contents: the image.
        shared_cache_base: the base of the pointer formats of shared caches (Svma).
        pac_mask: the address bits of a loaded pointer; None: the low 47, as in programs.
    """
    if contents.is_loaded:
        mask = pac_mask or PacMask.of_width(_USER_ADDRESS_BITS)
        return RawPointers(contents, slide=contents.slide, mask=mask, binds=no_binds())
    if contents.image.header.filetype is FileType.OBJECT:  # whose pointers a linker will write
        return Pointers(PointerRows(no_rebases(), no_binds()))
    fixups = contents.image.chained_fixups
    if fixups is None or not fixups.size:
        return _unchained(contents)
    from machtrace.formats.macho.fixups.chained import chained_pointers

    try:
        return Pointers(chained_pointers(contents, shared_cache_base=shared_cache_base))
    except MachOError as error:
        return Pointers(PointerRows(no_rebases(), no_binds(), error))


def _unchained(contents: MachOFileContents) -> Pointers:
    info = contents.image.dyld_info
    if info is not None:
        opcodes = OpcodePointers(contents, info)
        if opcodes.has_rebases:
            return opcodes
        rows = PointerRows(no_rebases(), opcodes.binds, opcodes.problem)
    else:
        rows = relocated_pointers(contents)
        if len(rows.rebases):
            return Pointers(rows)
    # Without a table, pointers have their stated targets.
    return RawPointers(contents, slide=0, mask=PacMask(), binds=rows.binds, problem=rows.problem)
