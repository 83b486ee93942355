"""The debug information of images: source lines and inlined calls, from indices."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from machtrace.errors import MachtraceError
from machtrace.images.debug_file import DebugFile
from machtrace.images.debug_map import DebugMap
from machtrace.images.resolver import ImageResolver
from machtrace.model.address import ImageOffset
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import Certainty, FrameStatus, InlineFrame, Symbol

if TYPE_CHECKING:  # numpy and the builder of indices are imported if debug information exists
    from machtrace.lines.index import DebugIndex
    from machtrace.lines.index_cache import IndexCache
    from machtrace.lines.parts_index import PartsIndex

AnyDebugIndex: TypeAlias = "DebugIndex | PartsIndex"


class DebugInformation:
    """Source lines and inlined calls of any number of images; each is opened once."""

    def __init__(self, files: ImageResolver, cache: IndexCache | None = None) -> None:
        """Open nothing yet.

        Args:
            files: finds debug files.
            cache: has indices; None is the one in the user's folder.
        """
        self._files = files
        self._cache = cache
        self._indices: dict[Hashable, AnyDebugIndex | FrameStatus] = {}
        self._failures: list[MachtraceError] = []

    @property
    def problems(self) -> list[MachtraceError]:
        """Why lines are missing so far: files that were malformed, or changed since linking."""
        indices = (one for one in self._indices.values() if not isinstance(one, FrameStatus))
        return [*self._failures, *(problem for index in indices for problem in index.problems)]

    def index(self, image: BinaryImage) -> AnyDebugIndex | FrameStatus:
        """Return the image's debug information, or why there is none. Raises nothing."""
        key = self._files.key(image)
        index = self._indices.get(key)
        if index is None:
            index = self._indices[key] = self._open(image)
        return index

    def frames(self, image: BinaryImage, offset: ImageOffset) -> tuple[InlineFrame, ...]:
        """Return the calls at ``offset``, innermost first; its function is the last.

        Empty if none is known. Raises nothing.
        """
        index = self.index(image)
        return () if isinstance(index, FrameStatus) else index.inlined(offset)

    def symbol(
        self, image: BinaryImage, offset: ImageOffset, outer: InlineFrame, known: Symbol | None
    ) -> Symbol | None:
        """Return the function that holds ``offset``, by the name that its lines have.

        Args:
            image: the image.
            offset: an offset in it.
            outer: the last of its :meth:`frames`.
            known: its symbol. An exact one has the name already; the lines only choose among
                several names that a linker folded into one function.
        """
        if known is not None and known.certainty is Certainty.EXACT:
            return _renamed(known, outer.name) if outer.name in known.aliases else known
        index = self.index(image)
        start = None if isinstance(index, FrameStatus) else index.function_start(offset)
        if start is None or not outer.name:
            return known
        return Symbol(
            name=outer.name,
            linkage_name=outer.linkage_name,
            offset=start,
            size=None if known is None or known.offset != start else known.size,
            certainty=Certainty.EXACT,
        )

    def _open(self, image: BinaryImage) -> AnyDebugIndex | FrameStatus:
        """Return the best source of lines that is readable; the others are in the failures."""
        unusable: set[str] = set()
        files = self._files.files(image)
        while True:
            lines = files.lines
            if isinstance(lines, FrameStatus):
                return FrameStatus.MALFORMED_FILE if unusable else lines
            try:
                return self._read(lines, image)
            except MachtraceError as error:
                self._failures.append(error)
                if lines.path in unusable:  # its DWARF was malformed, and now its debug map
                    return FrameStatus.MALFORMED_FILE
                unusable.add(lines.path)
                files = self._files.reject(image, lines.path)

    def _read(self, lines: DebugFile | DebugMap, image: BinaryImage) -> AnyDebugIndex:
        from machtrace.lines.index_cache import IndexCache

        if self._cache is None:
            self._cache = IndexCache.of_user()
        if isinstance(lines, DebugFile):
            return self._split_index(lines, image) or self._cache.index(lines)
        from machtrace.lines.debug_map import DebugMapIndex

        return DebugMapIndex(lines, self._cache)

    def _split_index(self, lines: DebugFile, image: BinaryImage) -> PartsIndex | None:
        """Return the index of a file with split DWARF; None of other files."""
        if lines.contents.format is not ImageFormat.ELF:
            return None
        if lines.contents.image.section(".debug_addr") is None or self._cache is None:
            return None
        from machtrace.lines.split.index import split_index

        return split_index(lines, self._cache, self._files, image)


def _renamed(symbol: Symbol, name: str) -> Symbol:
    others = (symbol.name, *(alias for alias in symbol.aliases if alias != name))
    return replace(symbol, name=name, aliases=others)
