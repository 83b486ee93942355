"""What every source of an image's names yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from machtrace.model.symbol import Certainty

Offsets: TypeAlias = npt.NDArray[np.uint64]
"""A column of :data:`~machtrace.model.address.ImageOffset`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedRanges:
    """Symbols of one kind, in their table's order; one entry a row in each column."""

    starts: Offsets
    sizes: Offsets
    """In bytes; 0 where the format does not say."""
    preferred: npt.NDArray[np.bool_]
    """Which of several symbols at one address to show: the first preferred one (global before
    local, as dyld chooses)."""
    linkage_name: Callable[[int], str]
    """The name of a row; empty where it turns out to have none."""
    certainty: Certainty
    is_label: Callable[[npt.NDArray[np.intp]], npt.NDArray[np.bool_]] | None = None
    """Which of some rows only the assembler knew, so that in the middle of a function they name a
    place in it and nothing of their own; None where no row is of that kind."""
    leading_underscore: bool = False
    """Whether the names begin with one that people do not read, as those of Mach-O's symbol tables
    do."""

    @classmethod
    def unranked(
        cls,
        starts: Offsets,
        linkage_name: Callable[[int], str],
        certainty: Certainty,
        *,
        sizes: Offsets | None = None,
        leading_underscore: bool = False,
    ) -> NamedRanges:
        """Symbols of which none is preferred to others; of unknown sizes, unless they are given."""
        return cls(
            starts=starts,
            sizes=np.zeros(len(starts), np.uint64) if sizes is None else sizes,
            preferred=np.ones(len(starts), np.bool_),
            linkage_name=linkage_name,
            certainty=certainty,
            leading_underscore=leading_underscore,
        )

    def __len__(self) -> int:
        return len(self.starts)

    def only(self, rows: npt.NDArray[np.intp]) -> NamedRanges:
        """Some of the rows, in the order that they are given in."""
        name, is_label = self.linkage_name, self.is_label
        return replace(
            self,
            starts=self.starts[rows],
            sizes=self.sizes[rows],
            preferred=self.preferred[rows],
            linkage_name=lambda row: name(int(rows[row])),
            is_label=None if is_label is None else lambda some: is_label(rows[some]),
        )
