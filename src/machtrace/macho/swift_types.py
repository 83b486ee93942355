"""Functions that Swift's type descriptors lead to: metadata accessors, and methods in vtables.

Source: the Swift project, ``include/swift/ABI/Metadata.h`` (``TargetTypeContextDescriptor``,
``TargetClassDescriptor``, ``TargetMethodDescriptor``), ``GenericContext.h`` and
``MetadataValues.h`` (``TypeContextDescriptorFlags``, ``MethodDescriptorFlags``). The sections are
``__swift5_types`` and ``__swift5_types2``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.macho.pointer_rows import Addresses
from machtrace.macho.swift_contexts import ContextKind
from machtrace.macho.swift_records import SwiftRecords

_SECTIONS = ("__swift5_types", "__swift5_types2")
_INDIRECT = 1
_KIND = 0x1F
_ACCESSOR = np.uint64(12)
_CLASS_SIZE = 44
"""Of the fields that every class descriptor has."""

_IS_GENERIC = 0x80
_METADATA_INITIALIZATION = 0x3 << 16
_SINGLETON, _FOREIGN = 1 << 16, 2 << 16
_HAS_RESILIENT_SUPERCLASS = 1 << 29
_HAS_OVERRIDES = 1 << 30
_HAS_VTABLE = 1 << 31

_HAS_TYPE_PACKS = 0x1
_GENERIC_HEADER = 16
_GENERIC_REQUIREMENT = 12
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


class SwiftMethod(NamedTuple):
    """A method in the vtable of the class that declares it. Its name is not in the image."""

    implementation: int
    """An :data:`~machtrace.model.address.Svma`."""
    descriptor: int
    """Of the class; an :data:`~machtrace.model.address.Svma`."""
    number: int
    """Its place among the methods that the class declares, from 0."""
    kind: MethodKind
    is_static: bool


@dataclass(frozen=True, slots=True, eq=False)
class SwiftTypes:
    """Type descriptors, one row each."""

    descriptors: Addresses
    kinds: npt.NDArray[np.uint32]
    """Their flags."""
    accessors: Addresses
    """Of each: the function that gives its metadata; 0 where there is none."""


def parse_swift_types(records: SwiftRecords) -> SwiftTypes:
    """The types that an image declares; what cannot be read is left out."""
    targets, marks = records.marked(records.listed(*_SECTIONS), 2)
    indirect = marks == _INDIRECT
    targets[indirect] = records.pointers.addresses(targets[indirect])
    targets = np.unique(targets[marks <= _INDIRECT])
    flags, known = records.memory.read(targets, "<u4")
    kinds = flags & np.uint32(_KIND)
    kept = known & (targets != 0)
    kept &= (kinds >= ContextKind.CLASS) & (kinds <= ContextKind.ENUM)
    return SwiftTypes(targets[kept], flags[kept], records.relative(targets[kept] + _ACCESSOR))


def class_methods(records: SwiftRecords, types: SwiftTypes) -> Iterator[SwiftMethod]:
    """The methods of the classes among ``types``: together no more than the image has room for."""
    left = records.memory.size // _METHOD
    for descriptor, flags in zip(types.descriptors.tolist(), types.kinds.tolist(), strict=True):
        if flags & _KIND != ContextKind.CLASS or not flags & _HAS_VTABLE:
            continue
        at = _vtable(records, descriptor, flags)
        header = None if at is None else records.numbers(at, "<u4", 2)
        if at is None or header is None or header[1] > left:
            continue
        left -= header[1]
        yield from _methods(records, descriptor, at + 8, header[1])


def _vtable(records: SwiftRecords, descriptor: int, flags: int) -> int | None:
    """Where the header of a class's vtable is; None where what is before it is not understood."""
    at = descriptor + _CLASS_SIZE
    if flags & _IS_GENERIC:
        counts = records.numbers(at + 8, "<u2", 4)
        if counts is None:
            return None
        parameters, requirements, _, more = counts
        at += _GENERIC_HEADER + (parameters + 3 & ~3) + _GENERIC_REQUIREMENT * requirements
        if more & _HAS_TYPE_PACKS:
            packs = records.numbers(at, "<u2", 2)
            if packs is None:
                return None
            at += 4 + _PACK * packs[0]
        if more & ~_HAS_TYPE_PACKS:
            return None
    if flags & _HAS_RESILIENT_SUPERCLASS:
        at += 4
    initialization = flags & _METADATA_INITIALIZATION
    if initialization == _FOREIGN:
        return at + 4
    return at + 12 if initialization == _SINGLETON else at


def _methods(records: SwiftRecords, descriptor: int, at: int, count: int) -> Iterator[SwiftMethod]:
    places = np.uint64(at) + np.arange(count, dtype=np.uint64) * np.uint64(_METHOD)
    flags, known = records.memory.read(places, "<u4")
    code = records.relative(places + np.uint64(4))
    is_async = (flags & np.uint32(_IS_ASYNC)) != 0
    # What an async method has is a record, which begins with a pointer to the code.
    code[is_async] = records.relative(code[is_async])
    kinds = flags & np.uint32(_METHOD_KIND)
    for row in np.flatnonzero(known & (code != 0) & (kinds <= MethodKind.READ2)).tolist():
        is_static = not flags[row] & _IS_INSTANCE and kinds[row] != MethodKind.INIT
        yield SwiftMethod(
            int(code[row]), descriptor, row, MethodKind(int(kinds[row])), bool(is_static)
        )
