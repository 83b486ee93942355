"""Names from what a Mach-O keeps for its runtimes, where stripping took those of the linker.

Each source is a module of its own, which is loaded when an image has something for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from machtrace.errors import MachtraceError
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers, parse_pointers
from machtrace.formats.macho.tables.symtab import SymbolRows
from machtrace.symbols.macho.code_sections import is_objc_stubs
from machtrace.symbols.ranges import NamedRanges, Offsets

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


class ImagePointers:
    """The pointers of one image, read when they are first asked for."""

    def __init__(self, contents: MachOContents) -> None:
        self._contents = contents

    def __call__(self) -> Pointers:
        """The pointers."""
        return self._pointers

    @cached_property
    def _pointers(self) -> Pointers:
        return parse_pointers(self._contents)

    @property
    def problem(self) -> MachtraceError | None:
        """What is wrong with them, as far as they were needed."""
        pointers: Pointers | None = vars(self).get("_pointers")
        return None if pointers is None else pointers.problem


class MetadataNames:
    """The sources of one image, the surest first. They share its pointers."""

    def __init__(
        self,
        contents: MachOContents,
        pointers: Callable[[], Pointers],
        symbols: SymbolRows | None,
        starts: Offsets,
        unnamed: Offsets,
    ) -> None:
        """Read nothing yet.

        Args:
            contents: the image.
            pointers: gives its pointers.
            symbols: its symbol table, where that could be read.
            starts: where its functions begin, sorted.
            unnamed: those of them that no symbol names, sorted.
        """
        self._contents = contents
        self._pointers = pointers
        self._symbols = symbols
        self._starts = starts
        self._unnamed = unnamed

    @cached_property
    def _sections(self) -> frozenset[str]:
        return frozenset(section.name for section in self._contents.image.sections if section.size)

    def functions(self) -> Iterator[Source]:
        """Those that name functions."""
        if self._sections & _OBJC:
            yield self._objc
        if self._sections & _SWIFT:
            yield self._swift
        libraries = self._contents.image.load_dylibs
        few = len(self._unnamed) < _FEW * len(self._starts)
        if not few and any(_CPLUSPLUS_LIBRARY in library.name for library in libraries):
            yield self._rtti
        yield self._go

    def stubs(self) -> Iterator[Source]:
        """Those that name stubs by what they do."""
        if any(map(is_objc_stubs, self._contents.image.sections)):
            yield self._objc_stubs

    def _objc(self) -> NamedRanges:
        from machtrace.symbols.objc import objc_names

        return objc_names(self._contents, self._pointers())

    def _swift(self) -> NamedRanges:
        from machtrace.symbols.swift import swift_names

        return swift_names(self._contents, self._pointers())

    def _rtti(self) -> NamedRanges:
        from machtrace.symbols.rtti import rtti_names

        return rtti_names(
            self._contents, self._pointers, self._starts, self._symbols, self._unnamed
        )

    def _go(self) -> NamedRanges:
        from machtrace.symbols.go import go_names

        return go_names(self._contents, self._pointers)

    def _objc_stubs(self) -> NamedRanges:
        from machtrace.symbols.objc import objc_stub_names

        return objc_stub_names(self._contents, self._pointers())
