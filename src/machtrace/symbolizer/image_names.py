"""What the files of one image say of addresses in it: functions, source lines, inlined calls.

For a few addresses without numpy or a table of all names, where there is no debug information; for
many in columns.
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
from machtrace.model.symbol import FrameStatus, InlineFrame, Symbol
from machtrace.symbols.image_symbols import ImageSymbols, open_image

if TYPE_CHECKING:  # a first answer can do without what they bring
    from machtrace.images.open_file import IdentifiedFile
    from machtrace.lines.debug_information import AnyDebugIndex, DebugInformation


class NamedOffset(NamedTuple):
    """What is known of an offset, as numbers; equal ones have equal names."""

    function: int
    """For :meth:`ImageNames.function`; -1 where no function holds it."""
    location: int
    """The source location; -1 where none is known."""


class InlinedCall(NamedTuple):
    """A call at a source location, as numbers."""

    function: int
    """For :meth:`ImageNames.linkage_name`; -1 where that is not known."""
    file: int
    """For :meth:`ImageNames.file_path`; -1 where that is not known."""
    line: int
    """1-based; 0 where it is not known."""


class ImageNames:
    """Names in one image, from its binary, its dSYM and its debug information."""

    def __init__(
        self,
        image: BinaryImage,
        file: IdentifiedFile | None = None,
        search: Search = (),
    ) -> None:
        """Look for the image's files; no name is read yet.

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
        """Why names or lines may be missing, as far as it was seen."""
        debug = self._debug.problems if self._has_lines else []
        symbols = () if self._symbols is None else self._symbols.problems
        return [*self._problems, *debug, *symbols]

    @property
    def needs_index(self) -> bool:
        """Whether one offset takes as long as many, since there is debug information to read."""
        return self._has_lines

    def symbol(self, offset: ImageOffset) -> Symbol | None:
        """The function that holds ``offset``, with or without a name; None where there is none."""
        if self._symbols is None:
            return None
        try:
            return self._symbols.find(offset)
        except MachtraceError as error:
            self._fail(error)
            return None

    def find(self, offsets: Sequence[int]) -> list[NamedOffset]:
        """What is known of each of many offsets."""
        import numpy as np

        column = np.array(offsets, np.uint64)
        functions = locations = [-1] * len(offsets)
        if self._symbols is not None:
            try:
                functions = self._symbols.table.ids(column).tolist()
            except MachtraceError as error:
                self._fail(error)
        if self._index is not None:
            try:
                locations = self._index.columns(column).location.tolist()
            except MachtraceError as error:
                self._problems.append(error)
                self._index = None
        return list(map(NamedOffset, functions, locations))

    def function(self, number: int) -> Symbol | None:
        """The function of a :attr:`NamedOffset.function`."""
        if self._symbols is None or number < 0:
            return None
        return self._symbols.table.symbol(number)

    def starts(self) -> dict[str, list[ImageOffset]]:
        """Where the functions of each linkage name begin, as the symbol tables have them."""
        found: dict[str, list[ImageOffset]] = {}
        if self._symbols is None:
            return found
        table = self._symbols.table
        starts = table.starts.tolist()
        for index in table.is_named.nonzero()[0].tolist():
            name = table.linkage_name(index)
            if name:
                found.setdefault(name, []).append(ImageOffset(starts[index]))
        return found

    def calls(self, offset: ImageOffset) -> tuple[InlineFrame, ...]:
        """The calls at ``offset`` as the debug information has them, innermost first."""
        return () if self._index is None else self._index.inlined(offset)

    def chains(self, locations: Sequence[int]) -> list[tuple[InlinedCall, ...]]:
        """The calls at each of many source locations, innermost first; none at one that is -1."""
        if self._index is None:
            return [()] * len(locations)
        import numpy as np

        found = self._index.chains(np.array(locations, np.int32))
        rows = list(
            map(InlinedCall, found.function.tolist(), found.file.tolist(), found.line.tolist())
        )
        first = found.first.tolist()
        return [tuple(rows[begin:end]) for begin, end in pairwise(first)]

    def linkage_name(self, function: int) -> str:
        """Of an :attr:`InlinedCall.function`; may be empty."""
        return "" if self._index is None or function < 0 else self._index.function_name(function)

    def file_path(self, file: int) -> str:
        """Of an :attr:`InlinedCall.file` that is not -1."""
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
