"""How many stored frames have names, by build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.reports.analysis.frame_owner import FrameOwner
from machtrace.server.pages.filters import Build, quoted
from machtrace.warehouse.segment import Segment, numbers
from machtrace.warehouse.warehouse import Warehouse

_BUILDS = 12
_WEIGHTS = """
SELECT segment, node, app, build, count(*) AS stacks FROM stacks_of_reports
WHERE role != 'subject' AND (app, build) IN ({pairs}) GROUP BY ALL
"""


class Coverage(NamedTuple):
    """Frames of the stacks of a build, each as often as stacks have it."""

    app: str
    build: str
    frames: int
    named: int
    app_frames: int
    """Frames in images of the app."""
    app_named: int
    located: int
    """Frames with a file and a line."""


def coverage(warehouse: Warehouse, known: Sequence[Build]) -> list[Coverage]:
    """Return the shares of the newest builds, the newest first.

    Args:
        warehouse: where the stacks are.
        known: all builds, in the order in which they appeared.
    """
    newest = list(dict.fromkeys((row.app or "", row.build or "") for row in reversed(known)))
    newest = newest[:_BUILDS]
    if not newest:
        return []
    pairs = ", ".join(f"({quoted(app)}, {quoted(build)})" for app, build in newest)
    rows = warehouse.query(_WEIGHTS.format(pairs=pairs))
    places = {pair: at for at, pair in enumerate(newest)}
    number = np.array(
        [
            places[pair]
            for pair in zip(rows["app"].to_pylist(), rows["build"].to_pylist(), strict=True)
        ],
        np.int64,
    )
    segments, nodes, stacks = (numbers(rows, name) for name in ("segment", "node", "stacks"))
    sums = np.zeros((len(newest), 5), np.int64)
    for each in np.unique(segments).tolist():
        segment = warehouse.stacks_of(each)
        masks = _masks(segment)
        for at in np.unique(number[segments == each]).tolist():
            chosen = (segments == each) & (number == at)
            own = np.bincount(nodes[chosen], stacks[chosen], len(segment.tree)).astype(np.int64)
            totals = segment.tree.totals(own)[1:]
            sums[at] += [int(totals[mask[segment.tree.frame[1:]]].sum()) for mask in masks]
    return [Coverage(*pair, *own) for pair, own in zip(newest, sums.tolist(), strict=True)]


def _masks(segment: Segment) -> list[npt.NDArray[np.bool_]]:
    """Return by frame whether it counts as each of the numbers of :class:`Coverage`."""
    count = segment.frames.num_rows
    frames = numbers(segment.names, "frame")
    named, located = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    named[frames] = True
    located[frames[numbers(segment.names, "line") > 0]] = True
    owners = np.array([*segment.images["owner"].to_pylist(), ""], object)
    is_app = owners[numbers(segment.frames, "image")] == FrameOwner.APP.value
    return [np.ones(count, np.bool_), named, is_app, is_app & named, located]
