"""Swift's metadata, for want of a compiler (Swift, ``include/swift/ABI/Metadata.h``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import pack

from machtrace.formats.macho.metadata.swift_types import ContextKind
from tests.support.writers.metadata import Metadata

_HAS_VTABLE = 1 << 31
_HAS_RESILIENT_SUPERCLASS = 1 << 29
_HAS_SINGLETON = 1 << 16
_IS_GENERIC = 0x80
_HAS_IMPORT_INFO = 1 << 18
_IS_ASYNC = {"method": 0x40, "requirement": 0x20}


@dataclass(slots=True)
class SwiftMetadata(Metadata):
    """Modules, types, protocols and conformances, each given by its descriptor's address."""

    types: list[int] = field(default_factory=list)
    conformances: list[int] = field(default_factory=list)

    def _descriptor(self, size: int, flags: int, **fields: int) -> int:
        """``fields`` are relative pointers, their places in their names: ``at_8``."""
        at = self.add(pack("<I", flags) + bytes(size - 4))
        for place, target in fields.items():
            if target:
                self.write_relative(at + int(place[3:]), target)
        return at

    def module(self, name: str) -> int:
        """Append a module."""
        return self._descriptor(12, ContextKind.MODULE, at_8=self.string(name))

    def anonymous(self, parent: int) -> int:
        """Append the context of what is private in a file."""
        return self._descriptor(8, ContextKind.ANONYMOUS, at_4=parent)

    def extension(self, parent: int, *, of: int | str) -> int:
        """Append an extension of a type here, or of a mangled one elsewhere."""
        if isinstance(of, str):
            extended = self.string(of)
        else:  # a symbolic reference, and what is mangled of its parameters
            extended = self.add(b"\x01" + bytes(4) + b"yxG\0")
            self.write_relative(extended + 1, of)
        return self._descriptor(12, ContextKind.EXTENSION, at_4=parent, at_8=extended)

    def add_type(
        self, kind: ContextKind, name: str, parent: int, accessor: int, *, c_name: str = ""
    ) -> int:
        """Append a struct or enum, and list it; ``c_name``: what it is called in C."""
        text = self.add(name.encode() + b"\0" + (f"N{c_name}\0\0".encode() if c_name else b""))
        flags = kind | (_HAS_IMPORT_INFO if c_name else 0)
        at = self._descriptor(28, flags, at_4=parent, at_8=text, at_12=accessor)
        self.types.append(at)
        return at

    def add_class(
        self,
        name: str,
        parent: int,
        accessor: int,
        methods: Sequence[tuple[int, int]],
        *,
        parameters: int = 0,
        is_resilient: bool = False,
    ) -> int:
        """Append a class with a vtable, and list it.

        Args:
            name: its own.
            parent: what it is in.
            accessor: address of the function.
            methods: flags and address of the code of each.
            parameters: of a generic class: how many, with a requirement each.
            is_resilient: with a superclass of a library that may change, and set up at run time.
        """
        flags = ContextKind.CLASS | _HAS_VTABLE | (_IS_GENERIC if parameters else 0)
        extra = b""
        if parameters:
            extra = pack("<2i4H", 0, 0, parameters, parameters, parameters, 0)
            extra += bytes(-(-parameters // 4) * 4 + 12 * parameters)
        if is_resilient:
            flags |= _HAS_RESILIENT_SUPERCLASS | _HAS_SINGLETON
            extra += bytes(4 + 12)
        text = self.string(name)
        records = [
            self._async_record(code) if bits & _IS_ASYNC["method"] else code
            for bits, code in methods
        ]
        size = 44 + len(extra) + 8 + 8 * len(methods)
        at = self._descriptor(size, flags, at_4=parent, at_8=text, at_12=accessor)
        table = at + 44 + len(extra)
        start = table - at
        place = len(self.data) - size
        self.data[place + 44 : place + start + 8] = extra + pack("<2I", 10, len(methods))
        for number, ((bits, _), record) in enumerate(zip(methods, records, strict=True)):
            entry = place + start + 8 + 8 * number
            self.data[entry : entry + 4] = pack("<I", bits)
            self.write_relative(table + 8 + 8 * number + 4, record)
        self.types.append(at)
        return at

    def _async_record(self, code: int) -> int:
        at = self.add(bytes(8))
        self.write_relative(at, code)
        return at

    def protocol(self, name: str, parent: int, requirements: Sequence[int]) -> int:
        """Append a protocol, by its requirements' flags; it has one in its signature, too."""
        text = self.string(name)
        size = 24 + 12 + 8 * len(requirements)
        at = self._descriptor(size, ContextKind.PROTOCOL, at_4=parent, at_8=text)
        place = len(self.data) - size
        self.data[place + 12 : place + 20] = pack("<2I", 1, len(requirements))
        for number, flags in enumerate(requirements):
            entry = place + 36 + 8 * number
            self.data[entry : entry + 4] = pack("<I", flags)
        return at

    def add_conformance(self, of: int, protocol: int, witnesses: Sequence[int | None]) -> int:
        """Append a type's conformance to a protocol here, with its table, and list it."""
        table = self.add(
            bytes(8 + 8 * len(witnesses)),
            *((8 + 8 * number, code) for number, code in enumerate(witnesses)),
        )
        at = self._descriptor(16, 0, at_4=of, at_8=table)
        self.write_relative(at, protocol)
        self.conformances.append(at)
        return at

    def add_resilient_conformance(
        self, of: int, protocol: str, witnesses: Mapping[str, int], *, is_retroactive: bool = False
    ) -> int:
        """Append a conformance to another image's protocol, by what is bound, and list it."""
        slots = {symbol: self.bound(symbol) for symbol in witnesses}
        slot = self.bound(protocol)
        more = 4 if is_retroactive else 0
        at = self._descriptor(16 + more + 4 + 8 * len(witnesses), 0, at_4=of)
        self.write_relative(at, slot + 1)
        place = len(self.data) - (16 + more + 4 + 8 * len(witnesses))
        self.data[place + 12 : place + 16] = pack("<I", 1 << 16 | (is_retroactive << 6))
        start = place + 16 + more
        self.data[start : start + 4] = pack("<I", len(witnesses))
        for number, (symbol, code) in enumerate(witnesses.items()):
            entry = at + 16 + more + 4 + 8 * number
            self.write_relative(entry, slots[symbol] + 1)
            self.write_relative(entry + 4, code)
        self.conformances.append(at)
        return at

    def sections(self) -> list[tuple[str, int, int]]:
        """Append the lists of types and conformances; gives their sections."""
        return [
            self.relative_section("__swift5_types", self.types),
            self.relative_section("__swift5_proto", self.conformances),
        ]
