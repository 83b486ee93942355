"""Names from what a Mach-O keeps for its runtimes, where stripping took those of the linker.

Each source is a module of its own, which is loaded when an image has something for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from machtrace.macho.contents import MachOContents
from machtrace.macho.pointers import Pointers, parse_pointers
from machtrace.symbolicate.macho_code_sections import function_sections, is_objc_stubs
from machtrace.symbolicate.macho_function_starts import function_starts
from machtrace.symbolicate.named_ranges import NamedRanges

Source = Callable[[], NamedRanges]
"""Yields names, or raises a MachtraceError."""

_OBJC = frozenset(
    {
        "__objc_classlist",
        "__objc_nlclslist",
        "__objc_catlist",
        "__objc_catlist2",
        "__objc_nlcatlist",
    }
)
_SWIFT = frozenset({"__swift5_types", "__swift5_types2", "__swift5_proto"})

_CPLUSPLUS_LIBRARY = "c++"
"""In the names of the libraries that have ``dynamic_cast``: libc++, libc++abi, libstdc++."""
_FEW = 0.01
"""The share of functions without a name for which vtables are not looked at: of an image with all
its symbols the linker's own are left, and all its pointers would be read for them."""


class MetadataNames:
    """The sources of one image, the surest first. They share its pointers."""

    def __init__(self, contents: MachOContents) -> None:
        self._contents = contents

    @cached_property
    def _pointers(self) -> Pointers:
        return parse_pointers(self._contents)

    @cached_property
    def _sections(self) -> frozenset[str]:
        return frozenset(section.name for section in self._contents.image.sections if section.size)

    def functions(self) -> Iterator[Source]:
        """Those that name functions."""
        if self._sections & _OBJC:
            yield self._objc
        if self._sections & _SWIFT:
            yield self._swift
        if any(_CPLUSPLUS_LIBRARY in library.name for library in self._contents.image.load_dylibs):
            yield self._rtti
        yield self._go

    def stubs(self) -> Iterator[Source]:
        """Those that name stubs by what they do."""
        if any(map(is_objc_stubs, self._contents.image.sections)):
            yield self._objc_stubs

    def _objc(self) -> NamedRanges:
        from machtrace.symbolicate.objc_names import objc_names

        return objc_names(self._contents, self._pointers)

    def _swift(self) -> NamedRanges:
        from machtrace.symbolicate.swift_names import swift_names

        return swift_names(self._contents, self._pointers)

    def _rtti(self) -> NamedRanges:
        import numpy as np

        from machtrace.macho.symtab import parse_symbols
        from machtrace.symbolicate.rtti_names import no_rtti_names, rtti_names

        image = self._contents.image
        starts, _ = function_starts(self._contents, function_sections(image), [])
        symbols = parse_symbols(self._contents)
        named = symbols.n_value[np.flatnonzero(symbols.is_code)] - np.uint64(image.header_svma)
        named.sort()
        at = named.searchsorted(starts)
        unnamed = starts[np.append(named, np.uint64(0))[at] != starts]
        if len(unnamed) < _FEW * len(starts):
            return no_rtti_names()
        return rtti_names(self._contents, lambda: self._pointers, starts, symbols, unnamed)

    def _go(self) -> NamedRanges:
        from machtrace.symbolicate.go_names import go_names

        return go_names(self._contents, lambda: self._pointers)

    def _objc_stubs(self) -> NamedRanges:
        from machtrace.symbolicate.objc_names import objc_stub_names

        return objc_stub_names(self._contents, self._pointers)
