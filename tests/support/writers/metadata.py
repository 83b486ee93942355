"""Metadata for runtimes, made byte by byte, in an image with chained fixups.

Objective-C metadata of kinds that the available linkers do not write.

Those of arm64e and of shared caches (objc4, ``runtime/objc-runtime-new.h``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from struct import pack, pack_into

from machtrace.formats.macho.header import CPU_TYPE_ARM64
from tests.support.writers.chained_fixups import (
    DATA_OFFSET,
    IMAGE_SVMA,
    PAGE_SIZE,
    Import,
    ImportTable,
    write_chained_image,
)

DATA_SVMA = IMAGE_SVMA + DATA_OFFSET
"""Where the data of an image is."""

_ARM64E = 0x80000002
_ARM64E_USERLAND24 = 12
_SIGNED_BIND, _SIGNED = 3 << 62, 1 << 63
_BIND = 1 << 63
_DIVERSITY = 0xBEEF << 32


@dataclass(slots=True)
class Metadata:
    """Data that grows by what is added; pointers in it are noted, not written."""

    data: bytearray = field(default_factory=lambda: bytearray(16))
    pointers: dict[int, int] = field(default_factory=dict)
    """Pointers: target addresses by offset in the data."""
    binds: dict[int, str] = field(default_factory=dict)
    """Binds: symbols by offset in the data."""

    def add(self, data: bytes, *pointers: tuple[int, int | None]) -> int:
        """Append a record; gives its address.

        Args:
            data: its bytes.
            pointers: of pointers in it: where, and to which address; None: it stays 0.
        """
        self.data += bytes(-len(self.data) % 8)
        at = len(self.data)
        self.data += data
        for offset, target in pointers:
            if target is not None:
                self.pointers[at + offset] = target
        return DATA_SVMA + at

    def string(self, text: str) -> int:
        """Append a string; gives its address."""
        return self.add(text.encode() + b"\0")

    def bound(self, symbol: str) -> int:
        """Append a pointer to a symbol of another image; gives its address."""
        at = self.add(bytes(8))
        self.binds[at - DATA_SVMA] = symbol
        return at

    def write_relative(self, at: int, target: int) -> None:
        """Write the distance from ``at`` to ``target``, both addresses."""
        pack_into("<i", self.data, at - DATA_SVMA, target - at)

    def image(self, sections: Sequence[tuple[str, int, int]], *, is_signed: bool = True) -> bytes:
        """Return the image: for arm64e with every pointer signed, or for arm64.

        Args:
            sections: names, addresses and sizes.
            is_signed: which of the two.
        """
        names = sorted(set(self.binds.values()))
        bind, plain = (_SIGNED_BIND, _SIGNED | _DIVERSITY) if is_signed else (_BIND, 0)
        pointers = {place: plain | to - IMAGE_SVMA for place, to in self.pointers.items()}
        pointers |= {place: bind | names.index(name) for place, name in self.binds.items()}
        return write_chained_image(
            _ARM64E_USERLAND24 if is_signed else 6,
            dict(sorted(pointers.items())),
            imports=ImportTable(imports=[Import(name) for name in names]),
            cpu=(CPU_TYPE_ARM64, _ARM64E if is_signed else 0),
            contents=bytes(self.data),
            data_size=-(-len(self.data) // PAGE_SIZE) * PAGE_SIZE,
            sections=[(name, at - DATA_SVMA, size) for name, at, size in sections],
        )

    def pointer_section(self, name: str, targets: Sequence[int]) -> tuple[str, int, int]:
        """Append pointers; gives the section of them."""
        at = self.add(bytes(8 * len(targets)), *((8 * n, one) for n, one in enumerate(targets)))
        return name, at, 8 * len(targets)

    def relative_section(self, name: str, targets: Sequence[int]) -> tuple[str, int, int]:
        """Append relative pointers; gives the section of them."""
        at = self.add(pack(f"<{len(targets)}i", *(0 for _ in targets)))
        for number, target in enumerate(targets):
            self.write_relative(at + 4 * number, target)
        return name, at, 4 * len(targets)


class ListKind(Enum):
    """How a list of methods is written."""

    ABSOLUTE = 24
    RELATIVE = 0x80000000 | 12
    DIRECT = 0xC0000000 | 12
    """Selectors count from a place that all of a shared cache's have in common."""
    DIRECT_WITH_TYPES = 0xA0000000 | 12
    """Types count from there, too, as in newer ones."""


@dataclass(slots=True)
class ObjcMetadata(Metadata):
    """Classes and categories, each given by its address."""

    classes: list[int] = field(default_factory=list)
    categories: list[int] = field(default_factory=list)
    selector_base: int = 0
    """Base of selector offsets in lists of :attr:`ListKind.DIRECT` and similar kinds."""

    def methods(self, kind: ListKind, methods: Mapping[str, int]) -> int | None:
        """Append a list of methods, by the names with the addresses of their code."""
        if not methods:
            return None
        names = {name: self.string(name) for name in methods}
        header = pack("<2I", kind.value, len(methods))
        if kind is ListKind.ABSOLUTE:
            pointers = [
                place
                for row, (name, code) in enumerate(methods.items())
                for place in ((8 + 24 * row, names[name]), (8 + 24 * row + 16, code))
            ]
            return self.add(header + bytes(24 * len(methods)), *pointers)
        references = {name: self.add(bytes(8), (0, names[name])) for name in methods}
        at = self.add(header + bytes(12 * len(methods)))
        for row, (name, code) in enumerate(methods.items()):
            entry = at + 8 + 12 * row
            is_direct = kind is not ListKind.RELATIVE
            selector = names[name] - self.selector_base if is_direct else references[name] - entry
            place = entry - DATA_SVMA
            self.data[place : place + 12] = pack("<3i", selector, 0, code - entry - 8)
        return at

    def list_of_lists(self, *lists: int) -> int:
        """Append what a shared cache has for a class with categories; gives a marked address."""
        at = self.add(pack("<2I", 8, len(lists)) + bytes(8 * len(lists)))
        for row, one in enumerate(lists):
            entry = at + 8 + 8 * row
            place = entry - DATA_SVMA
            self.data[place : place + 8] = pack("<q", (one - entry) << 16 | row)
        return at | 1

    def add_class(self, name: str, methods: int | None, class_methods: int | None) -> int:
        """Append a class with its metaclass and list it; gives its address."""
        text = self.string(name)
        meta = self._class(text, class_methods, None, flags=1)
        found = self._class(text, methods, meta, flags=0)
        self.classes.append(found)
        return found

    def _class(self, name: int, methods: int | None, isa: int | None, *, flags: int) -> int:
        data = self.add(pack("<4I", flags, 8, 8, 0) + bytes(56), (24, name), (32, methods))
        return self.add(bytes(40), (0, isa), (32, data | 2))  # 2: as of Swift's classes

    def add_category(
        self, name: str, of: int | str, methods: int | None, class_methods: int | None
    ) -> int:
        """Append a category of a class here, or of the class of a symbol, and list it."""
        own = None if isinstance(of, str) else of
        at = self.add(
            bytes(64), (0, self.string(name)), (8, own), (16, methods), (24, class_methods)
        )
        if isinstance(of, str):
            self.binds[at - DATA_SVMA + 8] = of
        self.categories.append(at)
        return at

    def sections(self, categories: str = "__objc_catlist") -> list[tuple[str, int, int]]:
        """Append the lists of classes and categories; gives their sections."""
        return [
            self.pointer_section("__objc_classlist", self.classes),
            self.pointer_section(categories, self.categories),
        ]
