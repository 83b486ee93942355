"""Names at very many offsets of an image, as columns: each text is made once, and no object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.symbolizer.image_names import ImageNames

Numbers: TypeAlias = npt.NDArray[np.int64]


class NameColumns(NamedTuple):
    """Calls at offsets: those of the i-th are rows ``first[i]:first[i + 1]``, innermost first."""

    first: Numbers
    function: Numbers
    """By call: one of ``functions``."""
    file: Numbers
    """By call: one of ``files``."""
    line: Numbers
    """By call: 1-based; 0 if it is unknown."""
    source: Numbers
    """By call: one of ``sources``."""
    functions: list[str]
    files: list[str]
    """The first one is the empty text."""
    sources: list[str]


class Texts(NamedTuple):
    """How numbers of :class:`ImageNames` are spelt."""

    symbol: Callable[[int], tuple[str, str]]
    """The name and the source of a function; the name is empty if only its start is known."""
    inlined: Callable[[int], str]
    """The name of an inlined call's function."""
    debug: str
    """The source of inlined calls."""
    unknown: str
    """The name of an inlined call's function that has none."""


def name_columns(names: ImageNames, offsets: npt.NDArray[np.uint64], texts: Texts) -> NameColumns:
    """Return the calls at offsets, as ``ReportNames.find`` does.

    Args:
        names: those of the image.
        offsets: in any order.
        texts: how they are spelt.
    """
    functions, locations = names.columns(offsets)
    key = functions.astype(np.int64) << 32 | (locations.astype(np.int64) & 0xFFFF_FFFF)
    distinct, inverse = np.unique(key, return_inverse=True)
    function, location = distinct >> 32, distinct.astype(np.int32)
    chains = names.chain_columns(location)
    count = np.diff(chains.first)
    last = chains.first[1:] - 1
    has_chain = count > 0
    has_chain[has_chain] = chains.file[last[has_chain]] >= 0

    symbols, symbol = np.unique(function, return_inverse=True)
    spelt = [texts.symbol(each) if each >= 0 else ("", "") for each in symbols.tolist()]
    is_named = np.array([bool(name) for name, _ in spelt], np.bool_)[symbol]
    sources = [texts.debug, *sorted({source for _, source in spelt})]
    place = {source: at for at, source in reversed(list(enumerate(sources)))}
    of_symbol = np.array([place[source] for _, source in spelt], np.int64)[symbol]

    calls, call = np.unique(chains.function, return_inverse=True)
    inlined = [texts.inlined(each) for each in calls.tolist()]
    paths, path = np.unique(chains.file, return_inverse=True)
    files = ["", *(names.file_path(each) if each >= 0 else "" for each in paths.tolist())]

    # Rows of the chains, then one for each function that is a symbol alone.
    rows: dict[str, npt.NDArray[Any]] = {
        "function": np.concatenate((call, len(inlined) + symbol)),
        "file": np.concatenate((path + 1, np.zeros(len(distinct), np.int64))),
        "line": np.concatenate((chains.line, np.zeros(len(distinct), np.int64))),
        "source": np.concatenate((np.zeros(len(call), np.int64), of_symbol)),
    }
    # The function that the others are inlined into has the symbol's name if it has no other.
    unknown = np.array([name == texts.unknown for name in inlined], np.bool_)
    owner = np.flatnonzero(has_chain & is_named)
    owner = owner[unknown[call[last[owner]]]]
    rows["function"][last[owner]] = len(inlined) + symbol[owner]

    size = np.where(has_chain, count, is_named.astype(np.int64))
    begin = np.where(has_chain, chains.first[:-1], len(call) + np.arange(len(distinct)))
    sizes = size[inverse]
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    at = np.repeat(begin[inverse] - first[:-1], sizes) + np.arange(first[-1])
    return NameColumns(
        first=first,
        functions=[*inlined, *(name for name, _ in spelt)],
        files=files,
        sources=sources,
        **{name: column[at].astype(np.int64) for name, column in rows.items()},
    )
