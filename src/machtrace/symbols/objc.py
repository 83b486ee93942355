"""Names of Objective-C methods, from the metadata for the runtime: stripping leaves it."""

from __future__ import annotations

import re

import numpy as np

from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers
from machtrace.formats.macho.metadata.objc import ObjcMethods, parse_objc_methods
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.symbol import Certainty
from machtrace.symbols.ranges import NamedRanges

_ARM = frozenset({Arch.ARM, Arch.ARMV7, Arch.ARMV7S, Arch.ARMV7K})
_THUMB = np.uint64(1)
_SWIFT_CLASS = "_Tt"


def objc_names(
    contents: MachOContents, pointers: Pointers, *, selector_base: Svma | None = None
) -> NamedRanges:
    """Name the methods of an image's classes and categories, as ``-[Class(Category) method]``.

    Swift's classes are called ``Module.Class``, as the runtime names them to programs.

    Args:
        contents: the image, in a file or in memory.
        pointers: its pointers.
        selector_base: the address from which selectors in the method lists of a shared cache count.
    """
    methods = parse_objc_methods(contents, pointers, selector_base=selector_base)
    starts = methods.rows.implementations
    if contents.image.header.arch in _ARM:
        starts = starts & ~_THUMB
    return NamedRanges.unranked(
        starts - np.uint64(contents.image.header_svma),
        lambda row: _method_name(methods, row),
        Certainty.OBJC,
    )


def objc_stub_names(contents: MachOContents, pointers: Pointers) -> NamedRanges:
    """Name the stubs of ``__objc_stubs``, as linkers do: ``_objc_msgSend$selector``."""
    from machtrace.formats.macho.metadata.objc_stubs import parse_objc_stubs

    stubs = parse_objc_stubs(contents, pointers)
    return NamedRanges.unranked(
        stubs.addresses - np.uint64(contents.image.header_svma),
        lambda row: f"_objc_msgSend${stubs.selector(row)}",
        Certainty.STUB,
        sizes=stubs.sizes,
        leading_underscore=True,
    )


def _method_name(methods: ObjcMethods, row: int) -> str:
    owner = methods.owner(row)
    category = "" if owner.category is None else f"({owner.category})"
    sign = "+" if methods.is_class_method[row] else "-"
    return f"{sign}[{class_name(owner.class_name)}{category} {methods.selector(row)}]"


def class_name(name: str) -> str:
    """Return a class's name for users: ``_TtC4Game6Player`` is ``Game.Player``.

    Source: Swift, ``docs/ABI/OldMangling.rst``: of the names of classes, those that consist of
    identifiers. Others are returned unchanged.
    """
    if not name.startswith(_SWIFT_CLASS):
        return name
    kinds = re.match(r"_Tt(C+)(?=\d|s\d)", name)
    if kinds is None:
        return name
    parts, rest = [], name[kinds.end() :]
    if rest.startswith("s"):
        parts, rest = ["Swift"], rest[1:]
    while rest:
        number = re.match(r"[1-9]\d{0,3}", rest)
        if number is None:
            return name
        end = number.end() + int(number[0])
        if end > len(rest):
            return name
        parts.append(rest[number.end() : end])
        rest = rest[end:]
    return ".".join(parts) if len(parts) == len(kinds[1]) + 1 else name
