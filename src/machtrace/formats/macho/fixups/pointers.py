"""Where the pointers of an image lead, however its linker wrote them.

In a file a pointer is seldom an address: newer linkers write chained fixups over it, older ones
leave it to opcodes (LC_DYLD_INFO), the oldest to relocations. In memory it is an address that was
slid, and of arm64e signed. All of these are asked alike here.

Pointers that are addresses already: in memory, and in images that cannot be moved.

All pointers of an image that was linked before chained fixups: opcodes, else relocations.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachOError, MachtraceError, MemoryReadError
from machtrace.formats.macho.columns import (
    Addresses,
    BindRows,
    PointerRows,
    RebaseRows,
    RowPointers,
    ScatteredRecords,
    no_binds,
    no_rebases,
)
from machtrace.formats.macho.contents import FileContents, MachOContents
from machtrace.formats.macho.fixups.bind_opcodes import BindReader, BindTable
from machtrace.formats.macho.fixups.chained import chained_pointers
from machtrace.formats.macho.fixups.rebase_opcodes import PointerRun, places_of, read_rebases
from machtrace.formats.macho.fixups.relocations import local_relocations, named_pointers
from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.image import MachOImage
from machtrace.formats.macho.structs import DyldInfoCommand
from machtrace.model.address import FileOffset, PacMask, Svma
from machtrace.model.arch import Arch

_CHUNK = 1 << 20
"""Bytes that are looked through together."""
_PAGE = 1 << 14
"""The same, where not all of that can be read."""
_MOST_READS = 1 << 12


def inside_image(image: MachOImage, addresses: Addresses) -> npt.NDArray[np.bool_]:
    """Which of ``addresses`` are in a segment of ``image``."""
    is_inside = np.zeros(len(addresses), np.bool_)
    for segment in image.segments:
        if segment.filesize or segment.initprot:  # __PAGEZERO and its like hold nothing
            # What lies before the segment wraps, and so is beyond it.
            is_inside |= (addresses - np.uint64(segment.vmaddr)) < np.uint64(
                min(segment.vmsize, (1 << 64) - 1)
            )
    return is_inside


class RawPointers:
    """Every word whose value lies in the image counts.

    They are :class:`~machtrace.formats.macho.fixups.pointers.Pointers`.
    """

    def __init__(
        self,
        contents: MachOContents,
        *,
        slide: int,
        mask: PacMask,
        binds: BindRows,
        problem: MachOError | None = None,
    ) -> None:
        """``slide`` is what was added to each; ``mask`` has the bits that are address."""
        self._contents = contents
        self._slide = np.uint64(slide % (1 << 64))
        self._mask = np.uint64(mask.bits)
        header = contents.image.header
        self._word = np.dtype(
            ("<" if header.little_endian else ">") + f"u{8 if header.is_64 else 4}"
        )
        self._records = ScatteredRecords(contents)
        self.binds = binds
        """Of the tables that could be read."""
        self.problem = problem
        """What ended the reading of a table too early."""

    def target(self, at: Svma, /) -> Svma | None:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.target`."""
        found = int(self.targets(np.array([at], np.uint64))[0])
        return Svma(found) if found else None

    def targets(self, at: Addresses, /) -> Addresses:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.targets`."""
        words, _ = self._records.read(at, self._word)
        found = self._inside(words.astype(np.uint64))
        self._leave_bound(at, found)
        return found

    def addresses(self, at: Addresses, /, mask: int | None = None) -> Addresses:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.addresses`."""
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

    def symbol(self, at: Svma, /) -> str | None:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.symbol`."""
        return self.symbols(np.array([at], np.uint64))[0] or None

    def symbols(self, at: Addresses, /) -> list[str]:
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.symbols`."""
        return self.binds.symbols_at(at)

    @cached_property
    def rebases(self) -> RebaseRows:
        """All aligned words of data that lead into the image: some may be numbers by chance."""
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
        """What can be read of the image's data, in whole words."""
        size = self._word.itemsize
        reads = _MOST_READS
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
                    if chunk == _CHUNK:  # some of it may be there
                        chunk = _PAGE
                        continue
                at += length
                if at % _CHUNK == 0:
                    chunk = _CHUNK


_ADDRESS_BITS = 56
"""What is above them, in an image of a program, is a tag, as of the names of types in C++."""


class OpcodePointers(RowPointers):
    """The pointers that LC_DYLD_INFO tells of.

    They are :class:`~machtrace.formats.macho.fixups.pointers.Pointers`. A pointer into the image
    is in the file
    what it is where nothing is moved, so where there is one for sure it can be followed without the
    opcodes; these are run when they are needed.
    """

    def __init__(self, contents: FileContents, info: DyldInfoCommand) -> None:
        self._contents = contents
        self._info = info
        header = contents.image.header
        self._word = ("<" if header.little_endian else ">") + ("u8" if header.is_64 else "u4")
        # Of early arm64e, pointers are chained from where bind opcodes say.
        self._may_be_chained = header.arch is Arch.ARM64E
        self._records = ScatteredRecords(contents)

    @property
    def has_rebases(self) -> bool:
        """Whether the image can be moved; where it cannot, no table tells of its pointers."""
        return self._info.rebase_size > 0 or self._may_be_chained

    @cached_property
    def _bound(self) -> tuple[BindReader, MachOError | None]:
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
        """All that lead into the image."""
        return self._moved[0]

    @cached_property
    def binds(self) -> BindRows:
        """All that are bound by name."""
        return self._bound[0].rows()

    @property
    def problem(self) -> MachOError | None:
        """What ended the reading of a table too early, of those that were needed so far."""
        read = (vars(self).get(name) for name in ("_moved", "_bound"))
        return next((one[1] for one in read if one is not None and one[1] is not None), None)

    def addresses(self, at: Addresses, /, mask: int | None = None) -> Addresses:  # noqa: ARG002
        """See :meth:`machtrace.formats.macho.fixups.pointers.Pointers.addresses`."""
        if self._may_be_chained:
            return self.targets(at)
        words, _ = self._records.read(at, self._word)
        words = words.astype(np.uint64)
        return np.where(inside_image(self._contents.image, words), words, np.uint64(0))


def relocated_pointers(contents: FileContents) -> PointerRows:
    """The pointers that the relocations of LC_DYSYMTAB tell of."""
    rebases, binds = no_rebases(), no_binds()
    problem: MachOError | None = None
    try:
        rebases = followed(contents, local_relocations(contents))
        binds = named_pointers(contents)
    except (MachOError, MemoryReadError) as error:
        problem = _as_macho(error, contents, 0)
    return PointerRows(rebases, binds, problem)


def followed(contents: FileContents, places: Addresses) -> RebaseRows:
    """Pointers that hold the address which they have where nothing is moved."""
    header = contents.image.header
    word = ("<" if header.little_endian else ">") + ("u8" if header.is_64 else "u4")
    words, known = ScatteredRecords(contents).read(places, word)
    targets = words[known].astype(np.uint64)
    if contents.image.header_svma < 1 << _ADDRESS_BITS:
        targets &= np.uint64((1 << _ADDRESS_BITS) - 1)
    return RebaseRows.sorted(places[known], targets)


def _as_macho(error: MachtraceError, contents: FileContents, offset: int) -> MachOError:
    if isinstance(error, MachOError):
        return error
    return MachOError(str(error), source=contents.source, offset=offset)


_USER_ADDRESS_BITS = 47


class Pointers(Protocol):
    """The pointers of an image by the places that they are at."""

    @property
    def rebases(self) -> RebaseRows:
        """All that lead into the image."""
        ...

    @property
    def binds(self) -> BindRows:
        """All that are bound by name."""
        ...

    @property
    def problem(self) -> MachOError | None:
        """What ended the reading of a table too early; what came before it is known.

        Of tables that were not needed so far nothing is said: of large images that takes seconds.
        """
        ...

    def target(self, at: Svma, /) -> Svma | None:
        """Where the pointer at ``at`` leads in the image; None where it leads nowhere or out."""
        ...

    def targets(self, at: Addresses, /) -> Addresses:
        """The same of many places; 0 where there is none."""
        ...

    def addresses(self, at: Addresses, /, mask: int | None = None) -> Addresses:
        """Where pointers lead, in the image or around it; 0 where there is none.

        In a file this is :meth:`targets`. In memory a pointer may lead to the heap or to another
        image, at an address that counts as the image's do.

        Args:
            at: the places.
            mask: the bits of loaded pointers that are address, where they are not the usual ones.
        """
        ...

    def symbol(self, at: Svma, /) -> str | None:
        """The name that the pointer at ``at`` is bound to; None where it is to none."""
        ...

    def symbols(self, at: Addresses, /) -> list[str]:
        """The same of many places; empty where there is none."""
        ...


class FixupPointers(RowPointers):
    """Pointers that tables tell of. They are :class:`Pointers`."""

    __slots__ = ("_rows",)

    def __init__(self, rows: PointerRows) -> None:
        self._rows = rows

    @property
    def rebases(self) -> RebaseRows:
        """All that lead into the image."""
        return self._rows.rebases

    @property
    def binds(self) -> BindRows:
        """All that are bound by name."""
        return self._rows.binds

    @property
    def problem(self) -> MachOError | None:
        """What ended the reading of a table too early; what came before it is known."""
        return self._rows.problem

    def addresses(self, at: Addresses, /, mask: int | None = None) -> Addresses:  # noqa: ARG002
        """See :meth:`Pointers.addresses`."""
        return self.targets(at)


def parse_pointers(
    contents: MachOContents,
    *,
    shared_cache_base: Svma | None = None,
    pac_mask: PacMask | None = None,
) -> Pointers:
    """The pointers of an image in a file or in memory.

    Faults in tables do not lose what else they say: see :attr:`Pointers.problem`.

    Args:
        contents: the image.
        shared_cache_base: what the pointer formats of shared caches count from.
        pac_mask: which bits of a loaded pointer are address; None: the low 47, as of programs.
    """
    if contents.is_loaded:
        mask = pac_mask or PacMask.of_width(_USER_ADDRESS_BITS)
        return RawPointers(contents, slide=contents.slide, mask=mask, binds=no_binds())
    if contents.image.header.filetype is FileType.OBJECT:  # whose pointers a linker is to write
        return FixupPointers(PointerRows(no_rebases(), no_binds()))
    fixups = contents.image.chained_fixups
    if fixups is None or not fixups.size:
        return _unchained(contents)
    try:
        return FixupPointers(chained_pointers(contents, shared_cache_base=shared_cache_base))
    except MachOError as error:
        return FixupPointers(PointerRows(no_rebases(), no_binds(), error))


def _unchained(contents: FileContents) -> Pointers:
    info = contents.image.dyld_info
    if info is not None:
        opcodes = OpcodePointers(contents, info)
        if opcodes.has_rebases:
            return opcodes
        rows = PointerRows(no_rebases(), opcodes.binds, opcodes.problem)
    else:
        rows = relocated_pointers(contents)
        if len(rows.rebases):
            return FixupPointers(rows)
    # Without a table of them, pointers are what they are when nothing is moved.
    return RawPointers(contents, slide=0, mask=PacMask(), binds=rows.binds, problem=rows.problem)
