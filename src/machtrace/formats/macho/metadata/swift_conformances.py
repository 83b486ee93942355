"""Protocol witnesses of Swift: the functions by which types meet a protocol's requirements.

Source: the Swift project, ``include/swift/ABI/Metadata.h``
(``TargetProtocolConformanceDescriptor``, ``TargetResilientWitness``, ``TargetProtocolDescriptor``)
and ``MetadataValues.h`` (``ConformanceFlags``, ``ProtocolRequirementFlags``). The section is
``__swift5_proto``.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from machtrace.formats.macho.columns import Addresses, Rows, bounded, flattened
from machtrace.formats.macho.metadata.swift_types import ContextKind, SwiftContexts, SwiftRecords
from machtrace.frozen import dataclass

_METHOD_DESCRIPTOR = "Tq"
_DIRECT_TYPE = 0
_OBJC_NAME = 2
"""Otherwise a pointer to the descriptor or the class of another image."""
_TYPE_REFERENCE = 0x7
_TYPE_REFERENCE_SHIFT = 3
_IS_RETROACTIVE = 1 << 6
_CONDITIONS_SHIFT = 8
_HAS_RESILIENT_WITNESSES = 1 << 16
_PACKS_SHIFT = 24
_DESCRIPTOR = 16
_CONDITION = 12
_PACK = 8
_PACK_HEADER = 4
_RESILIENT_WITNESS = 8
_CONTEXT_KIND = 0x1F
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
"""The kinds of requirements that functions of the program fulfil."""


@dataclass(frozen=True, slots=True, eq=False)
class SwiftWitnesses:
    """Witnesses, one row each."""

    implementations: Addresses
    conformances: Addresses
    """Each witness's conformance descriptor."""
    requirements: Addresses
    """The pointer to each witness's requirement if that is in another image; else 0."""
    numbers: Rows
    """The index of each other witness's requirement in the protocol, from 0."""
    kinds: npt.NDArray[np.uint32]
    """The :class:`RequirementKind` of each other witness."""
    is_static: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.numbers)


def parse_swift_witnesses(records: SwiftRecords) -> SwiftWitnesses:
    """Return the witnesses of all conformances of an image; its size bounds their number."""
    conformances, marks = records.marked(records.listed("__swift5_proto"), 1)
    indirect = marks != 0
    conformances[indirect] = records.pointers.addresses(conformances[indirect])
    conformances = np.unique(conformances[conformances != 0])
    fields, known = records.memory.read(conformances, np.dtype(("<u4", (4,))))
    conformances, flags = conformances[known], fields[known, 3]
    is_resilient = (flags & np.uint32(_HAS_RESILIENT_WITNESSES)) != 0
    return _joined(
        _resilient(records, conformances[is_resilient], flags[is_resilient]),
        _of_own_protocols(records, conformances[~is_resilient]),
    )


def conforming_type(records: SwiftRecords, contexts: SwiftContexts, conformance: int) -> str:
    """Return the qualified name of a conformance's type; empty if unknown."""
    flags = records.number(conformance + 12)
    target = records.pointer(conformance + 4)
    if flags is None or not target:
        return ""
    kind = flags >> _TYPE_REFERENCE_SHIFT & _TYPE_REFERENCE
    if kind == _DIRECT_TYPE:
        return contexts.name(target)
    if kind == _OBJC_NAME:
        return contexts.name_of_objc_class(target)
    target, symbol = records.followed(target)
    return contexts.name_of_symbol(symbol) or (contexts.name(target) if target else "")


def protocol_of(records: SwiftRecords, contexts: SwiftContexts, conformance: int) -> str:
    """Return the qualified name of its protocol; the descriptor's symbol if in another image."""
    target, symbol = records.indirectable(conformance)
    return symbol or (contexts.name(target) if target else "")


def _joined(first: SwiftWitnesses, second: SwiftWitnesses) -> SwiftWitnesses:
    return SwiftWitnesses(
        np.concatenate([first.implementations, second.implementations]),
        np.concatenate([first.conformances, second.conformances]),
        np.concatenate([first.requirements, second.requirements]),
        np.concatenate([first.numbers, second.numbers]),
        np.concatenate([first.kinds, second.kinds]),
        np.concatenate([first.is_static, second.is_static]),
    )


def _resilient(
    records: SwiftRecords, conformances: Addresses, flags: npt.NDArray[np.uint32]
) -> SwiftWitnesses:
    """Return witnesses with a pointer to their requirement, for protocols that may get more."""
    bits = flags.astype(np.uint64)
    tables = conformances + np.uint64(_DESCRIPTOR)
    tables += np.uint64(4) * ((flags & np.uint32(_IS_RETROACTIVE)) != 0)
    tables += np.uint64(_CONDITION) * (bits >> np.uint64(_CONDITIONS_SHIFT) & np.uint64(0xFF))
    packs = bits >> np.uint64(_PACKS_SHIFT) & np.uint64(0xFF)
    tables += (np.uint64(_PACK_HEADER) + np.uint64(_PACK) * packs) * (packs != 0)
    counts, known = records.memory.read(tables, "<u4")
    most = records.memory.size // _RESILIENT_WITNESS
    of_table, number = flattened(bounded(np.where(known, counts, 0), most))
    places = tables[of_table] + np.uint64(4)
    places += number.astype(np.uint64) * np.uint64(_RESILIENT_WITNESS)
    code = records.relative(places + np.uint64(4))
    requirements, marks = records.marked(places, 1)
    # Witnesses of associated types are not code.
    symbols = records.pointers.symbols(requirements)
    is_method = np.array([name.endswith(_METHOD_DESCRIPTOR) for name in symbols], np.bool_)
    valid = (code != 0) & (marks != 0) & is_method
    count = int(valid.sum())
    return SwiftWitnesses(
        code[valid],
        conformances[of_table][valid],
        requirements[valid],
        number[valid],
        np.zeros(count, np.uint32),
        np.zeros(count, np.bool_),
    )


def _of_own_protocols(records: SwiftRecords, conformances: Addresses) -> SwiftWitnesses:
    """Return witnesses in tables: the conformance, then one pointer for each requirement."""
    protocols, marks = records.marked(conformances, 1)
    protocols = np.where(marks != 0, records.pointers.addresses(protocols), protocols)
    patterns = records.relative(conformances + np.uint64(8))
    fields, known = records.memory.read(protocols, np.dtype(("<u4", (6,))))
    known &= (protocols != 0) & (patterns != 0)
    known &= (fields[:, 0] & np.uint32(_CONTEXT_KIND)) == ContextKind.PROTOCOL
    most = records.memory.size // _REQUIREMENT
    known &= fields[:, 3] <= most
    # One row for each requirement of each protocol: the table it is in, and its number there.
    of_table, number = flattened(bounded(np.where(known, fields[:, 4], 0), most))
    signatures = fields[:, 3].astype(np.uint64) * np.uint64(_SIGNATURE_REQUIREMENT)
    first = (protocols + np.uint64(_PROTOCOL) + signatures)[of_table]
    index = number.astype(np.uint64)
    flags, readable = records.memory.read(first + index * np.uint64(_REQUIREMENT), "<u4")
    pointer = np.uint64(8 if records.contents.image.header.is_64 else 4)
    code = records.pointers.addresses(patterns[of_table] + (index + np.uint64(1)) * pointer)
    is_async = (flags & np.uint32(_IS_ASYNC)) != 0
    # An async witness is a record that starts with a pointer to the code.
    code[is_async] = records.relative(code[is_async])
    kinds = flags & np.uint32(_REQUIREMENT_KIND)
    is_static = ((flags & np.uint32(_IS_INSTANCE)) == 0) & (kinds != RequirementKind.INIT)
    valid = readable & (code != 0) & np.isin(kinds, np.array(sorted(CODE), np.uint32))
    return SwiftWitnesses(
        code[valid],
        conformances[of_table][valid],
        np.zeros(int(valid.sum()), np.uint64),
        number[valid],
        kinds[valid],
        is_static[valid],
    )
