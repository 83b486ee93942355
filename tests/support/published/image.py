"""A published image, loaded at an address: its bytes, functions, imports and names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError
from machtrace.formats.object_file import ObjectFile, linked_image, sniff
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.sources.of_image import image_rules

IMPORTS = 0x50_0000_0000
"""Where symbols of other images are: nothing there can be executed."""
IMPORT_SIZE = 0x40
ANY_IMPORT = IMPORTS
"""The address of a function of another image whose name is not known."""
PIE_ADDRESS = 0x2_0000_0000
_LOWEST = 0x1000_0000
"""Images that state lower addresses, and can be moved, are."""
ARCHITECTURES = frozenset({Arch.ARM64, Arch.ARM64E, Arch.X86_64, Arch.X86_64H})

Addresses = npt.NDArray[np.uint64]


@dataclass(slots=True)
class LoadedSegment:
    """A part of an image in memory, with its pointers as a loader leaves them."""

    address: int
    data: bytearray
    """Zeros of its end included."""
    is_writable: bool
    is_executable: bool


@dataclass(slots=True, kw_only=True)
class PublishedImage:
    """An image; all addresses but :attr:`slide` are those in the emulator."""

    contents: ObjectFile
    name: str
    slide: int
    segments: list[LoadedSegment]
    code: tuple[tuple[int, int], ...]
    """The (start, end) of sections with code; ascending."""
    starts: Addresses
    """Starts of functions; ascending, unique."""
    stub_names: Mapping[int, str]
    """Names of the functions that linker stubs jump to, by the stub's address."""
    stub_ranges: tuple[tuple[int, int], ...]
    import_names: Mapping[int, str]
    """Names of symbols of other images, by their address in :data:`IMPORTS`."""
    names: Mapping[int, str]
    """Names of functions, by start."""
    is_part: Callable[[int], bool] = field(default=lambda _: False)
    """Whether tables show that a start is no function's entry."""
    is_swift: bool = False
    is_go: bool = False
    _code_starts: list[int] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._code_starts = [low for low, _ in self.code]
        self._starts = self.starts.tolist()

    @property
    def arch(self) -> Arch:
        """The architecture of its code."""
        return self.contents.image.arch

    def holds_code(self, address: int) -> bool:
        """Return whether ``address`` is in a section with code."""
        index = bisect_right(self._code_starts, address) - 1
        return index >= 0 and address < self.code[index][1]

    def is_stub(self, address: int) -> bool:
        """Return whether ``address`` is in a section of linker stubs."""
        return any(low <= address < high for low, high in self.stub_ranges)

    def function_at(self, address: int) -> tuple[int, int] | None:
        """Return the (start, end) of the function that holds ``address``."""
        section = bisect_right(self._code_starts, address) - 1
        index = bisect_right(self._starts, address) - 1
        if section < 0 or index < 0:
            return None
        low, high = self.code[section]
        start = self._starts[index]
        if address >= high or start < low:
            return None
        end = self._starts[index + 1] if index + 1 < len(self._starts) else high
        return start, min(end, high)

    def bytes_at(self, address: int, size: int) -> bytes:
        """Return at most ``size`` bytes as they were loaded."""
        for segment in self.segments:
            begin = address - segment.address
            if 0 <= begin < len(segment.data):
                return bytes(segment.data[begin : begin + size])
        return b""

    def label(self, address: int) -> str:
        """Return function and offset of ``address``, for people."""
        function = self.function_at(address)
        if function is None:
            name = self.import_names.get(address)
            return f"{address:#x}" if name is None else f"{name} (imported)"
        name = self.names.get(function[0], f"unnamed_{function[0] - self.slide:x}")
        return f"{name} + {address - function[0]}"

    def binary_image(self) -> BinaryImage:
        """Return the image as targets list it."""
        linked = linked_image(self.contents)
        return BinaryImage(
            path=linked.path,
            uuid=linked.uuid,
            arch=linked.arch,
            format=linked.format,
            load_address=Avma(linked.load_address + self.slide),
            header_svma=linked.header_svma,
            size=linked.size,
        )

    def rules(self) -> RuleCache:
        """Return a rule cache of a process with this image, with nothing cached."""
        rules = image_rules(self.contents, self.arch)
        return RuleCache(ImageList([self.binary_image()]), self.arch, lambda _: rules)


def load(contents: bytes | memoryview | Path, arch: Arch | None, name: str) -> PublishedImage:
    """Load a file; of a fat file the slice for ``arch``, or the first that can be run.

    Raises:
        FormatError: it is malformed, or has no code for an emulated architecture.
    """
    data = contents.read_bytes() if isinstance(contents, Path) else contents
    label = name or (contents.name if isinstance(contents, Path) else "image")
    for part in sniff(data, label):
        if part.arch_name not in {known.value for known in ARCHITECTURES}:
            continue
        if arch is not None and part.arch_name != arch.value:
            continue
        file = part.open()
        if file.format is ImageFormat.ELF:
            from tests.support.published.elf import load_elf

            image = load_elf(file, label)
        else:
            from tests.support.published.macho import load_macho

            image = load_macho(file, label)
        if not len(image.starts):
            raise FormatError("no table lists a function", source=label, offset=0)
        return image
    wanted = "arm64 or x86_64" if arch is None else arch.value
    raise FormatError(f"no code for {wanted}", source=label, offset=0)


def slide_of(lowest: int, *, is_movable: bool) -> int:
    """Return the slide of an image whose stated addresses begin at ``lowest``."""
    return PIE_ADDRESS if is_movable and lowest < _LOWEST else 0


def import_addresses(names: tuple[str, ...]) -> tuple[Addresses, dict[int, str]]:
    """Return the address of each symbol of other images, and the names by address."""
    addresses = IMPORTS + IMPORT_SIZE * np.arange(1, len(names) + 1, dtype=np.uint64)
    return addresses, dict(zip(addresses.tolist(), names, strict=True))
