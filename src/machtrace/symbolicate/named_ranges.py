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
    leading_underscore: bool = False
    """Whether the names begin with one that people do not read, as those of Mach-O's symbol tables
    do."""

    def __len__(self) -> int:
        return len(self.starts)

    def only(self, rows: npt.NDArray[np.intp]) -> NamedRanges:
        """Some of the rows, in the order that they are given in."""
        name = self.linkage_name
        return replace(
            self,
            starts=self.starts[rows],
            sizes=self.sizes[rows],
            preferred=self.preferred[rows],
            linkage_name=lambda row: name(int(rows[row])),
        )
