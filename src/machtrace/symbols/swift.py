"""Names of Swift's functions from the metadata that stripping leaves.

Types keep their names, methods do not: these are counted in their type, as in
``Module.Class.{getter 3}``. No name of Swift's has braces there.
"""

from __future__ import annotations

import numpy as np

from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.formats.macho.metadata.swift_conformances import (
    RequirementKind,
    conforming_type,
    parse_swift_witnesses,
    protocol_of,
)
from machtrace.formats.macho.metadata.swift_types import (
    MethodKind,
    SwiftContexts,
    SwiftRecords,
    class_methods,
    parse_swift_types,
)
from machtrace.model.symbol import Certainty
from machtrace.symbols.ranges import NamedRanges

_KINDS = {
    MethodKind.METHOD: "method",
    MethodKind.INIT: "init",
    MethodKind.GETTER: "getter",
    MethodKind.SETTER: "setter",
    MethodKind.MODIFY: "modify",
    MethodKind.READ: "read",
    MethodKind.MODIFY2: "modify",
    MethodKind.READ2: "read",
}
_REQUIREMENTS = {
    RequirementKind.METHOD: "method",
    RequirementKind.INIT: "init",
    RequirementKind.GETTER: "getter",
    RequirementKind.SETTER: "setter",
    RequirementKind.READ: "read",
    RequirementKind.MODIFY: "modify",
    RequirementKind.READ2: "read",
    RequirementKind.MODIFY2: "modify",
}
_METHOD_DESCRIPTOR = "method descriptor for "
_PROTOCOL_DESCRIPTOR = "protocol descriptor for "


def swift_names(contents: MachOContents, pointers: Pointers) -> NamedRanges:
    """Name the functions that the metadata of an image's Swift types leads to.

    Metadata accessors are called as ``swift-demangle`` calls them. Witnesses of protocols of other
    images are called after the protocol's requirement. Methods in the vtable of a class, and
    witnesses of the image's own protocols, are counted from 0.
    """
    names = _SwiftNames(SwiftRecords(contents, pointers))
    starts = names.starts - np.uint64(contents.image.header_svma)
    return NamedRanges.unranked(starts, names.name, Certainty.SWIFT)


class _SwiftNames:
    """Accessors, then methods, then witnesses; each name is built on demand."""

    def __init__(self, records: SwiftRecords) -> None:
        self._records = records
        self._contexts = SwiftContexts(records, _demangled_type)
        types = parse_swift_types(records)
        has_accessor = types.accessors != 0
        self._accessors = types.descriptors[has_accessor]
        self._methods = class_methods(records, types)
        self._witnesses = parse_swift_witnesses(records)
        self.starts = np.concatenate(
            [
                types.accessors[has_accessor],
                self._methods.implementations,
                self._witnesses.implementations,
            ]
        )

    def name(self, row: int) -> str:
        """Return a function's name; empty if its type is unknown."""
        for count, name in (
            (len(self._accessors), self._accessor),
            (len(self._methods), self._method),
            (len(self._witnesses), self._witness),
        ):
            if row < count:
                return name(row)
            row -= count
        return ""

    def _accessor(self, row: int) -> str:
        name = self._contexts.name(int(self._accessors[row]))
        return f"type metadata accessor for {name}" if name else ""

    def _method(self, row: int) -> str:
        methods = self._methods
        owner = self._contexts.name(int(methods.descriptors[row]))
        kind = _KINDS[MethodKind(int(methods.kinds[row]))]
        what = _counted(kind, int(methods.numbers[row]), is_static=bool(methods.is_static[row]))
        return f"{owner}.{what}" if owner else ""

    def _witness(self, row: int) -> str:
        witnesses = self._witnesses
        conformance = int(witnesses.conformances[row])
        type_name = conforming_type(self._records, self._contexts, conformance)
        protocol = protocol_of(self._records, self._contexts, conformance)
        protocol = _after(_PROTOCOL_DESCRIPTOR, protocol)
        place = int(witnesses.requirements[row])
        if place:
            _, symbol = self._records.followed(place)
            requirement = _after(_METHOD_DESCRIPTOR, symbol)
        else:
            kind = _REQUIREMENTS[RequirementKind(int(witnesses.kinds[row]))]
            is_static = bool(witnesses.is_static[row])
            what = _counted(kind, int(witnesses.numbers[row]), is_static=is_static)
            requirement = f"{protocol}.{what}" if protocol else ""
        if not (type_name and protocol and requirement):
            return ""
        return f"protocol witness for {requirement} in conformance {type_name} : {protocol}"


def _counted(kind: str, number: int, *, is_static: bool) -> str:
    return f"{{{'static ' if is_static else ''}{kind} {number}}}"


def _after(start: str, symbol: str) -> str:
    """Return what a descriptor's symbol describes; the symbol itself if it is of no known kind."""
    from machtrace.demangler.library import demangle_swift

    text = demangle_swift(symbol.removeprefix("_"), simplified=False)
    return text[len(start) :] if text and text.startswith(start) else symbol


def _demangled_type(mangled: str) -> str:
    from machtrace.demangler.library import demangle_swift

    return demangle_swift(f"$s{mangled}D", simplified=False) or ""
