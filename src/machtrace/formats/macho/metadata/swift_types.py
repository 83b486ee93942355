"""Functions that Swift's type descriptors lead to: metadata accessors, and methods in vtables.

Source: the Swift project, ``include/swift/ABI/Metadata.h`` (``TargetTypeContextDescriptor``,
``TargetClassDescriptor``, ``TargetMethodDescriptor``), ``GenericContext.h`` and
``MetadataValues.h`` (``TypeContextDescriptorFlags``, ``MethodDescriptorFlags``). The sections are
``__swift5_types`` and ``__swift5_types2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.flattened_lists import Rows, bounded, flattened
from machtrace.formats.macho.columns import Addresses
from machtrace.formats.macho.metadata.swift_contexts import ContextKind
from machtrace.formats.macho.metadata.swift_records import SwiftRecords

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
