"""Binary images: the Mach-O and ELF files mapped into a target."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from enum import Enum
from uuid import UUID

from machtrace.frozen import dataclass
from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.text import counted, printable


@dataclass(frozen=True, slots=True)
class BuildId:
    """An ELF build-id (``NT_GNU_BUILD_ID``), of any length."""

    value: bytes

    @property
    def hex(self) -> str:
        """Lower-case digits, as a UUID's :attr:`~uuid.UUID.hex`."""
        return self.value.hex()

    def __str__(self) -> str:
        """Lower-case hex, as ``readelf -n`` prints it."""
        return self.hex


class ImageFormat(Enum):
    """The file format of an image."""

    MACHO = "macho"
    ELF = "elf"

    @classmethod
    def identified_by(cls, identifier: UUID | BuildId | None) -> ImageFormat:
        """Return the format with this kind of identifier; Mach-O for None."""
        return cls.ELF if isinstance(identifier, BuildId) else cls.MACHO


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryImage:
    """One image in a target."""

    path: str
    """The path in the target; empty if unknown."""
    uuid: UUID | BuildId | None
    """The identifier of the contents."""
    arch: Arch
    format: ImageFormat
    load_address: Avma
    """The address of the Mach-O header, or of the ELF header's page."""
    header_svma: Svma
    """The stated address of the header: ``__TEXT``'s vmaddr, or the lowest PT_LOAD's p_vaddr."""
    size: int
    """Bytes from ``load_address`` to the end of the code: ``__TEXT``'s vmsize, or up to the end
    of the last PT_LOAD that is mapped without a gap."""
    local_path: str | None = None
    """A path by which this machine can open the mapped file, even if it was deleted or is in
    another mount namespace; None if the target knows none."""

    @property
    def name(self) -> str:
        """The last component of :attr:`path`."""
        return self.path.rpartition("/")[2]

    @property
    def label(self) -> str:
        """The name for text: escaped, and ``?`` if it is not known."""
        return printable(self.name) or "?"

    @property
    def identifier(self) -> str | None:
        """:attr:`uuid` as tools print it: an upper-case UUID, a lower-case build-id."""
        return None if self.uuid is None else shown_identifier(self.uuid)

    @property
    def slide(self) -> int:
        """The difference from an :data:`Svma` to its :data:`Avma`; may be negative."""
        return self.load_address - self.header_svma

    @property
    def end(self) -> Avma:
        """The address after the last byte."""
        return Avma(self.load_address + self.size)

    def __contains__(self, address: Avma) -> bool:
        return self.load_address <= address < self.load_address + self.size

    def __str__(self) -> str:
        """Return a line as Apple's reports list images: range, name, architecture, identifier."""
        last = max(self.load_address, self.end - 1)
        identifier = f"<{self.identifier or 'no identifier'}>"
        parts = (f"{self.load_address:#x} - {last:#x}", self.label, self.arch.value, identifier)
        return "  ".join((*parts, printable(self.path)) if self.path else parts)

    def __repr__(self) -> str:
        identifier = self.identifier or "no identifier"
        return (
            f"<BinaryImage {self.label} {self.arch.value} at {self.load_address:#x}: {identifier}>"
        )

    def offset_of(self, address: Avma) -> ImageOffset:
        """Return the offset from the header, in bytes."""
        return ImageOffset(address - self.load_address)

    def svma_of(self, address: Avma) -> Svma:
        """Return the stated address of ``address``."""
        return Svma(address - self.slide)


def shown_identifier(identifier: UUID | BuildId) -> str:
    """Return an identifier as tools print it: an upper-case UUID, a lower-case build-id."""
    return str(identifier).upper() if isinstance(identifier, UUID) else str(identifier)


class ImageList:
    """The images of one target, by address."""

    __slots__ = ("_images", "_starts")

    def __init__(self, images: Iterable[BinaryImage] = ()) -> None:
        self._images = tuple(sorted(images, key=lambda image: image.load_address))
        self._starts = [image.load_address for image in self._images]

    def find(self, address: Avma) -> BinaryImage | None:
        """Return the image that contains ``address``."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address not in self._images[index]:
            return None
        return self._images[index]

    def __iter__(self) -> Iterator[BinaryImage]:
        return iter(self._images)

    def __len__(self) -> int:
        return len(self._images)

    def __str__(self) -> str:
        return "\n".join(map(str, self._images))

    def __repr__(self) -> str:
        return f"<ImageList: {counted(len(self), 'image')}>"
