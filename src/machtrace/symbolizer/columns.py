"""What many offsets of one image are, as columns: numbers for all, names once for each function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from machtrace.errors import MissingExtraError
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import InlineFrame, Symbol
from machtrace.symbols.image_symbols import FEW, ImageSymbols
from machtrace.symbols.ranges import Offsets
from machtrace.symbols.table import CERTAINTIES, SymbolTable

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types

    from machtrace.lines.index import DebugColumns
    from machtrace.lines.debug_information import AnyDebugIndex

NO_OFFSET = np.uint64(2**64 - 1)
"""In a column of offsets: there is none."""


_COLUMNS = (
    "offsets",
    "symbols",
    "function_starts",
    "certainties",
    "files",
    "lines",
    "inline_depths",
)


class SymbolColumns:
    """The answers to one bulk lookup: a row an offset in each column, in the order asked for.

    A column is worked out when it is first looked at; the columns of a million offsets that nobody
    looks at cost nothing.
    """

    def __init__(
        self,
        offsets: Offsets,
        symbols: ImageSymbols,
        find_debug: Callable[[], AnyDebugIndex | None] = lambda: None,
        *,
        back: int = 0,
        threads: int = 1,
    ) -> None:
        """Look up all but a few offsets at once; see :meth:`Symbolicator.lookup`.

        Raises:
            FormatError, MemoryReadError: see :attr:`ImageSymbols.table`.
        """
        self.offsets = offsets
        """What was asked for: bytes from the image's header; not to be changed."""
        self._symbols = symbols
        self._find_debug = find_debug
        self._back = back
        self._threads = threads
        if len(offsets) > FEW or symbols.is_indexed:
            _ = self.symbols

    @cached_property
    def symbols(self) -> npt.NDArray[np.int32]:
        """The id of the function that holds each offset; -1 where no function does.

        Ids count the image's functions in the order of addresses.
        """
        return self._table.ids(self.offsets, back=self._back, threads=self._threads)

    @property
    def _table(self) -> SymbolTable:
        return self._symbols.table

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        """How many rows, and of what; no column is worked out for that."""
        rows = f"{len(self)} row{'' if len(self) == 1 else 's'}"
        return f"<SymbolColumns: {rows} of {', '.join(_COLUMNS)}>"

    # --- functions ---

    @cached_property
    def function_starts(self) -> Offsets:
        """Where each function begins, an :data:`ImageOffset`; :data:`NO_OFFSET` where none does."""
        return self._of_symbols(self._table.starts, NO_OFFSET)

    @cached_property
    def certainties(self) -> npt.NDArray[np.uint8]:
        """How sure each name is: an index into :data:`CERTAINTIES`."""
        none = np.uint8(len(CERTAINTIES) - 1)
        return self._of_symbols(self._table.certainties, none)

    def symbol(self, symbol: int) -> Symbol:
        """The function with an id of :attr:`symbols`.

        Raises:
            IndexError: there is none with this id.
        """
        if not 0 <= symbol < len(self._table):
            raise IndexError(symbol)
        return self._table.symbol(symbol)

    def names(self) -> list[str | None]:
        """The name of each offset's function, as :attr:`Symbol.name` is; None where there is none.

        Each function's name is made once, however many offsets it holds.
        """
        if not self._symbols.is_indexed:
            return [None if one is None else one.name for one in self._few()]
        return self._spread(self._table.name)

    def linkage_names(self) -> list[str | None]:
        """The same as the symbol table spells it, which takes a fraction of the time."""
        if not self._symbols.is_indexed:
            return [None if one is None else one.linkage_name for one in self._few()]
        return self._spread(self._table.linkage_name)

    def _few(self) -> Iterator[Symbol | None]:
        """The functions of a few offsets, which need no table of all."""
        for offset in self.offsets.tolist():
            yield self._symbols.find(ImageOffset(offset - self._back))

    def _spread(self, name: Callable[[int], str]) -> list[str | None]:
        """A name for each offset, made once for each function."""
        # None is behind the last, where an id of -1 finds it.
        names = np.full(len(self._table) + 1, None, np.object_)
        for symbol in self._ids.tolist():
            names[symbol] = name(symbol)
        spread: list[str | None] = names[self.symbols].tolist()
        return spread

    @cached_property
    def _ids(self) -> npt.NDArray[np.intp]:
        return _distinct(self.symbols, len(self._table))

    def _of_symbols(self, column: npt.NDArray[Any], none: Any) -> npt.NDArray[Any]:  # noqa: ANN401 (a scalar of the column)
        return np.append(column, none)[self.symbols]

    # --- source lines ---

    @cached_property
    def _debug(self) -> AnyDebugIndex | None:
        return self._find_debug()

    @cached_property
    def _lines(self) -> DebugColumns | None:
        if self._debug is None:
            return None
        back = np.uint64(self._back)
        return self._debug.columns(np.where(self.offsets < back, NO_OFFSET, self.offsets - back))

    @property
    def files(self) -> npt.NDArray[np.int32]:
        """The id of the innermost call's source file, for :meth:`file_path`; -1 where unknown."""
        if self._lines is None:
            return np.full(len(self), -1, np.int32)
        return self._lines.file

    @property
    def lines(self) -> npt.NDArray[np.uint32]:
        """The innermost call's line, 1-based; 0 where it is unknown."""
        return np.zeros(len(self), np.uint32) if self._lines is None else self._lines.line

    @property
    def inline_depths(self) -> npt.NDArray[np.int32]:
        """How many calls are inlined into one another there."""
        return np.zeros(len(self), np.int32) if self._lines is None else self._lines.depth

    def file_path(self, file: int) -> str:
        """The path of a file of :attr:`files`.

        Raises:
            IndexError: there is none with this id.
        """
        if self._debug is None or file < 0:
            raise IndexError(file)
        return self._debug.file_path(file)

    def inlined(self, row: int) -> tuple[InlineFrame, ...]:
        """The calls at one offset, innermost first, the function itself last; empty if unknown."""
        offset = int(self.offsets[row]) - self._back
        return () if self._debug is None else self._debug.inlined(ImageOffset(offset))

    # --- Arrow ---

    def to_arrow(self, *, demangled: bool = True) -> pa.Table:
        """All columns as an Arrow table, names and paths as dictionaries.

        Its columns are ``offset``, ``symbol``, ``function_start``, ``certainty``, ``file``,
        ``line`` and ``inline_depth``; what is unknown is null.

        Args:
            demangled: whether symbols are named as people read them, or as their table spells them.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingExtraError("an Arrow table", extra="arrow") from None

        none, line = self.symbols < 0, self.lines
        certainties = pa.array([one.value for one in CERTAINTIES])
        name = self._table.name if demangled else self._table.linkage_name
        names = [name(symbol) for symbol in self._ids.tolist()]
        files = _distinct(self.files, int(self.files.max(initial=-1)) + 1)
        paths = [self.file_path(file) for file in files.tolist()]
        return pa.table(
            {
                "offset": self.offsets,
                "symbol": _dictionary(pa, self.symbols, self._ids, names),
                "function_start": pa.array(self.function_starts, mask=none),
                "certainty": pa.DictionaryArray.from_arrays(
                    pa.array(self.certainties.astype(np.int8)), certainties
                ),
                "file": _dictionary(pa, self.files, files, paths),
                "line": pa.array(line, mask=line == 0),
                "inline_depth": self.inline_depths,
            }
        )


def _distinct(ids: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.intp]:
    """The ids that occur, ascending."""
    occurs = np.zeros(count + 1, np.bool_)  # the last is that of -1
    occurs[ids] = True
    return np.flatnonzero(occurs[:-1])


def _dictionary(
    pa: Any,  # noqa: ANN401 (the module, which is not always there)
    ids: npt.NDArray[np.int32],
    distinct: npt.NDArray[np.intp],
    words: list[str],
) -> pa.DictionaryArray:
    places = np.zeros((int(distinct[-1]) if len(distinct) else -1) + 2, np.int32)
    places[distinct] = np.arange(len(distinct), dtype=np.int32)
    spelt = [word.encode("utf-8", "backslashreplace").decode() for word in words]
    return pa.DictionaryArray.from_arrays(
        pa.array(places[ids], mask=ids < 0), pa.array(spelt, pa.string())
    )
