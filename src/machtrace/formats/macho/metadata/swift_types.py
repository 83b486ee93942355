"""Functions that Swift's type descriptors lead to: metadata accessors, and methods in vtables.

Source: the Swift project, ``include/swift/ABI/Metadata.h`` (``TargetTypeContextDescriptor``,
``TargetClassDescriptor``, ``TargetMethodDescriptor``), ``GenericContext.h`` and
``MetadataValues.h`` (``TypeContextDescriptorFlags``, ``MethodDescriptorFlags``). The sections are
``__swift5_types`` and ``__swift5_types2``.

What Swift's types are called: context descriptors, from a type up to its module.

Source: the Swift project, ``include/swift/ABI/Metadata.h`` (``TargetContextDescriptor`` and what is
made of it), ``MetadataValues.h`` (``ContextDescriptorKind``), ``TypeIdentity.h`` (imported types),
``docs/ABI/Mangling.rst`` (symbolic references).

Swift's metadata: relative pointers, and the descriptors that they lead to.

Source: the Swift project, ``include/swift/Basic/RelativePointer.h`` and
``include/swift/ABI/Metadata.h``. A relative pointer is 32 bits, signed, and counts from where it
is; of an indirectable one the lowest bit says that it leads to a pointer.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.columns import Addresses, Rows, ScatteredRecords, bounded, flattened
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.frozen import dataclass
from machtrace.model.address import Svma

_LONGEST_NAME = 1 << 12
_WORD = 4


class SwiftRecords:
    """The image that metadata is read from."""

    __slots__ = ("_mask", "contents", "memory", "pointers")

    def __init__(self, contents: MachOContents, pointers: Pointers) -> None:
        self.contents = contents
        self.pointers = pointers
        self.memory = ScatteredRecords(contents)
        self._mask = np.uint64((1 << (64 if contents.image.header.is_64 else 32)) - 1)

    def listed(self, *sections: str) -> Addresses:
        """The places of all relative pointers in the sections of these names."""
        return self.memory.elements(sections, _WORD)

    def relative(self, at: Addresses) -> Addresses:
        """Where the relative pointers at ``at`` lead; 0 where there is none."""
        offsets, known = self.memory.read(at, "<i4")
        targets = (at + offsets.astype(np.int64).astype(np.uint64)) & self._mask
        return np.where(known & (offsets != 0), targets, np.uint64(0))

    def marked(self, at: Addresses, bits: int) -> tuple[Addresses, npt.NDArray[np.int64]]:
        """The same of pointers whose lowest ``bits`` are no part of them, and these bits."""
        offsets, known = self.memory.read(at, "<i4")
        low = (1 << bits) - 1
        marks = offsets.astype(np.int64) & low
        targets = (at + (offsets.astype(np.int64) & ~low).astype(np.uint64)) & self._mask
        return np.where(known & (offsets != 0), targets, np.uint64(0)), marks

    def pointer(self, at: int) -> int:
        """Where one relative pointer leads; 0 where there is none."""
        return int(self.relative(np.array([at], np.uint64))[0])

    def indirectable(self, at: int) -> tuple[int, str]:
        """Where an indirectable pointer leads: an address in the image, or a symbol elsewhere."""
        targets, marks = self.marked(np.array([at], np.uint64), 1)
        target = int(targets[0])
        if not target or not marks[0]:
            return target, ""
        return self.followed(target)

    def followed(self, at: int) -> tuple[int, str]:
        """Where the pointer at ``at`` leads: an address in the image, or a symbol elsewhere."""
        place = Svma(at)
        return self.pointers.target(place) or 0, self.pointers.symbol(place) or ""

    def number(self, at: int, record: npt.DTypeLike = "<u4") -> int | None:
        """One number; None where it cannot be read."""
        rows, known = self.memory.read(np.array([at], np.uint64), record)
        return int(rows[0]) if known[0] else None

    def text(self, at: int) -> str:
        r"""The string at a stated address; bytes that are no UTF-8 are shown as ``\x..``."""
        return self.memory.string(at)[:_LONGEST_NAME].decode("utf-8", "backslashreplace")


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


_SECTIONS = ("__swift5_types", "__swift5_types2")
_INDIRECT = 1
_CONTEXT_KIND = 0x1F
_ACCESSOR = np.uint64(12)
_CLASS_SIZE = 44
"""Of the fields that every class descriptor has."""

_IS_GENERIC = 0x80
_METADATA_INITIALIZATION = 0x3 << 16
_SINGLETON, _FOREIGN = 1 << 16, 2 << 16
_HAS_RESILIENT_SUPERCLASS = 1 << 29
_HAS_VTABLE = 1 << 31

_HAS_TYPE_PACKS = 0x1
_GENERIC_HEADER = 16
_GENERIC_REQUIREMENT = 12
_PACK_HEADER = 4
_PACK = 8

_METHOD_KIND = 0x0F
_IS_INSTANCE = 0x10
_IS_ASYNC = 0x40
_METHOD = 8


class MethodKind(IntEnum):
    """``MethodDescriptorFlags::Kind``."""

    METHOD = 0
    INIT = 1
    GETTER = 2
    SETTER = 3
    MODIFY = 4
    READ = 5
    MODIFY2 = 6
    READ2 = 7


@dataclass(frozen=True, slots=True, eq=False)
class SwiftMethods:
    """Methods in vtables of the classes that declare them. Their names are not in the image."""

    implementations: Addresses
    descriptors: Addresses
    """Of each: its class's."""
    numbers: Rows
    """Of each: its place among the methods that the class declares, from 0."""
    kinds: npt.NDArray[np.uint32]
    """Of each: a :class:`MethodKind`."""
    is_static: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, slots=True, eq=False)
class SwiftTypes:
    """Type descriptors, one row each."""

    descriptors: Addresses
    flags: npt.NDArray[np.uint32]
    accessors: Addresses
    """Of each: the function that gives its metadata; 0 where there is none."""


def parse_swift_types(records: SwiftRecords) -> SwiftTypes:
    """The types that an image declares; what cannot be read is left out."""
    targets, marks = records.marked(records.listed(*_SECTIONS), 2)
    indirect = marks == _INDIRECT
    targets[indirect] = records.pointers.addresses(targets[indirect])
    targets = np.unique(targets[marks <= _INDIRECT])
    flags, known = records.memory.read(targets, "<u4")
    kinds = flags & np.uint32(_CONTEXT_KIND)
    kept = known & (targets != 0)
    kept &= (kinds >= ContextKind.CLASS) & (kinds <= ContextKind.ENUM)
    return SwiftTypes(targets[kept], flags[kept], records.relative(targets[kept] + _ACCESSOR))


def class_methods(records: SwiftRecords, types: SwiftTypes) -> SwiftMethods:
    """The methods of the classes among ``types``: together no more than the image has room for."""
    has_some = (types.flags & np.uint32(_CONTEXT_KIND)) == ContextKind.CLASS
    has_some &= (types.flags & np.uint32(_HAS_VTABLE)) != 0
    classes = types.descriptors[has_some]
    tables, known = _vtables(records, classes, types.flags[has_some])
    headers, readable = records.memory.read(tables, np.dtype(("<u4", (2,))))
    counts = np.where(known & readable, headers[:, 1].astype(np.int64), 0)
    of_class, number = flattened(bounded(counts, records.memory.size // _METHOD))
    places = tables[of_class] + np.uint64(8) + number.astype(np.uint64) * np.uint64(_METHOD)
    flags, _ = records.memory.read(places, "<u4")
    code = records.relative(places + np.uint64(4))
    is_async = (flags & np.uint32(_IS_ASYNC)) != 0
    # What an async method has is a record, which begins with a pointer to the code.
    code[is_async] = records.relative(code[is_async])
    kinds = flags & np.uint32(_METHOD_KIND)
    is_static = ((flags & np.uint32(_IS_INSTANCE)) == 0) & (kinds != MethodKind.INIT)
    kept = (code != 0) & (kinds <= MethodKind.READ2)
    return SwiftMethods(
        code[kept], classes[of_class][kept], number[kept], kinds[kept], is_static[kept]
    )


def _vtables(
    records: SwiftRecords, classes: Addresses, flags: npt.NDArray[np.uint32]
) -> tuple[Addresses, npt.NDArray[np.bool_]]:
    """Where classes' vtables are, behind what else a class may have; and which are known.

    Of generic classes with newer kinds of parameters it is not.
    """

    def has(bits: int, value: int | None = None) -> npt.NDArray[np.bool_]:
        wanted = bits if value is None else value
        found: npt.NDArray[np.bool_] = (flags & np.uint32(bits)) == np.uint32(wanted)
        return found

    at = classes + np.uint64(_CLASS_SIZE)
    generic = has(_IS_GENERIC)
    counts, known = records.memory.read(at + np.uint64(8), np.dtype(("<u2", (4,))))
    numbers = np.where(generic[:, None], counts, 0).astype(np.uint64)
    parameters, requirements, more = numbers[:, 0], numbers[:, 1], numbers[:, 3]
    at += generic * np.uint64(_GENERIC_HEADER)
    at += (parameters + np.uint64(3)) & ~np.uint64(3)
    at += requirements * np.uint64(_GENERIC_REQUIREMENT)
    has_packs = (more & np.uint64(_HAS_TYPE_PACKS)) != 0
    packs, _ = records.memory.read(at, "<u2")
    at += has_packs * (np.uint64(_PACK_HEADER) + packs.astype(np.uint64) * np.uint64(_PACK))
    at += has(_HAS_RESILIENT_SUPERCLASS) * np.uint64(4)
    at += has(_METADATA_INITIALIZATION, _FOREIGN) * np.uint64(4)
    at += has(_METADATA_INITIALIZATION, _SINGLETON) * np.uint64(12)
    return at, (known | ~generic) & (more <= np.uint64(_HAS_TYPE_PACKS))
