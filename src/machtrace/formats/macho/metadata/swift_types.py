"""Swift's types: their qualified names, metadata accessors and methods in vtables.

Context descriptors lead from a type up to its module. Sources: the Swift project,
``include/swift/ABI/Metadata.h`` (``TargetContextDescriptor``, ``TargetTypeContextDescriptor``,
``TargetClassDescriptor``, ``TargetMethodDescriptor``), ``GenericContext.h``, ``MetadataValues.h``
(``ContextDescriptorKind``, ``TypeContextDescriptorFlags``, ``MethodDescriptorFlags``),
``TypeIdentity.h`` (imported types), ``include/swift/Basic/RelativePointer.h`` and
``docs/ABI/Mangling.rst`` (symbolic references). The sections are ``__swift5_types`` and
``__swift5_types2``.

A relative pointer is 32 bits, signed, and relative to its own address; the lowest bit of an
indirectable one marks a pointer to a pointer.
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

_MAX_NAME_LENGTH = 1 << 12
_WORD = 4


class SwiftRecords:
    """The image, as a source of metadata."""

    def __init__(self, contents: MachOContents, pointers: Pointers) -> None:
        self.contents = contents
        self.pointers = pointers
        self.memory = ScatteredRecords(contents)
        self._mask = np.uint64((1 << (64 if contents.image.header.is_64 else 32)) - 1)

    def listed(self, *sections: str) -> Addresses:
        """Return the addresses of all relative pointers in the sections of these names."""
        return self.memory.elements(sections, _WORD)

    def relative(self, at: Addresses) -> Addresses:
        """Return the targets of the relative pointers at ``at``; 0 without a pointer."""
        offsets, known = self.memory.read(at, "<i4")
        targets = (at + offsets.astype(np.int64).astype(np.uint64)) & self._mask
        return np.where(known & (offsets != 0), targets, np.uint64(0))

    def marked(self, at: Addresses, bits: int) -> tuple[Addresses, npt.NDArray[np.int64]]:
        """Return the targets of pointers whose lowest ``bits`` are flags, and the flags."""
        offsets, known = self.memory.read(at, "<i4")
        low = (1 << bits) - 1
        marks = offsets.astype(np.int64) & low
        targets = (at + (offsets.astype(np.int64) & ~low).astype(np.uint64)) & self._mask
        return np.where(known & (offsets != 0), targets, np.uint64(0)), marks

    def pointer(self, at: int) -> int:
        """Return the target of one relative pointer; 0 without a pointer."""
        return int(self.relative(np.array([at], np.uint64))[0])

    def indirectable(self, at: int) -> tuple[int, str]:
        """Return the target of an indirectable pointer: an address in the image, or a symbol."""
        targets, marks = self.marked(np.array([at], np.uint64), 1)
        target = int(targets[0])
        if not target or not marks[0]:
            return target, ""
        return self.followed(target)

    def followed(self, at: int) -> tuple[int, str]:
        """Return the target of the pointer at ``at``: an address in the image, or a symbol."""
        place = Svma(at)
        return self.pointers.target(place) or 0, self.pointers.symbol(place) or ""

    def number(self, at: int, record: npt.DTypeLike = "<u4") -> int | None:
        """Return one number; None if it cannot be read."""
        rows, known = self.memory.read(np.array([at], np.uint64), record)
        return int(rows[0]) if known[0] else None

    def text(self, at: int) -> str:
        r"""Return the string at a stated address; invalid UTF-8 is escaped as ``\x..``."""
        return self.memory.string(at)[:_MAX_NAME_LENGTH].decode("utf-8", "backslashreplace")


_KIND = 0x1F
_MAX_QUALIFIED_NAME_LENGTH = 1 << 12
_MAX_NAMES = 1 << 14
"""Names cached; at the limit, all are dropped."""
_MAX_DEPTH = 64
"""Maximum contexts around a type: those of a synthetic file may be cyclic."""
_NOMINAL_TYPE = "Mn"
_OBJC_CLASS = "_OBJC_CLASS_$_"
_FROM_C = "__C."
"""The placeholder of the module."""
_HAS_IMPORT_INFO = 1 << 18
_MAX_IMPORT_PARTS = 8
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
    """Qualified names of descriptors, with a cache."""

    def __init__(
        self, records: SwiftRecords, demangled_type: Callable[[str], str] = lambda _: ""
    ) -> None:
        """Take a function that demangles the text between ``$s`` and ``D`` of a mangled type.

        It names types of other images, and returns an empty name for an unknown one.
        """
        self.records = records
        self._demangled_type = demangled_type
        self._names: dict[int, str] = {}

    def kind(self, at: int) -> ContextKind | None:
        """Return the kind of the descriptor at a stated address."""
        flags = self.records.number(at)
        if flags is None:
            return None
        try:
            return ContextKind(flags & _KIND)
        except ValueError:
            return None

    def name(self, at: int) -> str:
        """Return a name such as ``Module.Outer.Inner``; empty if a context is unreadable."""
        return self._name(at, _MAX_DEPTH)

    def name_of_symbol(self, symbol: str) -> str:
        """Return the name of a type in another image, by its descriptor's symbol."""
        if symbol.startswith(_DESCRIPTOR_SYMBOL) and symbol.endswith(_NOMINAL_TYPE):
            return self._demangled_type(symbol[len(_DESCRIPTOR_SYMBOL[0]) : -len(_NOMINAL_TYPE)])
        if symbol.startswith(_OBJC_CLASS):
            return _FROM_C + symbol[len(_OBJC_CLASS) :]
        return ""

    def name_of_objc_class(self, at: int) -> str:
        """Return the name of an Objective-C class, by its name's address."""
        name = self.records.text(at)
        return _FROM_C + name if name else ""

    def _name(self, at: int, left: int) -> str:
        known = self._names.get(at)
        if known is None:
            known = self._read(at, left) if left else ""
            if len(known) > _MAX_QUALIFIED_NAME_LENGTH:
                known = ""
            if len(self._names) >= _MAX_NAMES:
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
        if (
            not around or kind is ContextKind.ANONYMOUS
        ):  # a private context of a file, without a name
            return around
        if kind is ContextKind.EXTENSION:
            extended = self._extended(own, left)
            return f"(extension in {around}):{extended}" if extended else ""
        name = self._own_name(at, own)
        return f"{around}.{name}" if name else ""

    def _own_name(self, at: int, own: int) -> str:
        """Return a type's name; for one imported from C, its name there."""
        name = self.records.text(own) if own else ""
        flags = self.records.number(at) or 0
        if not flags & _HAS_IMPORT_INFO:
            return name
        place, left = own + len(name.encode()) + 1, _MAX_IMPORT_PARTS
        while left:
            part = self.records.text(place)
            if not part:
                break
            if part.startswith("N"):
                return part[1:]
            place, left = place + len(part.encode()) + 1, left - 1
        return name

    def _extended(self, at: int, left: int) -> str:
        """Return the type of an extension: a mangled name, whose first part may be a reference."""
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
    """Return the module of a descriptor's symbol: ``Game`` for ``_$s4GameMXM``."""
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
"""The size of the fields that every class descriptor has."""

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
    """Methods in vtables of the classes that declare them; their names are not in the image."""

    implementations: Addresses
    descriptors: Addresses
    """Each method's class."""
    numbers: Rows
    """Each method's index among those that the class declares, from 0."""
    kinds: npt.NDArray[np.uint32]
    """Each method's :class:`MethodKind`."""
    is_static: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, slots=True, eq=False)
class SwiftTypes:
    """Type descriptors, one row each."""

    descriptors: Addresses
    flags: npt.NDArray[np.uint32]
    accessors: Addresses
    """Each type's metadata accessor; 0 without one."""


def parse_swift_types(records: SwiftRecords) -> SwiftTypes:
    """Return the types that an image declares, without unreadable ones."""
    targets, marks = records.marked(records.listed(*_SECTIONS), 2)
    indirect = marks == _INDIRECT
    targets[indirect] = records.pointers.addresses(targets[indirect])
    targets = np.unique(targets[marks <= _INDIRECT])
    flags, known = records.memory.read(targets, "<u4")
    kinds = flags & np.uint32(_CONTEXT_KIND)
    is_type = known & (targets != 0)
    is_type &= (kinds >= ContextKind.CLASS) & (kinds <= ContextKind.ENUM)
    return SwiftTypes(
        targets[is_type], flags[is_type], records.relative(targets[is_type] + _ACCESSOR)
    )


def class_methods(records: SwiftRecords, types: SwiftTypes) -> SwiftMethods:
    """Return the methods of the classes among ``types``; the image's size bounds their number."""
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
    # An async method is a record that starts with a pointer to the code.
    code[is_async] = records.relative(code[is_async])
    kinds = flags & np.uint32(_METHOD_KIND)
    is_static = ((flags & np.uint32(_IS_INSTANCE)) == 0) & (kinds != MethodKind.INIT)
    is_method = (code != 0) & (kinds <= MethodKind.READ2)
    return SwiftMethods(
        code[is_method],
        classes[of_class][is_method],
        number[is_method],
        kinds[is_method],
        is_static[is_method],
    )


def _vtables(
    records: SwiftRecords, classes: Addresses, flags: npt.NDArray[np.uint32]
) -> tuple[Addresses, npt.NDArray[np.bool_]]:
    """Return the addresses of classes' vtables, after their optional fields, and which are known.

    Those of generic classes with newer kinds of parameters are not.
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
