"""The debug information of images: found, made into an index, and asked."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TypeAlias

from machtrace.errors import MachtraceError
from machtrace.images.debug_file import DebugFile
from machtrace.images.resolver import ImageResolver
from machtrace.lines.debug_map.index import DebugMapIndex
from machtrace.lines.index import DebugIndex
from machtrace.lines.index_cache import IndexCache
from machtrace.model.address import ImageOffset
from machtrace.model.image import BinaryImage
from machtrace.model.symbol import Certainty, FrameStatus, InlineFrame, Symbol

AnyDebugIndex: TypeAlias = DebugIndex | DebugMapIndex


class DebugInformation:
    """Source lines and inlined calls of any number of images; each image's is opened once."""

    __slots__ = ("_cache", "_failures", "_files", "_indices")

    def __init__(self, files: ImageResolver, cache: IndexCache | None = None) -> None:
        """Open nothing yet.

        Args:
            files: finds debug files.
            cache: makes indices; None is the one that keeps them in the user's folder.
        """
        self._files = files
        self._cache = IndexCache.of_user() if cache is None else cache
        self._indices: dict[Hashable, AnyDebugIndex | FrameStatus] = {}
        self._failures: list[MachtraceError] = []

    @property
    def problems(self) -> list[MachtraceError]:
        """Why lines are missing so far: what was found and could not be read, or was changed."""
        maps = (one for one in self._indices.values() if isinstance(one, DebugMapIndex))
        return [*self._failures, *(problem for one in maps for problem in one.problems)]

    def index(self, image: BinaryImage) -> AnyDebugIndex | FrameStatus:
        """The image's debug information, or why there is none. Raises nothing."""
        key = self._files.key(image)
        index = self._indices.get(key)
        if index is None:
            index = self._indices[key] = self._open(image)
        return index

    def frames(self, image: BinaryImage, offset: ImageOffset) -> tuple[InlineFrame, ...]:
        """The calls at ``offset``, innermost first; the function that holds it is the last.

        Empty where nothing is known. Raises nothing.
        """
        index = self.index(image)
        return () if isinstance(index, FrameStatus) else index.inlined(offset)

    def symbol(
        self, image: BinaryImage, offset: ImageOffset, outer: InlineFrame, known: Symbol | None
    ) -> Symbol | None:
        """The function that holds ``offset``, by the name that the lines there are of.

        Args:
            image: what is asked about.
            offset: a place in it.
            outer: the last of its :meth:`frames`.
            known: what symbols say. Where they are exact they have the name, and only choose
                among several that a linker made one of.
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
        """The best source of lines that can be read; what cannot is among the failures."""
        unusable: set[str] = set()
        files = self._files.files(image)
        while True:
            lines = files.lines
            if isinstance(lines, FrameStatus):
                return FrameStatus.MALFORMED_FILE if unusable else lines
            try:
                if isinstance(lines, DebugFile):
                    return self._cache.index(lines)
                return DebugMapIndex(lines, self._cache)
            except MachtraceError as error:
                self._failures.append(error)
                if lines.path in unusable:  # a file whose DWARF was bad, and now its debug map
                    return FrameStatus.MALFORMED_FILE
                unusable.add(lines.path)
                files = self._files.reject(image, lines.path)


def _renamed(symbol: Symbol, name: str) -> Symbol:
    others = (symbol.name, *(alias for alias in symbol.aliases if alias != name))
    return replace(symbol, name=name, aliases=others)
