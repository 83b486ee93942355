"""All pointers of an image that was linked before chained fixups: opcodes, else relocations."""

from __future__ import annotations

import numpy as np

from machtrace.errors import MachOError, MachtraceError, MemoryReadError
from machtrace.macho.binds import BindReader
from machtrace.macho.classic_relocations import local_relocations, named_pointers
from machtrace.macho.contents import FileContents
from machtrace.macho.fixups import PointerRun, places_of, read_rebases
from machtrace.macho.pointer_rows import (
    Addresses,
    PointerRows,
    RebaseRows,
    no_binds,
    no_rebases,
)
from machtrace.macho.scattered_records import ScatteredRecords
from machtrace.macho.structs import DyldInfoCommand
from machtrace.model.address import FileOffset


def opcode_pointers(contents: FileContents) -> PointerRows:
    """The pointers that LC_DYLD_INFO tells of, or the relocations of LC_DYSYMTAB."""
    info = contents.image.dyld_info
    return _of_relocations(contents) if info is None else _of_opcodes(contents, info)


def _of_opcodes(contents: FileContents, info: DyldInfoCommand) -> PointerRows:
    problem: MachOError | None = None
    runs: list[PointerRun] = []
    if info.rebase_size:
        try:
            table = contents.read_file(FileOffset(info.rebase_off), info.rebase_size)
            read_rebases(contents, table, runs)
        except (MachOError, MemoryReadError) as error:
            problem = _as_macho(error, contents, info.rebase_off)
    reader = BindReader(contents)
    for offset, size, is_lazy in (
        (info.bind_off, info.bind_size, False),
        (info.weak_bind_off, info.weak_bind_size, False),
        (info.lazy_bind_off, info.lazy_bind_size, True),
    ):
        if size:
            try:
                reader.run(offset, size, is_lazy=is_lazy)
            except (MachOError, MemoryReadError) as error:
                problem = problem or _as_macho(error, contents, offset)
    places = places_of(runs)
    chains = reader.rebases()
    rebases = _followed(contents, places)
    if chains is not None:
        rebases = RebaseRows.sorted(
            np.concatenate([chains.places, rebases.places]),
            np.concatenate([chains.targets, rebases.targets]),
        )
    return PointerRows(rebases, reader.rows(), problem)


def _of_relocations(contents: FileContents) -> PointerRows:
    rebases, binds = no_rebases(), no_binds()
    problem: MachOError | None = None
    try:
        rebases = _followed(contents, local_relocations(contents))
        binds = named_pointers(contents)
    except (MachOError, MemoryReadError) as error:
        problem = _as_macho(error, contents, 0)
    return PointerRows(rebases, binds, problem)


def _followed(contents: FileContents, places: Addresses) -> RebaseRows:
    """Pointers that hold the address which they have where nothing is moved."""
    header = contents.image.header
    word = ("<" if header.little_endian else ">") + ("u8" if header.is_64 else "u4")
    words, known = ScatteredRecords(contents).read(places, word)
    return RebaseRows.sorted(places[known], words[known].astype(np.uint64))


def _as_macho(error: MachtraceError, contents: FileContents, offset: int) -> MachOError:
    if isinstance(error, MachOError):
        return error
    return MachOError(str(error), source=contents.source, offset=offset)
