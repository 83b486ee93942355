"""What ``machtrace image`` shows of a file, as values; its JSON has the same names.

Addresses are stated ones (:data:`Svma`), file offsets count from the start of the slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

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
    """What the format calls its type."""
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
    """As it is mapped: ``r-x``."""
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
    """Of the slice in the file."""
    size: int
    """Of the slice."""
    type: str
    identifier: str | None
    """The UUID or build-id."""
    facts: Facts
    """The rest of what its headers say, in the order to show it in."""
    segments: tuple[SegmentDescription, ...]
    commands: tuple[CommandDescription, ...]


class SymbolDescription(NamedTuple):
    """One entry of a symbol table."""

    number: int
    """Its place in the table, from 0."""
    value: int
    kind: str
    visibility: str
    place: str
    """The section that it is in, or the library that it comes from."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAddress:
    """The symbol that an address falls into."""

    name: str
    linkage_name: str
    address: int
    """Of its first instruction."""
    size: int | None
    offset: int
    """Bytes from there to what was looked up."""
    certainty: str
    aliases: tuple[str, ...]
    """Other symbols at the same address."""

    @classmethod
    def of(cls, symbol: Symbol, start: Svma, address: Svma, names: Iterable[str]) -> NamedAddress:
        """What was looked up at ``address``: ``symbol``, which is at ``start`` as ``names`` are."""
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
    """What is at an address."""

    address: int
    segment: str
    protection: str
    section: str | None
    section_offset: int | None
    file_offset: int | None
    """None where the file has no byte for it, only zeros in memory."""
    symbol: NamedAddress | None
    function_start: int | None
    """Of the function as LC_FUNCTION_STARTS bounds it; None where that is not known."""
    function_end: int | None


class DescribedImage(Protocol):
    """A file that can be shown, of either format."""

    @property
    def problems(self) -> tuple[MachtraceError, ...]:
        """Tables that could not be read, and are missing in :meth:`describe`."""
        ...

    def describe(self) -> ImageDescription:
        """Its headers."""
        ...

    def symbols(self) -> Iterator[SymbolDescription]:
        """Its symbol table, in order.

        Raises:
            FormatError: the table is malformed, or outside the file.
        """
        ...

    def look_up(self, address: Svma, /) -> AddressDescription | None:
        """What is at ``address``; None where no segment has it.

        Raises:
            FormatError: a table that tells is malformed, or outside the file.
        """
        ...
