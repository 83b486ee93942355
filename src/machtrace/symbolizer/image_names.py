"""Names in the files of one image: functions, source lines, inlined calls.

For a few addresses without numpy or a table of all names, if no debug information exists; for many
in columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from machtrace.errors import MachtraceError
from machtrace.images.resolver import ImageResolver, Search
from machtrace.model.address import ImageOffset
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.symbol import Certainty, FrameStatus, InlineFrame, Symbol
from machtrace.symbols.image_symbols import ImageSymbols, open_image

if TYPE_CHECKING:  # a first answer can do without what they bring
    import numpy as np
    import numpy.typing as npt

    from machtrace.images.open_file import IdentifiedFile
    from machtrace.lines.debug_information import AnyDebugIndex, DebugInformation
    from machtrace.lines.index import DebugChains


class NamedOffset(NamedTuple):
    """The names of an offset, as numbers; equal ones have equal names."""

    function: int
    """For :meth:`ImageNames.function`; -1 if no function holds it."""
    location: int
    """The source location; -1 if unknown."""


class InlinedCall(NamedTuple):
    """A call at a source location, as numbers."""

    function: int
    """For :meth:`ImageNames.linkage_name`; -1 if unknown."""
    file: int
    """For :meth:`ImageNames.file_path`; -1 if unknown."""
    line: int
    """1-based; 0 if unknown."""


class ImageNames:
    """Names in one image, from its binary, its dSYM and its debug information."""

    def __init__(
        self,
        image: BinaryImage,
        file: IdentifiedFile | None = None,
        search: Search = (),
    ) -> None:
        """Search for the image's files; no name is read yet.

        Args:
            image: the image.
            file: the image's file, if it is open already.
            search: files and folders to search, or the resolver that several images share.
        """
        self._image = image
        self._files = ImageResolver.of(search)
        self._contents = None if file is None else file.contents
        if file is not None:
            self._files.adopt(image, file)
        self._problems: list[MachtraceError] = []
        self._has_lines = not isinstance(self._files.files(image).lines, FrameStatus)

    @property
    def problems(self) -> list[MachtraceError]:
        """Why names or lines may be missing so far."""
        debug = self._debug.problems if self._has_lines else []
        symbols = () if self._symbols is None else self._symbols.problems
        return [*self._problems, *debug, *symbols]

    @property
    def needs_index(self) -> bool:
        """Whether one offset takes as long as many, since debug information has to be read."""
        return self._has_lines

    def symbol(self, offset: ImageOffset) -> Symbol | None:
        """Return the function that holds ``offset``, with or without a name; None if none does."""
        if self._symbols is None:
            return None
        try:
            return self._symbols.find(offset)
        except MachtraceError as error:
            self._fail(error)
            return None

    def find(self, offsets: Sequence[int]) -> list[NamedOffset]:
        """Return the names of each of many offsets."""
        import numpy as np

        functions, locations = self.columns(np.array(offsets, np.uint64))
        return list(map(NamedOffset, functions.tolist(), locations.tolist()))

    def columns(
        self, offsets: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return both numbers of :class:`NamedOffset` of each of many offsets."""
        import numpy as np

        functions = locations = np.full(len(offsets), -1, np.int64)
        if self._symbols is not None:
            try:
                functions = self._symbols.table.ids(offsets).astype(np.int64)
            except MachtraceError as error:
                self._fail(error)
        if self._index is not None:
            try:
                locations = self._index.columns(offsets).location.astype(np.int64)
            except MachtraceError as error:
                self._problems.append(error)
                self._index = None
        return functions, locations

    def function(self, number: int) -> Symbol | None:
        """Return the function of a :attr:`NamedOffset.function`."""
        if self._symbols is None or number < 0:
            return None
        return self._symbols.table.symbol(number)

    def starts(self) -> dict[str, list[ImageOffset]]:
        """Return the starts of the functions of each linkage name, by the symbol tables.

        Stubs are left out: their names are of functions of other images.
        """
        by_name: dict[str, list[ImageOffset]] = {}
        if self._symbols is None:
            return by_name
        from machtrace.symbols.table import CERTAINTIES

        table = self._symbols.table
        starts = table.starts.tolist()
        is_own = table.is_named & (table.certainties != CERTAINTIES.index(Certainty.STUB))
        for index in is_own.nonzero()[0].tolist():
            name = table.linkage_name(index)
            if name:
                by_name.setdefault(name, []).append(ImageOffset(starts[index]))
        return by_name

    def calls(self, offset: ImageOffset) -> tuple[InlineFrame, ...]:
        """Return the calls at ``offset`` by the debug information, innermost first."""
        return () if self._index is None else self._index.inlined(offset)

    def chains(self, locations: Sequence[int]) -> list[tuple[InlinedCall, ...]]:
        """Return the calls at each of many locations, innermost first; none at one that is -1."""
        import numpy as np

        chains = self.chain_columns(np.array(locations, np.int32))
        rows = list(
            map(InlinedCall, chains.function.tolist(), chains.file.tolist(), chains.line.tolist())
        )
        first = chains.first.tolist()
        return [tuple(rows[begin:end]) for begin, end in pairwise(first)]

    def chain_columns(self, locations: npt.NDArray[np.int32]) -> DebugChains:
        """Return the calls at each of many locations, as columns."""
        import numpy as np

        from machtrace.lines.index import DebugChains

        if self._index is not None:
            return self._index.chains(locations)
        none = np.zeros(0, np.int32)
        first = np.zeros(len(locations) + 1, np.int64)
        return DebugChains(first, none, none.view(np.uint32), none)

    def linkage_name(self, function: int) -> str:
        """Return the name of an :attr:`InlinedCall.function`; may be empty."""
        return "" if self._index is None or function < 0 else self._index.function_name(function)

    def file_path(self, file: int) -> str:
        """Return the path of an :attr:`InlinedCall.file` that is not -1."""
        return "" if self._index is None else self._index.file_path(file)

    def _fail(self, error: MachtraceError) -> None:
        self._problems.append(error)
        self._symbols = None

    @cached_property
    def _symbols(self) -> ImageSymbols | None:
        contents = self._contents
        is_dsym = contents is not None and (
            contents.format is ImageFormat.MACHO and not contents.image.has_code
        )
        if contents is not None and not is_dsym:
            files, image = self._files, self._image
            return ImageSymbols(contents, others=lambda: files.files(image).twins(contents.source))
        symbols = open_image(self._files, self._image, None)
        return None if isinstance(symbols, FrameStatus) else symbols

    @cached_property
    def _debug(self) -> DebugInformation:
        from machtrace.lines.debug_information import DebugInformation

        return DebugInformation(self._files)

    @cached_property
    def _index(self) -> AnyDebugIndex | None:
        found = self._debug.index(self._image) if self._has_lines else FrameStatus.MISSING_FILE
        return None if isinstance(found, FrameStatus) else found
