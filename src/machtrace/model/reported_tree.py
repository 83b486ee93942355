"""Sampled stacks as reports have them: merged into trees, with counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from machtrace.model.json_value import Details
from machtrace.model.reported_frame import ReportedFrame


class SampledNode(NamedTuple):
    """A frame of a tree, and how many samples went through it."""

    parent: int | None
    """The index of the frame that called it, which is smaller than its own; None for a root."""
    samples: int
    frame: ReportedFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTree:
    """The samples of one thread, or of all: callers are parents, unless it is inverted.

    The nodes are in one tuple, parents before children and siblings in the report's order, so that
    trees of any depth can be read, compared and written without recursion.
    """

    nodes: tuple[SampledNode, ...]
    thread: int | None = None
    """System-wide id; None where the tree is of all threads, or the report has none."""
    name: str | None = None
    """Of the thread."""
    queue: str | None = None
    count: int | None = None
    """All samples, where the report says so apart from the roots' counts."""
    is_attributed: bool = False
    """Whether the report is about this thread."""
    is_inverted: bool = False
    """Whether roots are innermost frames, and parents what their children called: such a tree stays
    as it is, for to turn it round could take the square of its size."""
    details: Details = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, node in enumerate(self.nodes):
            if node.parent is not None and not 0 <= node.parent < index:
                msg = f"node {index} has the parent {node.parent}"
                raise ValueError(msg)

    def depths(self) -> Iterator[int]:
        """How many callers each node has, in order."""
        depths: list[int] = []
        for node in self.nodes:
            depths.append(0 if node.parent is None else depths[node.parent] + 1)
            yield depths[-1]
