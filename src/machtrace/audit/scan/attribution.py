"""The library that a function of an image belongs to, with the evidence for it.

An app's executable holds its own code and that of every library that is linked into it. In falling
order, evidence is: the image, if it is a framework or a library; the linker's map; the debug map or
the source path in DWARF; the Swift module in the function's linkage name; the prefix of its
Objective-C class or C function; the functions on both sides, if they agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import cached_property

import numpy as np

from machtrace.audit.libraries import Library
from machtrace.audit.scan.link_map import LinkMap
from machtrace.errors import FormatError, MachtraceError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.stabs import N_OSO
from machtrace.formats.macho.tables.symtab import DebugMapRows, parse_debug_map, parse_symbols
from machtrace.formats.object_file import ObjectFile
from machtrace.frozen import dataclass
from machtrace.images.debug_map import LinkedObject
from machtrace.model.address import ImageOffset
from machtrace.symbols.table import SymbolTable

_NEIGHBOURS = 64
"""Functions on each side that are examined for evidence."""
_METHOD = re.compile(r"[-+]\[([^ (\]]+)")
_SWIFT = re.compile(r"_?\$[sS](\d{1,3})([A-Za-z_]\w*)")
_CHECKOUTS = ("Pods", "checkouts", "Checkouts", "node_modules", ".pub-cache", "hosted", "vendor")
"""Folders whose subfolders are libraries: CocoaPods, Swift packages, Carthage, npm, pub."""
_BUILD = re.compile(r"([^/]+)\.build/Objects-normal/")
_PRODUCT = re.compile(r"/Build/Products/[^/]+/([^/]+)\.o\Z")
_FRAMEWORK = re.compile(r"([^/]+)\.(?:xc)?framework/")
_OPTIMISED = re.compile(
    r"(?:(?:\A|[/.])(?:thin)?lto(?:\.\d+)?\.(?:o|tmp)|\.ltrans\.o|/lto-llvm-\S*\.o)\Z"
)
"""Objects that link-time optimisation makes of all others."""
_VERSION = re.compile(r"-\d[\w.+-]*\Z")


class Evidence(Enum):
    """The kind of evidence for a function's library."""

    IMAGE = "image"
    LINK_MAP = "link map"
    DEBUG_MAP = "debug map"
    DWARF = "DWARF unit"
    SWIFT_MODULE = "Swift module"
    PREFIX = "name prefix"
    NEIGHBOURS = "neighbours"
    NONE = "none"
    """The function may belong to the app or to any library that is linked into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The library of a function."""

    library: str
    """Its name; that of the image if there is no evidence."""
    evidence: Evidence
    detail: str
    """The path, module, class or functions that the evidence is."""


def library_of_path(path: str, member: str | None = None) -> str | None:
    """Return the library that the path of an object file or a source file names, if it does."""
    if (built := _BUILD.findall(path)) or (built := _PRODUCT.findall(path)):
        return str(built[-1])
    folders = path.split("/")
    for index, folder in enumerate(folders[:-1]):
        if folder in _CHECKOUTS:
            # An owner or a registry may come between: node_modules/@owner/library, pub.dev/library.
            names = (each for each in folders[index + 1 : -1] if not _is_group(each))
            if (name := next(names, None)) is not None:
                return _VERSION.sub("", name)
    if frameworks := _FRAMEWORK.findall(path):
        return str(frameworks[-1])
    if member is not None:
        name = folders[-1]
        return name.removesuffix(".a").removeprefix("lib") or None
    return None


def _is_group(folder: str) -> bool:
    return folder in _CHECKOUTS or folder.startswith("@") or folder.endswith((".dev", ".org"))


def swift_module(linkage_name: str) -> str | None:
    """Return the module of a Swift function, by its mangled name; None if it has none."""
    match = _SWIFT.match(linkage_name)
    if match is None or match[1].startswith("0"):
        return None
    size = int(match[1])
    return match[2][:size] if len(match[2]) >= size else None


class Attributor:
    """Attributes the functions of one image."""

    def __init__(
        self,
        contents: ObjectFile,
        table: SymbolTable,
        *,
        name: str,
        is_library: bool,
        libraries: tuple[Library, ...] = (),
        link_map: LinkMap | None = None,
        source_of: Callable[[ImageOffset], str | None] = lambda _: None,
    ) -> None:
        """Examine nothing yet.

        Args:
            contents: the image.
            table: its functions.
            name: the name of the library that the image is.
            is_library: whether it is a framework or a dynamic library, rather than an executable.
            libraries: whose classes, functions and modules are whose.
            link_map: the linker's map of the image.
            source_of: returns the path of the source file of a function, by its offset.
        """
        self._contents = contents
        self._table = table
        self._name = name
        self._is_library = is_library
        self._libraries = libraries
        self._source_of = source_of
        self._known: dict[int, Attribution | None] = {}
        self.problems: list[MachtraceError] = []
        self._link_map = self._checked(link_map)

    def _checked(self, link_map: LinkMap | None) -> LinkMap | None:
        """Return the map if it is of this image."""
        if link_map is None or not self._is_named(link_map.image):
            return None
        image = self._contents.image
        if isinstance(self._contents, MachOFileContents):
            sections = self._contents.image.code_sections
            low = min((section.address for section in sections), default=0)
            high = max((section.address + section.size for section in sections), default=0)
        else:
            low, high = 0, (1 << 64) - 1  # the map of an ELF has nothing but code
        starts = self._table.starts.astype(np.uint64) + np.uint64(image.header_svma)
        if link_map.agrees_with(starts, low, high):
            return link_map
        self.problems.append(
            FormatError(
                f"the link map is of another build of {self._name}",
                source=link_map.source,
                offset=0,
                remedy="pass the map that was written when this binary was linked",
            )
        )
        return None

    def _is_named(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        return not name or name == self._contents.source.rpartition("/")[2]

    def library(self, function: ImageOffset) -> Attribution:
        """Return the library of the function at an offset."""
        if self._is_library and self._link_map is None:
            detail = self._contents.source
            return Attribution(library=self._name, evidence=Evidence.IMAGE, detail=detail)
        number = int(self._table.ids(np.array([function], np.uint64))[0])
        own = None if number < 0 else self._own(number)
        if own is not None:
            return own
        if number >= 0 and (between := self._between(number)) is not None:
            return between
        return Attribution(library=self._name, evidence=Evidence.NONE, detail="")

    def _own(self, number: int) -> Attribution | None:
        """Return the library of a function by evidence of its own."""
        if number not in self._known:
            offset = ImageOffset(int(self._table.starts[number]))
            self._known[number] = self._by_files(offset) or self._by_name(number)
        return self._known[number]

    def _by_files(self, offset: ImageOffset) -> Attribution | None:
        address = offset + self._contents.image.header_svma
        if self._link_map is not None:
            spelt = self._link_map.object_at(address)
            is_stated = spelt is not None and spelt != "linker synthesized"
            if spelt is not None and is_stated and not _OPTIMISED.search(spelt):
                return self._by_object(spelt, Evidence.LINK_MAP)
        spelt = self._linked_object(address)
        if spelt is not None:
            return self._by_object(spelt, Evidence.DEBUG_MAP)
        source = self._source_of(offset)
        if source:
            library = library_of_path(source) or self._name
            return Attribution(library=library, evidence=Evidence.DWARF, detail=source)
        return None

    def _by_object(self, spelt: str, evidence: Evidence) -> Attribution:
        """Return the library of an object file; one of no library is linked for the image alone."""
        linked = LinkedObject.parse(spelt, 0)
        library = library_of_path(linked.path, linked.member) or self._name
        return Attribution(library=library, evidence=evidence, detail=spelt)

    @property
    def uses_link_map(self) -> bool:
        """Whether the linker's map is of this image."""
        return self._link_map is not None

    @cached_property
    def _debug_map(self) -> tuple[DebugMapRows, list[str]] | None:
        if not isinstance(self._contents, MachOFileContents):
            return None
        try:
            symbols = parse_symbols(self._contents)
            rows = parse_debug_map(symbols)
            objects = np.flatnonzero(symbols.n_type == N_OSO)
            names = symbols.names(objects.tolist())
        except MachtraceError as error:
            self.problems.append(error)
            return None
        return (rows, names) if len(rows.starts) else None

    @cached_property
    def _by_start(self) -> dict[int, int]:
        if self._debug_map is None:
            return {}
        rows = self._debug_map[0]
        return dict(zip(rows.starts.tolist(), rows.object_ids.tolist(), strict=True))

    def _linked_object(self, address: int) -> str | None:
        if self._debug_map is None:
            return None
        number = self._by_start.get(address)
        return None if number is None else self._debug_map[1][number]

    def _by_name(self, number: int) -> Attribution | None:
        linkage = self._table.linkage_name(number)
        module = swift_module(linkage)
        if module is not None:
            named = next((each.name for each in self._libraries if module in each.modules), module)
            return Attribution(library=named, evidence=Evidence.SWIFT_MODULE, detail=module)
        name = self._table.name(number) if self._libraries else ""
        method = _METHOD.match(name)
        for library in self._libraries:
            if method is not None:
                prefix = library.class_prefix(method[1])
            else:
                prefix = next(
                    (function for function in library.functions if name.startswith(function)), None
                )
            if prefix is not None:
                detail = method[1] if method is not None else name
                return Attribution(library=library.name, evidence=Evidence.PREFIX, detail=detail)
        return None

    def _between(self, number: int) -> Attribution | None:
        """Return the library of the nearest known functions on both sides, if it is the same."""
        sides: list[tuple[Attribution, int]] = []
        for direction in (-1, 1):
            last = min(max(number + direction * _NEIGHBOURS, -1), len(self._table))
            for other in range(number + direction, last, direction):
                if (known := self._own(other)) is not None:
                    sides.append((known, other))
                    break
        if len(sides) < 2 or sides[0][0].library != sides[1][0].library:  # noqa: PLR2004
            return None
        names = " and ".join(self._table.name(other) or "an unnamed function" for _, other in sides)
        return Attribution(
            library=sides[0][0].library, evidence=Evidence.NEIGHBOURS, detail=f"between {names}"
        )
