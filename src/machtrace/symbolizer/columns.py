"""The answers to a bulk lookup in one image, as columns: numbers for all, names once a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from machtrace.errors import ArgumentError, MissingExtraError
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import InlineFrame, Symbol
from machtrace.model.text import counted, printable
from machtrace.symbols.image_symbols import FEW, ImageSymbols
from machtrace.symbols.ranges import Offsets
from machtrace.symbols.table import CERTAINTIES, SymbolTable

if TYPE_CHECKING:
    import pyarrow as pa

    from machtrace.lines.debug_information import AnyDebugIndex
    from machtrace.lines.index import DebugColumns

NO_OFFSET = np.uint64(2**64 - 1)
"""The absence of an offset in a column of offsets."""


_SHOWN = 10
"""Rows in text."""
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
    """The answers to one bulk lookup: a row an offset in each column, in the order of the offsets.

    A column is computed at its first access; unused columns of a million offsets cost nothing.
    """

    def __init__(
        self,
        offsets: Offsets,
        symbols: ImageSymbols,
        find_debug: Callable[[], AnyDebugIndex | None] = lambda: None,
        *,
        back: int = 0,
        threads: int | None = None,
    ) -> None:
        """Look up all but a few offsets at once; see :meth:`Symbolicator.lookup`.

        Raises:
            FormatError, MemoryReadError: see :attr:`ImageSymbols.table`.
        """
        self.offsets = offsets
        """The queried offsets: bytes from the image's header; not to be changed."""
        self._symbols = symbols
        self._find_debug = find_debug
        self._back = back
        self._threads = threads
        if len(offsets) > FEW or symbols.is_indexed:
            _ = self.symbols

    @cached_property
    def symbols(self) -> npt.NDArray[np.int32]:
        """The id of the function that holds each offset; -1 for none.

        Ids count the image's functions in the order of addresses.
        """
        return self._table.ids(self.offsets, back=self._back, threads=self._threads)

    @property
    def _table(self) -> SymbolTable:
        return self._symbols.table

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        """Return the number of rows and the columns' names; no column is computed."""
        return f"<SymbolColumns: {counted(len(self), 'row')} of {', '.join(_COLUMNS)}>"

    def __str__(self) -> str:
        """Return the first rows: offsets and the functions that hold them."""
        lines = [repr(self)]
        for offset in self.offsets[:_SHOWN].tolist():
            symbol = self._symbols.find(ImageOffset(offset - self._back))
            place = "?" if symbol is None else f"{symbol} + {offset - symbol.offset}"
            lines.append(f"{offset:#12x}  {printable(place)}")
        if len(self) > _SHOWN:
            lines.append(f"{'…':>12s}  {counted(len(self) - _SHOWN, 'more row')}")
        return "\n".join(lines)

    # --- functions ---

    @cached_property
    def function_starts(self) -> Offsets:
        """The start of each function, an :data:`ImageOffset`; :data:`NO_OFFSET` for none."""
        return self._of_symbols(self._table.starts, NO_OFFSET)

    @cached_property
    def certainties(self) -> npt.NDArray[np.uint8]:
        """The certainty of each name: an index into :data:`CERTAINTIES`."""
        none = np.uint8(len(CERTAINTIES) - 1)
        return self._of_symbols(self._table.certainties, none)

    def symbol(self, symbol: int) -> Symbol:
        """Return the function with an id of :attr:`symbols`.

        Raises:
            IndexError: no function has this id.
        """
        if not 0 <= symbol < len(self._table):
            raise IndexError(symbol)
        return self._table.symbol(symbol)

    def names(self) -> list[str | None]:
        """Return the name of each offset's function, as :attr:`Symbol.name` is; None for none.

        Each function's name is built once, however many offsets it holds.
        """
        if not self._symbols.is_indexed:
            return [None if one is None else one.name for one in self._few()]
        return self._spread(self._table.name)

    def linkage_names(self) -> list[str | None]:
        """Return the names as the symbol table spells them, which takes a fraction of the time."""
        if not self._symbols.is_indexed:
            return [None if one is None else one.linkage_name for one in self._few()]
        return self._spread(self._table.linkage_name)

    def _few(self) -> Iterator[Symbol | None]:
        """Yield the functions of a few offsets, which need no table of all."""
        for offset in self.offsets.tolist():
            yield self._symbols.find(ImageOffset(offset - self._back))

    def _spread(self, name: Callable[[int], str]) -> list[str | None]:
        """Return a name for each offset, built once for each function."""
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
        """The id of the innermost call's source file, for :meth:`file_path`; -1 if unknown."""
        if self._lines is None:
            return np.full(len(self), -1, np.int32)
        return self._lines.file

    @property
    def lines(self) -> npt.NDArray[np.uint32]:
        """The innermost call's line, 1-based; 0 if unknown."""
        return np.zeros(len(self), np.uint32) if self._lines is None else self._lines.line

    @property
    def inline_depths(self) -> npt.NDArray[np.int32]:
        """The number of calls that are inlined into one another."""
        return np.zeros(len(self), np.int32) if self._lines is None else self._lines.depth

    def file_path(self, file: int) -> str:
        """Return the path of a file of :attr:`files`.

        Raises:
            IndexError: no file has this id.
        """
        if self._debug is None or file < 0:
            raise IndexError(file)
        return self._debug.file_path(file)

    def inlined(self, row: int) -> tuple[InlineFrame, ...]:
        """Return the calls at one offset, innermost first, the function last; or none."""
        offset = int(self.offsets[row]) - self._back
        return () if self._debug is None else self._debug.inlined(ImageOffset(offset))

    # --- Arrow ---

    def to_arrow(self, *, demangled: bool = True) -> pa.Table:
        """Return all columns as an Arrow table, names and paths as dictionaries.

        Its columns are ``offset``, ``symbol``, ``function_start``, ``certainty``, ``file``,
        ``line`` and ``inline_depth``; unknown values are null.

        Args:
            demangled: whether names are demangled, or as the symbol table spells them.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingExtraError("an Arrow table", extra="arrow") from None

        none, line = self.symbols < 0, self.lines
        certainties = pa.array([certainty.value for certainty in CERTAINTIES])
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
    """Return the ids that occur, ascending."""
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


_END = 1 << 64
_REMEDY = "pass a column of whole numbers from 0 to 2**64 - 1"
_UNSIGNED, _SIGNED, _OBJECTS = "u", "i", "O"


def offsets_array(numbers: npt.ArrayLike | Iterable[int]) -> Offsets:
    """Copy a caller's numbers into a column of offsets.

    Args:
        numbers: an array, or anything that can be made one, or yields whole numbers one by one.

    Raises:
        ArgumentError: it is not a column, or has anything but whole numbers from 0 to 2**64 - 1.
    """
    if isinstance(numbers, str | bytes):
        raise ArgumentError(f"offsets are a column of numbers, not {numbers!r:.40}", remedy=_REMEDY)
    array = _array(numbers)
    if array.ndim != 1:
        shape = f"of shape {array.shape}" if array.ndim else "one number"
        raise ArgumentError(f"offsets are a column, not {shape}", remedy=_REMEDY)
    kind = array.dtype.kind
    if kind == _OBJECTS:
        column = np.fromiter((_offset(one) for one in array), np.uint64, len(array))
    elif kind in {_UNSIGNED, _SIGNED}:
        if kind == _SIGNED and len(array) and int(array.min()) < 0:
            raise _out_of_range(int(array.min()))
        column = array.astype(np.uint64, order="C")
    else:
        raise ArgumentError(f"offsets are whole numbers, not {array.dtype}", remedy=_REMEDY)
    column.flags.writeable = False
    return column


def _array(numbers: npt.ArrayLike | Iterable[int]) -> npt.NDArray[np.generic]:
    if hasattr(numbers, "__array__") or hasattr(numbers, "__array_interface__"):
        return np.asarray(numbers)
    try:
        items = list(numbers)  # type: ignore[arg-type]  # what is no iterable is refused
    except TypeError:
        kind = "one number" if hasattr(numbers, "__index__") else type(numbers).__name__
        raise ArgumentError(f"offsets are a column, not {kind}", remedy=_REMEDY) from None
    try:
        array = np.asarray(items)
    except (ValueError, OverflowError):  # rows of several lengths
        array = np.empty(0, np.float64)
    if array.dtype.kind in {_UNSIGNED, _SIGNED}:
        return array
    # Python's numbers from 2**63 on become floating-point ones beside smaller ones: not here.
    objects = np.empty(len(items), np.object_)
    objects[:] = items
    return objects


def _offset(number: object) -> int:
    try:
        value = index(number)  # type: ignore[arg-type]  # what has none is refused
    except TypeError:
        text = f"offsets are whole numbers, not {number!r:.40}"
        raise ArgumentError(text, remedy=_REMEDY) from None
    if not 0 <= value < _END:
        raise _out_of_range(value)
    return value


def _out_of_range(value: int) -> ArgumentError:
    side = "less than 0" if value < 0 else "more than 64 bits"
    return ArgumentError(f"an offset is {side}: {value:#x}", remedy=_REMEDY)
