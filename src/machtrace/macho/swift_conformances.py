"""Functions that Swift's protocol conformances lead to: witnesses, for what a protocol requires.

Source: the Swift project, ``include/swift/ABI/Metadata.h`` (what is there of
``TargetProtocolConformanceDescriptor``, ``TargetResilientWitness``, ``TargetProtocolDescriptor``)
and ``MetadataValues.h`` (``ConformanceFlags``, ``ProtocolRequirementFlags``). The section is
``__swift5_proto``.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from machtrace.macho.swift_contexts import ContextKind, SwiftContexts
from machtrace.macho.swift_records import SwiftRecords

_DIRECT_TYPE = 0
_OBJC_NAME = 2
"""Else it is a pointer to the descriptor, or to the class, of another image."""
_METHOD_DESCRIPTOR = "Tq"
_TYPE_REFERENCE = 0x7
_TYPE_REFERENCE_SHIFT = 3
_IS_RETROACTIVE = 1 << 6
_CONDITIONS_SHIFT = 8
_HAS_RESILIENT_WITNESSES = 1 << 16
_HAS_GENERIC_TABLE = 1 << 17
_PACKS_SHIFT = 24
_DESCRIPTOR = 16
_CONDITION = 12
_PACK = 8
_PACK_HEADER = 4
_RESILIENT_WITNESS = 8
_PROTOCOL = 24
_SIGNATURE_REQUIREMENT = 12
_REQUIREMENT = 8
_REQUIREMENT_KIND = 0x0F
_IS_INSTANCE = 0x10
_IS_ASYNC = 0x20


class RequirementKind(IntEnum):
    """``ProtocolRequirementFlags::Kind``."""

    BASE_PROTOCOL = 0
    METHOD = 1
    INIT = 2
    GETTER = 3
    SETTER = 4
    READ = 5
    MODIFY = 6
    ASSOCIATED_TYPE = 7
    ASSOCIATED_CONFORMANCE = 8
    READ2 = 9
    MODIFY2 = 10


CODE = frozenset(RequirementKind) - {
    RequirementKind.BASE_PROTOCOL,
    RequirementKind.ASSOCIATED_TYPE,
    RequirementKind.ASSOCIATED_CONFORMANCE,
}
"""The requirements that functions of the program's own meet."""


class SwiftWitness(NamedTuple):
    """A function through which a type meets a requirement of a protocol."""

    implementation: int
    """An :data:`~machtrace.model.address.Svma`."""
    type_name: str
    """Qualified, as :class:`SwiftContexts` says."""
    protocol: str
    """Its qualified name; the symbol of its descriptor, where that is in another image."""
    requirement: str
    """The symbol of its descriptor, where that is in another image; else empty."""
    number: int
    """Its place among the protocol's requirements, from 0; where it has no symbol."""
    kind: RequirementKind | None
    """None where it has a symbol."""
    is_static: bool


def parse_swift_witnesses(records: SwiftRecords, contexts: SwiftContexts) -> Iterator[SwiftWitness]:
    """The witnesses of all conformances of an image, no more than it has room for.

    Those are left out whose type, or the protocol and what it requires, cannot be told.
    """
    targets, marks = records.marked(records.listed("__swift5_proto"), 1)
    indirect = marks != 0
    targets[indirect] = records.pointers.addresses(targets[indirect])
    left = records.memory.size // _RESILIENT_WITNESS
    for at in np.unique(targets[targets != 0]).tolist():
        for witness in _conformance(records, contexts, at, left):
            left -= 1
            yield witness
        if left <= 0:
            return


def _conformance(
    records: SwiftRecords, contexts: SwiftContexts, at: int, left: int
) -> Iterator[SwiftWitness]:
    fields = records.numbers(at, "<u4", 4)
    if fields is None:
        return
    flags = fields[3]
    type_name = _type_name(records, contexts, at + 4, flags >> _TYPE_REFERENCE_SHIFT)
    if not type_name:
        return
    protocol, protocol_symbol = records.indirectable(at)
    if flags & _HAS_RESILIENT_WITNESSES:
        table = at + _DESCRIPTOR + (4 if flags & _IS_RETROACTIVE else 0)
        table += _CONDITION * (flags >> _CONDITIONS_SHIFT & 0xFF)
        packs = flags >> _PACKS_SHIFT & 0xFF
        table += _PACK_HEADER + _PACK * packs if packs else 0
        yield from _resilient(records, table, type_name, protocol_symbol, left)
    elif protocol and not protocol_symbol:
        pattern = records.pointer(at + 8)
        if pattern:
            yield from _table(records, contexts, pattern, type_name, protocol, left)


def _type_name(records: SwiftRecords, contexts: SwiftContexts, at: int, kind: int) -> str:
    target, kind = records.pointer(at), kind & _TYPE_REFERENCE
    if not target:
        return ""
    if kind == _DIRECT_TYPE:
        return contexts.name(target)
    if kind == _OBJC_NAME:
        return contexts.name_of_objc_class(target)
    target, symbol = records.followed(target)
    return contexts.name_of_symbol(symbol) or (contexts.name(target) if target else "")


def _resilient(
    records: SwiftRecords, at: int, type_name: str, protocol: str, left: int
) -> Iterator[SwiftWitness]:
    """Witnesses that name what they are for, as a protocol of a library may get more."""
    count = records.numbers(at, "<u4")
    if count is None or count[0] > left:
        return
    places = np.uint64(at + 4) + np.arange(count[0], dtype=np.uint64) * np.uint64(
        _RESILIENT_WITNESS
    )
    code = records.relative(places + np.uint64(4))
    targets, marks = records.marked(places, 1)
    symbols = records.pointers.symbols(targets)
    for mark, symbol, implementation in zip(marks.tolist(), symbols, code.tolist(), strict=True):
        if mark and symbol.endswith(_METHOD_DESCRIPTOR) and implementation:
            yield SwiftWitness(
                implementation, type_name, protocol, symbol, 0, None, is_static=False
            )


def _table(
    records: SwiftRecords,
    contexts: SwiftContexts,
    pattern: int,
    type_name: str,
    protocol: int,
    left: int,
) -> Iterator[SwiftWitness]:
    """A table of witnesses: the conformance, then one pointer for each requirement."""
    fields = records.numbers(protocol, "<u4", _PROTOCOL // 4)
    name = contexts.name(protocol) if contexts.kind(protocol) is ContextKind.PROTOCOL else ""
    if fields is None or not name or fields[4] > left or fields[3] > left:
        return
    count = fields[4]
    index = np.arange(count, dtype=np.uint64)
    first = protocol + _PROTOCOL + _SIGNATURE_REQUIREMENT * fields[3]
    flags, known = records.memory.read(np.uint64(first) + index * np.uint64(_REQUIREMENT), "<u4")
    pointer = np.uint64(8 if records.contents.image.header.is_64 else 4)
    code = records.pointers.targets(np.uint64(pattern) + (index + np.uint64(1)) * pointer)
    is_async = (flags & np.uint32(_IS_ASYNC)) != 0
    # What an async witness has is a record, which begins with a pointer to the code.
    code[is_async] = records.relative(code[is_async])
    kinds = flags & np.uint32(_REQUIREMENT_KIND)
    for row in np.flatnonzero(known & (code != 0)).tolist():
        kind = int(kinds[row])
        if kind in CODE:
            is_static = not flags[row] & _IS_INSTANCE and kind != RequirementKind.INIT
            yield SwiftWitness(
                int(code[row]), type_name, name, "", row, RequirementKind(kind), bool(is_static)
            )
