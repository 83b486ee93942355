"""The difference of two sets of stacks, function by function, with intervals.

Stacks of one device are not independent of each other, so that devices are resampled and not
stacks: a bootstrap over groups of devices. A change whose interval has zero may be chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.frozen import dataclass
from machtrace.warehouse.function_tree import Function, FunctionTree
from machtrace.warehouse.stack_tree import StackTree, Weights

GROUPS = 64
"""Groups of devices of each side."""
_RESAMPLES = 400
_SEED = 20_261_123
_TAIL = 2.5
"""Per cent outside of an interval, on each side."""


class Change(NamedTuple):
    """A node of both sides."""

    node: int
    function: Function
    before: float
    """The share of the first side's weight at and below it, from 0 to 1."""
    after: float
    least: float
    """The interval of ``after - before`` that 95 % of resamples are in."""
    most: float

    @property
    def difference(self) -> float:
        """The change of the share."""
        return self.after - self.before

    @property
    def is_sure(self) -> bool:
        """Whether the interval does not have zero."""
        return self.least > 0 or self.most < 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Difference:
    """Two sides' stacks as one tree of functions."""

    tree: StackTree
    """Its frames are rows of ``functions``."""
    functions: tuple[Function, ...]
    before: Weights
    """By node: the first side's weight at and below it."""
    after: Weights
    least: npt.NDArray[np.float64]
    """By node: the lower end of the interval of the change of its share."""
    most: npt.NDArray[np.float64]

    def callers(self, node: int) -> list[str]:
        """Return the names of a node's callers, the innermost first."""
        return [self.functions[frame].name for frame in self.tree.stack(node)[1:]]

    def changes(self) -> list[Change]:
        """Return the nodes whose shares differ, the largest change first."""
        shares = [side / max(int(side[0]), 1) for side in (self.before, self.after)]
        order = np.argsort(-np.abs(shares[1] - shares[0]), kind="stable")
        return [
            Change(
                node,
                self.functions[int(self.tree.frame[node])],
                float(shares[0][node]),
                float(shares[1][node]),
                float(self.least[node]),
                float(self.most[node]),
            )
            for node in order.tolist()
            if node and shares[0][node] != shares[1][node]
        ]


def difference(small: FunctionTree, own: Weights) -> Difference:
    """Return the difference of two sides.

    Args:
        small: the functions of both sides' stacks.
        own: by node and part: the weight. The parts are :data:`GROUPS` groups of devices of the
            first side, then as many of the second.
    """
    totals = small.tree.totals(own)
    sides = totals[:, :GROUPS], totals[:, GROUPS:]
    random = np.random.default_rng(_SEED)
    shares = [_resampled(side, random) for side in sides]
    spread = shares[1] - shares[0]
    least, most = np.percentile(spread, [_TAIL, 100 - _TAIL], axis=0)
    return Difference(
        tree=small.tree,
        functions=small.functions,
        before=sides[0].sum(axis=1),
        after=sides[1].sum(axis=1),
        least=least,
        most=most,
    )


def _resampled(totals: Weights, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return the share of each node in each resample of the groups that have any weight."""
    groups = totals[:, totals[0] > 0].astype(np.float64)
    size = groups.shape[1]
    if not size:
        return np.zeros((_RESAMPLES, len(totals)))
    counts = random.multinomial(size, np.full(size, 1 / size), _RESAMPLES)
    sums = counts @ groups.T
    return np.asarray(sums / sums[:, :1])
