"""Descriptions of files for ``machtrace image``, as values; the JSON has the same names.

Addresses are the file's own (:data:`Svma`), file offsets count from the start of the slice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from machtrace.errors import MachtraceError
from machtrace.frozen import dataclass
from machtrace.model.address import Svma
from machtrace.model.symbol import Symbol

Facts = dict[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionDescription:
    """One section."""

    name: str
    address: int
    size: int
    file_offset: int
    kind: str
    """The type, by its name in the format."""
    is_code: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDescription:
    """One segment; of an ELF file, one program header."""

    name: str
    address: int
    memory_size: int
    file_offset: int
    file_size: int
    protection: str
    """The initial protection, such as ``r-x``."""
    maximum_protection: str | None
    """None where the format has none."""
    sections: tuple[SectionDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDescription:
    """One load command; ELF files have none."""

    name: str
    offset: int
    size: int
    fields: Facts
    """Under the names of ``mach-o/loader.h``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDescription:
    """One thin file, or one slice of a fat one."""

    format: str
    arch: str
    offset: int
    """The slice's offset in the file."""
    size: int
    """The slice's size in bytes."""
    type: str
    identifier: str | None
    """The UUID or build-id."""
    facts: Facts
    """Further facts of its headers, in the order of output."""
    segments: tuple[SegmentDescription, ...]
    commands: tuple[CommandDescription, ...]


class SymbolDescription(NamedTuple):
    """One entry of a symbol table."""

    number: int
    """Its index in the table, from 0."""
    value: int
    kind: str
    visibility: str
    place: str
    """The section or library that defines it."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAddress:
    """The symbol that an address falls into."""

    name: str
    linkage_name: str
    address: int
    """The address of its first instruction."""
    size: int | None
    offset: int
    """Bytes from there to the address that was looked up."""
    certainty: str
    aliases: tuple[str, ...]
    """Other symbols at the same address."""

    @classmethod
    def of(cls, symbol: Symbol, start: Svma, address: Svma, names: Iterable[str]) -> NamedAddress:
        """Return ``symbol`` at ``start``, looked up for ``address``; ``names``: all names there."""
        return cls(
            name=symbol.name,
            linkage_name=symbol.linkage_name,
            address=start,
            size=symbol.size,
            offset=address - start,
            certainty=symbol.certainty.value,
            aliases=tuple(name for name in dict.fromkeys(names) if name != symbol.linkage_name),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressDescription:
    """The contents of an address."""

    address: int
    segment: str
    protection: str
    section: str | None
    section_offset: int | None
    file_offset: int | None
    """None if the file has no byte for it: zeros in memory."""
    symbol: NamedAddress | None
    function_start: int | None
    """The function's bounds by LC_FUNCTION_STARTS; None if unknown."""
    function_end: int | None


class DescribedImage(ABC):
    """A file that can be shown, of either format."""

    def __init__(self) -> None:
        self.problems: list[MachtraceError] = []
        """Tables that could not be read, and are missing in :meth:`describe`."""

    @abstractmethod
    def describe(self) -> ImageDescription:
        """Return the description of its headers."""

    @abstractmethod
    def symbols(self) -> Iterator[SymbolDescription]:
        """Yield its symbol table, in order.

        Raises:
            FormatError: the table is malformed, or outside the file.
        """

    @abstractmethod
    def look_up(self, address: Svma, /) -> AddressDescription | None:
        """Return the contents of ``address``; None if it is in no segment.

        Raises:
            FormatError: a table is malformed, or outside the file.
        """
