"""Names of Go functions, from the table for Go's own tracebacks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.go_images import elf_go_functions, macho_go_functions
from machtrace.formats.gopclntab import GoFunctions
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.model.symbol import Certainty
from machtrace.symbols.ranges import NamedRanges


def go_names(contents: MachOContents, pointers: Callable[[], Pointers]) -> NamedRanges:
    """Name the functions of a Go program in a Mach-O; none if it is no Go program.

    Raises:
        FormatError: the table is malformed.
        MemoryReadError: it cannot be read.
    """
    return _named(macho_go_functions(contents, pointers), contents.image.header_svma)


def elf_go_names(contents: ElfFileContents) -> NamedRanges:
    """Name the functions of a Go program in an ELF file; none if it is no Go program.

    Raises:
        FormatError: the table is malformed.
        MemoryReadError: it cannot be read.
    """
    return _named(elf_go_functions(contents), contents.image.header_svma)


def _named(functions: GoFunctions | None, header: int) -> NamedRanges:
    empty = np.zeros(0, np.uint64)
    starts = empty if functions is None else functions.starts
    sizes = empty if functions is None else functions.ends - functions.starts
    inside = np.flatnonzero(starts >= np.uint64(header))
    return NamedRanges.unranked(
        starts[inside] - np.uint64(header),
        lambda row: "" if functions is None else functions.name(int(inside[row])),
        Certainty.PCLNTAB,
        sizes=sizes[inside],
    )
