"""Names of Swift's functions from the metadata that stripping leaves.

Types keep their names, methods do not: of these it is told which of their type's they are, as in
``Module.Class.{getter 3}``. No name of Swift's has braces there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from machtrace.macho.contents import MachOContents
from machtrace.macho.pointers import Pointers
from machtrace.macho.swift_conformances import (
    RequirementKind,
    SwiftWitness,
    parse_swift_witnesses,
)
from machtrace.macho.swift_contexts import SwiftContexts
from machtrace.macho.swift_records import SwiftRecords
from machtrace.macho.swift_types import (
    MethodKind,
    SwiftMethod,
    class_methods,
    parse_swift_types,
)
from machtrace.model.symbol import Certainty
from machtrace.symbolicate.demangle.swift import demangle_swift
from machtrace.symbolicate.named_ranges import NamedRanges

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
    """The functions that the metadata of an image's Swift types leads to.

    Metadata accessors are called as ``swift-demangle`` calls them. Witnesses of protocols of other
    images are called after what the protocol requires. Methods in the vtable of a class, and
    witnesses of the image's own protocols, are counted from 0.

    Args:
        contents: the image, in a file or in memory.
        pointers: where its pointers lead.
    """
    records = SwiftRecords(contents, pointers)
    contexts = SwiftContexts(records, _demangled_type)
    types = parse_swift_types(records)
    starts: list[int] = []
    names: list[Callable[[], str]] = []
    for descriptor, accessor in zip(
        types.descriptors.tolist(), types.accessors.tolist(), strict=True
    ):
        if accessor and contexts.name(descriptor):
            starts.append(accessor)
            names.append(partial(_accessor_name, contexts, descriptor))
    for method in class_methods(records, types):
        if contexts.name(method.descriptor):
            starts.append(method.implementation)
            names.append(partial(_method_name, contexts, method))
    for witness in parse_swift_witnesses(records, contexts):
        starts.append(witness.implementation)
        names.append(partial(_witness_name, witness))
    return NamedRanges(
        starts=np.array(starts, np.uint64) - np.uint64(contents.image.header_svma),
        sizes=np.zeros(len(starts), np.uint64),
        preferred=np.ones(len(starts), np.bool_),
        linkage_name=lambda row: names[row](),
        certainty=Certainty.SWIFT,
    )


def _accessor_name(contexts: SwiftContexts, descriptor: int) -> str:
    return f"type metadata accessor for {contexts.name(descriptor)}"


def _method_name(contexts: SwiftContexts, method: SwiftMethod) -> str:
    kind = ("static " if method.is_static else "") + _KINDS[method.kind]
    return f"{contexts.name(method.descriptor)}.{{{kind} {method.number}}}"


def _witness_name(witness: SwiftWitness) -> str:
    if witness.kind is None:
        protocol = _after(_PROTOCOL_DESCRIPTOR, witness.protocol)
        requirement = _after(_METHOD_DESCRIPTOR, witness.requirement)
    else:
        protocol = witness.protocol
        kind = ("static " if witness.is_static else "") + _REQUIREMENTS[witness.kind]
        requirement = f"{protocol}.{{{kind} {witness.number}}}"
    return f"protocol witness for {requirement} in conformance {witness.type_name} : {protocol}"


def _after(start: str, symbol: str) -> str:
    """What a descriptor's symbol says that it describes; the symbol where it says nothing."""
    text = demangle_swift(symbol.removeprefix("_"), simplified=False)
    return text[len(start) :] if text and text.startswith(start) else symbol


def _demangled_type(mangled: str) -> str:
    return demangle_swift(f"$s{mangled}D", simplified=False) or ""
