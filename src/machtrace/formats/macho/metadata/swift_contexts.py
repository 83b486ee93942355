"""What Swift's types are called: context descriptors, from a type up to its module.

Source: the Swift project, ``include/swift/ABI/Metadata.h`` (``TargetContextDescriptor`` and what is
made of it), ``MetadataValues.h`` (``ContextDescriptorKind``), ``TypeIdentity.h`` (imported types),
``docs/ABI/Mangling.rst`` (symbolic references).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from machtrace.formats.macho.metadata.swift_records import SwiftRecords

_KIND = 0x1F
_LONGEST_QUALIFIED_NAME = 1 << 12
_MOST_NAMES = 1 << 14
"""That are kept; at the limit all are forgotten."""
_DEEPEST = 64
"""Contexts around a type: of a made-up file they may go round."""
_NOMINAL_TYPE = "Mn"
_OBJC_CLASS = "_OBJC_CLASS_$_"
_FROM_C = "__C."
"""What stands in place of the module."""
_HAS_IMPORT_INFO = 1 << 18
_MOST_IMPORT_PARTS = 8
_DIRECT_REFERENCE = 0x01
_INDIRECT_REFERENCE = 0x02
_DESCRIPTOR_SYMBOL = ("_$s", "_$S")


class ContextKind(IntEnum):
    """``ContextDescriptorKind``."""

    MODULE = 0
    EXTENSION = 1
    ANONYMOUS = 2
    PROTOCOL = 3
    OPAQUE_TYPE = 4
    CLASS = 16
    STRUCT = 17
    ENUM = 18


class SwiftContexts:
    """Qualified names of descriptors, each worked out once."""

    def __init__(
        self, records: SwiftRecords, demangled_type: Callable[[str], str] = lambda _: ""
    ) -> None:
        """``demangled_type`` names types of other images, by what is between ``$s`` and ``D``.

        Where it knows none it says nothing.
        """
        self.records = records
        self._demangled_type = demangled_type
        self._names: dict[int, str] = {}

    def kind(self, at: int) -> ContextKind | None:
        """What the descriptor at a stated address describes."""
        flags = self.records.number(at)
        if flags is None:
            return None
        try:
            return ContextKind(flags & _KIND)
        except ValueError:
            return None

    def name(self, at: int) -> str:
        """Such as ``Module.Outer.Inner``; empty where the chain up to the module is broken."""
        return self._name(at, _DEEPEST)

    def name_of_symbol(self, symbol: str) -> str:
        """The same of a type in another image, by the symbol of its descriptor."""
        if symbol.startswith(_DESCRIPTOR_SYMBOL) and symbol.endswith(_NOMINAL_TYPE):
            return self._demangled_type(symbol[len(_DESCRIPTOR_SYMBOL[0]) : -len(_NOMINAL_TYPE)])
        if symbol.startswith(_OBJC_CLASS):
            return _FROM_C + symbol[len(_OBJC_CLASS) :]
        return ""

    def name_of_objc_class(self, at: int) -> str:
        """The same of a class of Objective-C's, by where its name is."""
        name = self.records.text(at)
        return _FROM_C + name if name else ""

    def _name(self, at: int, left: int) -> str:
        known = self._names.get(at)
        if known is None:
            known = self._read(at, left) if left else ""
            if len(known) > _LONGEST_QUALIFIED_NAME:
                known = ""
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[at] = known
        return known

    def _read(self, at: int, left: int) -> str:
        kind = self.kind(at)
        if kind is None or kind is ContextKind.OPAQUE_TYPE:
            return ""
        own = self.records.pointer(at + 8)
        if kind is ContextKind.MODULE:
            return self.records.text(own) if own else ""
        parent, symbol = self.records.indirectable(at + 4)
        around = self._name(parent, left - 1) if parent else module_of_symbol(symbol)
        if not around or kind is ContextKind.ANONYMOUS:  # a private place in a file, without a name
            return around
        if kind is ContextKind.EXTENSION:
            extended = self._extended(own, left)
            return f"(extension in {around}):{extended}" if extended else ""
        name = self._own_name(at, own)
        return f"{around}.{name}" if name else ""

    def _own_name(self, at: int, own: int) -> str:
        """A type's name: of one that was imported from C, what it is called there."""
        name = self.records.text(own) if own else ""
        flags = self.records.number(at) or 0
        if not flags & _HAS_IMPORT_INFO:
            return name
        place, left = own + len(name.encode()) + 1, _MOST_IMPORT_PARTS
        while left:
            part = self.records.text(place)
            if not part:
                break
            if part.startswith("N"):
                return part[1:]
            place, left = place + len(part.encode()) + 1, left - 1
        return name

    def _extended(self, at: int, left: int) -> str:
        """The type of an extension: a mangled name, whose first part may be a reference."""
        head = self.records.number(at, "u1") if at else None
        if head is None:
            return ""
        return self._referred(at, head, left) or self._demangled_type(self.records.text(at))

    def _referred(self, at: int, kind: int, left: int) -> str:
        target = 0
        if kind == _DIRECT_REFERENCE:
            target = self.records.pointer(at + 1)
        elif kind == _INDIRECT_REFERENCE:
            target, _ = self.records.followed(self.records.pointer(at + 1))
        return self._name(target, left - 1) if target else ""


def module_of_symbol(symbol: str) -> str:
    """The module that a descriptor's symbol is of: ``_$s4GameMXM`` is of ``Game``."""
    if not symbol.startswith(_DESCRIPTOR_SYMBOL) or not symbol.endswith("MXM"):
        return ""
    rest = symbol[3:-3]
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return rest[len(digits) :] if digits and int(digits) == len(rest) - len(digits) else ""
