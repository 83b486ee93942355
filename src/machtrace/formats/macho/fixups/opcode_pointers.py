"""All pointers of an image that was linked before chained fixups: opcodes, else relocations."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from machtrace.errors import MachOError, MachtraceError, MemoryReadError
from machtrace.formats.macho.fixups.bind_opcodes import BindReader, BindTable
from machtrace.formats.macho.fixups.relocations import local_relocations, named_pointers
from machtrace.formats.macho.contents import FileContents
from machtrace.formats.macho.fixups.rebase_opcodes import PointerRun, places_of, read_rebases
from machtrace.formats.macho.columns import (
    Addresses,
    BindRows,
    PointerRows,
    RebaseRows,
    RowPointers,
    no_binds,
    no_rebases,
)
from machtrace.formats.macho.fixups.raw_pointers import inside_image
from machtrace.formats.macho.scattered_records import ScatteredRecords
from machtrace.formats.macho.structs import DyldInfoCommand
from machtrace.model.address import FileOffset
from machtrace.model.arch import Arch

_ADDRESS_BITS = 56
"""What is above them, in an image of a program, is a tag, as of the names of types in C++."""


class OpcodePointers(RowPointers):
    """The pointers that LC_DYLD_INFO tells of.

    They are :class:`~machtrace.formats.macho.fixups.pointers.Pointers`. A pointer into the image is in the file
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
