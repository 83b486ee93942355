"""The table of a Mach-O image: names of all sources, the best first, bounded by function starts.

Functions that stripping left without a linker's name have names from the metadata for runtimes.
Each source is a module of its own, which is loaded when an image has something for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from machtrace.errors import MachtraceError
from machtrace.formats.dwarf.cfi_records import CallFrameSection
from machtrace.formats.dwarf.frame_index import build_index
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.fixups.pointers import Pointers, parse_pointers
from machtrace.formats.macho.tables.function_starts import FunctionStarts, parse_function_starts
from machtrace.formats.macho.tables.symtab import SymbolRows, parse_symbols
from machtrace.formats.macho.tables.unwind_info import (
    HAS_LSDA,
    MODE_MASK,
    MODE_SHIFT,
    Arm64Mode,
    UnwindInfo,
    X86Mode,
)
from machtrace.frozen import dataclass
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.symbol import Certainty
from machtrace.symbols.macho.code_sections import (
    Ranges,
    function_sections,
    is_objc_stubs,
    named_sections,
)
from machtrace.symbols.macho.linked_names import (
    exported_functions,
    stub_names,
    symtab_functions,
    symtab_stubs,
)
from machtrace.symbols.ranges import NamedRanges, Offsets
from machtrace.symbols.table import CodeBounds, SymbolTable

# --- The starts of a Mach-O's functions, for bounding names ---
#
# Compilers describe every function in unwind tables, those without a frame, too; assemblers only
# those whose author did. So where linkers leave functions out of LC_FUNCTION_STARTS, these tables
# have them, or show that nothing is known there.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownFunctions:
    """The known starts of functions, and their source."""

    offsets: Offsets
    """Sorted."""
    are_listed: bool
    """Whether LC_FUNCTION_STARTS is among the sources. It has nearly all: of a file of assembly
    code the first, and not the functions that run when an image is initialised."""

    def merged(self, others: Offsets) -> KnownFunctions:
        """Return these and more of them."""
        both = np.unique(np.concatenate([self.offsets, others]))
        return KnownFunctions(offsets=both, are_listed=self.are_listed)

    def hold(self, starts: Offsets) -> npt.NDArray[np.bool_]:
        """Return which of ``starts`` are among them."""
        if not len(self.offsets):
            return np.zeros(len(starts), np.bool_)
        at = np.minimum(self.offsets.searchsorted(starts), len(self.offsets) - 1)
        found: npt.NDArray[np.bool_] = self.offsets[at] == starts
        return found


def listed_functions(
    contents: MachOContents, sections: Ranges, problems: list[MachtraceError]
) -> KnownFunctions:
    """Return the functions in LC_FUNCTION_STARTS; none if none of these is in code.

    Some linkers write a list without functions.

    Args:
        contents: the image.
        sections: those that hold functions.
        problems: takes the error of a table that could not be read.
    """
    try:
        listed = parse_function_starts(contents)
    except MachtraceError as error:
        problems.append(error)
        listed = FunctionStarts()
    if listed.holds_code(sections):
        return KnownFunctions(offsets=np.frombuffer(listed.offsets, np.uint64), are_listed=True)
    return KnownFunctions(offsets=np.empty(0, np.uint64), are_listed=False)


def read_or_empty(
    source: Callable[[MachOContents], Offsets],
    contents: MachOContents,
    problems: list[MachtraceError],
) -> Offsets:
    """Return a source's result; if it is unreadable, nothing, and add its error."""
    try:
        return source(contents)
    except MachtraceError as error:
        problems.append(error)
        return np.empty(0, np.uint64)


Mask = npt.NDArray[np.bool_]

_MOD_INIT_FUNC_POINTERS, _MOD_TERM_FUNC_POINTERS, _INIT_FUNC_OFFSETS = 0x9, 0xA, 0x16
"""``S_…`` in ``mach-o/loader.h``."""
_THUMB_BIT = np.uint64(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DescribedFunctions:
    """Rows of ``__unwind_info`` and of ``__eh_frame``, each sorted by start."""

    entries: Offsets
    """The starts of compact encodings; the last one is the end of the one before it."""
    encodings: npt.NDArray[np.uint32]
    """0 if nothing is known, as after the last."""
    frames: Offsets
    """The starts of FDEs."""
    arch: Arch | None

    @property
    def starts(self) -> Offsets:
        """All starts and ends of functions."""
        return np.union1d(self.entries, self.frames)

    def describe(self, starts: Offsets) -> Mask:
        """Return which functions have an FDE, or an encoding that is valid at their start."""
        row = self.entries.searchsorted(starts, "right").astype(np.int64) - 1
        encoding = np.append(self.encodings, np.uint32(0))[row]
        found: Mask = (encoding != 0) | np.isin(starts, self.frames)
        return found

    def bound(self, starts: Offsets) -> Mask:
        """Return which functions are described by an encoding of their own.

        Linkers merge neighbours with equal encodings into one entry, unless the encoding refers to
        the function's start: data for exceptions, an FDE, or an instruction to read.
        """
        if not len(self.entries):
            return np.zeros(len(starts), np.bool_)
        at = np.minimum(self.entries.searchsorted(starts), len(self.entries) - 1)
        encoding = self.encodings[at]
        mode = (encoding & np.uint32(MODE_MASK)) >> np.uint32(MODE_SHIFT)
        alone = np.isin(mode, _own_modes(self.arch)) | (encoding & np.uint32(HAS_LSDA) != 0)
        found: Mask = (self.entries[at] == starts) & (encoding != 0) & alone
        return found


def described_functions(
    contents: MachOContents, problems: list[MachtraceError]
) -> DescribedFunctions:
    """Read an image's unwind tables; ``problems`` takes the errors of malformed ones."""
    entries, encodings = np.empty(0, np.uint64), np.empty(0, np.uint32)
    try:
        entries, encodings = _compact(contents)
    except MachtraceError as error:
        problems.append(error)
    return DescribedFunctions(
        entries=entries,
        encodings=encodings,
        frames=read_or_empty(_call_frames, contents, problems),
        arch=contents.image.header.arch,
    )


def initialisers(
    contents: MachOContents, pointers: Callable[[], Pointers], problems: list[MachtraceError]
) -> Offsets:
    """Return the image's initialisers and terminators: linkers do not list C++'s.

    Args:
        contents: the image.
        pointers: reads its pointers.
        problems: takes the errors of lists that could not be read.
    """
    return read_or_empty(lambda some: _initialisers(some, pointers), contents, problems)


def _initialisers(contents: MachOContents, pointers: Callable[[], Pointers]) -> Offsets:
    image, columns = contents.image, [np.empty(0, np.uint64)]
    base, width = image.header_svma, 8 if image.header.is_64 else 4
    for section in image.sections:
        if section.type == _INIT_FUNC_OFFSETS:
            data = contents.read_svma(section.address, section.size & ~3)
            order = "<" if image.header.little_endian else ">"
            columns.append(np.frombuffer(data, f"{order}u4").astype(np.uint64))
        elif section.type in (_MOD_INIT_FUNC_POINTERS, _MOD_TERM_FUNC_POINTERS):
            # Its size is only good once the section was read.
            size = len(contents.read_svma(section.address, section.size)) // width * width
            places = np.arange(size // width, dtype=np.uint64) * np.uint64(width)
            targets = pointers().targets(places + np.uint64(section.address))
            columns.append(targets[targets >= np.uint64(base)] - np.uint64(base))
    starts = np.concatenate(columns)
    arch = image.header.arch
    return starts & ~_THUMB_BIT if arch is not None and arch.is_arm else starts


def _own_modes(arch: Arch | None) -> list[int]:
    if arch is not None and arch.is_arm64:
        return [Arm64Mode.DWARF]
    return [X86Mode.STACK_INDIRECT, X86Mode.DWARF]  # DWARF is 4 on armv7k, too


def _compact(contents: MachOContents) -> tuple[Offsets, npt.NDArray[np.uint32]]:
    section = contents.image.section("__TEXT", "__unwind_info")
    if section is None or not section.size:
        return np.empty(0, np.uint64), np.empty(0, np.uint32)
    data = contents.read_svma(section.address, section.size)
    return UnwindInfo(data, f"{contents.source}: __unwind_info").columns()


def _call_frames(contents: MachOContents) -> Offsets:
    section, arch = contents.image.section("__TEXT", "__eh_frame"), contents.image.header.arch
    if section is None or not section.size or arch is None:
        return np.empty(0, np.uint64)
    address = section.address
    records = CallFrameSection(
        read=lambda offset, size: contents.read_svma(Svma(address + offset), size),
        size=section.size,
        arch=arch,
        source=f"{contents.source}: __eh_frame",
        address=address,
    )
    starts, base = build_index(records).starts, np.uint64(contents.image.header_svma)
    offsets: Offsets = starts[starts >= base] - base
    return offsets


# --- Names of all sources, the best first, bounded by function starts ---

Source = Callable[[], NamedRanges]
"""Returns names, or raises a MachtraceError."""

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
_GO = "__gopclntab"

_CPLUSPLUS_LIBRARY = "c++"
"""Part of the names of the libraries that have ``dynamic_cast``: libc++, libc++abi, libstdc++."""
_FEW = 0.01
"""The share of unnamed functions below which vtables are skipped: of an image with all its symbols
the linker's own are left, and all its pointers would be read for them."""


class ImagePointers:
    """The pointers of one image, read on demand."""

    def __init__(self, contents: MachOContents) -> None:
        self._contents = contents

    def __call__(self) -> Pointers:
        """Return the pointers."""
        return self._pointers

    @cached_property
    def _pointers(self) -> Pointers:
        return parse_pointers(self._contents)

    @property
    def problem(self) -> MachtraceError | None:
        """The error of malformed pointers, as far as they were needed."""
        pointers: Pointers | None = vars(self).get("_pointers")
        return None if pointers is None else pointers.problem


class MetadataNames:
    """The sources of one image, the most certain first. They share its pointers."""

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
            pointers: reads its pointers.
            symbols: its symbol table, if that could be read.
            starts: the starts of its functions, sorted.
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
        """Return the sources that name functions."""
        if self._sections & _OBJC:
            yield self._objc
        if self._sections & _SWIFT:
            yield self._swift
        libraries = self._contents.image.load_dylibs
        few = len(self._unnamed) < _FEW * len(self._starts)
        if not few and any(_CPLUSPLUS_LIBRARY in library.name for library in libraries):
            yield self._rtti
        if _GO in self._sections:
            yield self._go

    def stubs(self) -> Iterator[Source]:
        """Return the sources that name stubs by their targets."""
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


_LAST = np.uint64(2**64 - 1)


def macho_symbol_table(
    contents: MachOContents, others: Sequence[MachOContents] = ()
) -> SymbolTable:
    """Build the table of a Mach-O image, in a file or in memory.

    Its names are those of the symbol table and of the exports trie; those of the metadata of
    runtimes for functions that these leave unnamed; and of stubs, their targets. The error of a
    part that cannot be read is among the table's ``problems``.

    Args:
        contents: the image.
        others: files of the same image that may have more symbols: its dSYM, an unstripped twin.

    Raises:
        MachOError: a table is malformed, or points outside the image, and no other gave a name.
        MemoryReadError: the same of a table in memory that cannot be read.
    """
    return _Assembly(contents).table(others)


class _Assembly:
    """The parts of one table, and the errors of others."""

    def __init__(self, contents: MachOContents) -> None:
        self._contents = contents
        self._image = contents.image
        self._pointers = ImagePointers(contents)
        self._problems: list[MachtraceError] = []
        self._found: list[NamedRanges] = []

    def table(self, others: Sequence[MachOContents]) -> SymbolTable:
        symbols = self._symbols(self._contents)
        linked = self._linked(symbols, others)
        # With local symbols the linker's names are all there: exports alone are all preferred.
        has_locals = not all(bool(one.preferred.all()) for one in linked)
        starts, described = self._functions(has_locals=has_locals)
        if has_locals or described is None:
            self._found += [replace(one, certainty=Certainty.EXACT) for one in linked]
        else:
            self._found += _by_certainty(linked, starts, described)
        unnamed = self._unnamed(starts)
        metadata = MetadataNames(self._contents, self._pointers, symbols, starts.offsets, unnamed)
        if len(unnamed) or not starts.are_listed:
            for source in metadata.functions():
                self._add(partial(_of_whole_functions, source, starts, described))
        self._stubs(symbols, metadata)
        if self._problems and not any(map(len, self._found)):
            raise self._problems[0]
        edges = np.array(named_sections(self._image), np.uint64).reshape(-1, 2)
        bounds = CodeBounds(
            section_starts=edges[:, 0],
            section_ends=edges[:, 1],
            function_starts=starts.offsets,
            starts_are_listed=starts.are_listed,
        )
        if self._pointers.problem is not None:
            self._problems.append(self._pointers.problem)
        return SymbolTable(tuple(self._found), bounds, tuple(self._problems))

    def _linked(
        self, symbols: SymbolRows | None, others: Sequence[MachOContents]
    ) -> list[NamedRanges]:
        """Return the names that the linker wrote."""
        sources: list[NamedRanges | None] = [None]
        if symbols is not None:
            sources = [self._read(lambda: symtab_functions(symbols, self._image))]
        sources.append(self._read(partial(exported_functions, self._contents, sources[0])))
        sources += [self._read(partial(_twin, other)) for other in others]
        return [source for source in sources if source is not None]

    def _functions(self, *, has_locals: bool) -> tuple[KnownFunctions, DescribedFunctions | None]:
        """Return function starts, with those of unwind tables if the linker's list is too short.

        Between functions that all have names it does not matter what the list leaves out.
        """
        sections, problems = function_sections(self._image), self._problems
        listed = listed_functions(self._contents, sections, problems)
        if has_locals and listed.are_listed:
            return listed, None
        described = described_functions(self._contents, problems)
        starting = initialisers(self._contents, self._pointers, problems)
        starts = listed.merged(described.starts).merged(starting)
        return starts, described

    def _stubs(self, symbols: SymbolRows | None, metadata: MetadataNames) -> None:
        """Return the calls of other images."""
        named = None
        if symbols is not None:
            self._add(lambda: stub_names(self._contents, symbols))
            named = self._add(lambda: symtab_stubs(symbols, self._image))
        if named is None or not len(named):
            for source in metadata.stubs():
                self._add(source)

    def _add(self, source: Callable[[], NamedRanges]) -> NamedRanges | None:
        found = self._read(source)
        if found is not None:
            self._found.append(found)
        return found

    def _read(self, source: Callable[[], NamedRanges]) -> NamedRanges | None:
        try:
            return source()
        except MachtraceError as error:
            self._problems.append(error)
            return None

    def _symbols(self, contents: MachOContents) -> SymbolRows | None:
        try:
            return parse_symbols(contents)
        except MachtraceError as error:
            self._problems.append(error)
            return None

    def _unnamed(self, starts: KnownFunctions) -> Offsets:
        """Return the functions without a name so far."""
        named = np.concatenate([np.full(1, _LAST), *(source.starts for source in self._found)])
        named.sort()
        functions = starts.offsets
        unnamed: Offsets = functions[named[named.searchsorted(functions)] != functions]
        return unnamed


def _twin(other: MachOContents) -> NamedRanges:
    """Return the functions of a file of the same image."""
    return symtab_functions(parse_symbols(other), other.image)


def _by_certainty(
    linked: list[NamedRanges], starts: KnownFunctions, described: DescribedFunctions
) -> Iterator[NamedRanges]:
    """Return the names of an image without local symbols: exact if tables bound the function."""
    for source in linked:
        exact = starts.hold(source.starts) & described.describe(source.starts)
        if not starts.are_listed:
            exact[:] = False
        for certainty, rows in ((Certainty.EXACT, exact), (Certainty.EXPORT, ~exact)):
            if rows.any():
                yield replace(source.only(np.flatnonzero(rows)), certainty=certainty)


def _of_whole_functions(
    source: Callable[[], NamedRanges], starts: KnownFunctions, described: DescribedFunctions | None
) -> NamedRanges:
    """Return the metadata's names for functions whose end is known; it knows no other addresses."""
    names = source()
    if starts.are_listed:
        return names.only(np.flatnonzero(starts.hold(names.starts)))
    whole = names.sizes > 0
    if described is not None:
        whole |= described.bound(names.starts)
    return names.only(np.flatnonzero(whole))
