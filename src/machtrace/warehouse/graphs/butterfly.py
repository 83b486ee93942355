"""A function with its callers and callees, by build."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from machtrace.frozen import dataclass
from machtrace.warehouse.function_tree import Function, FunctionTree
from machtrace.warehouse.graphs.rows import rows_of
from machtrace.warehouse.graphs.selection import above, below, inside, nodes_of
from machtrace.warehouse.selection import parts_of, weights_of

if TYPE_CHECKING:
    from machtrace.warehouse.reader import WarehouseReader

MAX_BUILDS = 100
_BUILDS = """
SELECT coalesce(app, '') AS app, coalesce(build, '') AS build, coalesce(app, '') || chr(31) ||
    coalesce(build, '') AS key
FROM reports GROUP BY ALL ORDER BY max(coalesce(time, received)) DESC, key LIMIT $most
"""
_PART = """
coalesce(list_position([{keys}]::VARCHAR[],
    coalesce(app, '') || chr(31) || coalesce(build, '')), 0)
"""
_PLACES = """
SELECT n.file, n.line, i.name AS image, count(*) AS frames
FROM names n JOIN frames f USING (segment, frame)
LEFT JOIN images i ON i.segment = f.segment AND i.image = f.image
WHERE n.function = $name AND ($image IS NULL OR coalesce(i.name, '') = $image) AND n.file != ''
GROUP BY ALL ORDER BY frames DESC, file, line LIMIT 200
"""


class BuildShare(NamedTuple):
    """The weight of a function in a build."""

    app: str
    build: str
    weight: int
    whole: int
    """That of all stacks of the build."""

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.weight / self.whole if self.whole else 0.0


class Place(NamedTuple):
    """A line of a function's source."""

    file: str
    line: int
    """0: unknown."""
    image: str
    frames: int
    """Distinct call sites there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Butterfly:
    """A function between what calls it and what it calls."""

    function: Function
    """Its image is empty if several have it, and none was chosen."""
    images: tuple[str, ...]
    """Those with a function of this name."""
    whole: int
    """The weight of all stacks."""
    own: int
    total: int
    callers: FunctionTree
    """The function is outermost, its callers are below it."""
    callees: FunctionTree
    builds: tuple[BuildShare, ...]
    """In the order in which they appeared."""
    places: tuple[Place, ...]


def butterfly(
    warehouse: WarehouseReader, name: str, image: str | None = None, where: str = "true"
) -> Butterfly:
    """Return a function with its callers, its callees, and its share by build.

    Args:
        warehouse: with its stacks.
        name: the function's, as it is shown.
        image: the name of its image; None: any.
        where: an SQL condition over the view ``stacks_of_reports``.

    Raises:
        ArgumentError: the condition is invalid.
        MissingExtraError: DuckDB is not installed.
    """
    known = warehouse.query(_BUILDS, {"most": MAX_BUILDS}).to_pylist()[::-1]
    keys = ", ".join("'" + row["key"].replace("'", "''") + "'" for row in known)
    forest, chunks = warehouse.stacks(where, _PART.format(keys=keys))
    tree, last = rows_of(forest, weights_of(forest, chunks))
    nodes = nodes_of(tree, name, image)
    part = inside(tree.tree, nodes).astype(np.int64)[last]
    by_build = parts_of(forest, part, chunks, 2, 1 + len(known))
    callees = below(tree, nodes)
    first = callees.tree.depth == 1
    places = warehouse.query(_PLACES, {"name": name, "image": image}).to_pylist()
    return Butterfly(
        function=Function(name, image or ""),
        images=tuple(
            sorted({function.image for function in tree.functions if function.name == name})
        ),
        whole=int(tree.own.sum()),
        own=int(_own(tree, name, image)),
        total=int(callees.totals[first].sum()),
        callers=above(tree, nodes),
        callees=callees,
        builds=tuple(
            BuildShare(row["app"], row["build"], weight, weight + other)
            for row, (other, weight) in zip(known, by_build.T[1:].tolist(), strict=True)
            if weight + other
        ),
        places=tuple(Place(**{**row, "image": row["image"] or ""}) for row in places),
    )


def _own(tree: FunctionTree, name: str, image: str | None) -> int:
    chosen = [
        function.name == name and image in (None, function.image) for function in tree.functions
    ]
    mask = np.array(chosen, np.bool_)
    if not len(mask):
        return 0
    is_own = mask[tree.tree.frame]
    is_own[0] = False
    return int(tree.own[is_own].sum())
