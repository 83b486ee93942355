"""Where the pointers of an image lead, however its linker wrote them.

In a file a pointer is seldom an address: newer linkers write chained fixups over it, older ones
leave it to opcodes (LC_DYLD_INFO), the oldest to relocations. In memory it is an address that was
slid, and of arm64e signed. All of these are asked alike here.
"""

from __future__ import annotations

from typing import Protocol

from machtrace.errors import MachOError
from machtrace.formats.macho.fixups.chained import chained_pointers
from machtrace.formats.macho.contents import FileContents, MachOContents, MemoryContents
from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.fixups.opcode_pointers import OpcodePointers, relocated_pointers
from machtrace.formats.macho.columns import (
    Addresses,
    BindRows,
    PointerRows,
    RebaseRows,
    RowPointers,
    no_binds,
    no_rebases,
)
from machtrace.formats.macho.fixups.raw_pointers import RawPointers
from machtrace.model.address import PacMask, Svma

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
    if not isinstance(contents, FileContents):
        mask = pac_mask or PacMask.of_width(_USER_ADDRESS_BITS)
        slide = contents.slide if isinstance(contents, MemoryContents) else 0
        return RawPointers(contents, slide=slide, mask=mask, binds=no_binds())
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
