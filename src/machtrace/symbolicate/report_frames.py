"""Frames of reports with the names that files have for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from machtrace.model.json_value import Details
from machtrace.model.reported_frame import ReportedFrame, ReportedSymbol
from machtrace.model.reported_tree import SampledNode, SampledTree
from machtrace.symbolicate.report_names import Calls, ReportCall

Table = Mapping[int, Calls]
"""What is at each offset of an image that frames look up."""


class FrameNamer:
    """Names the frames of one report."""

    def __init__(self) -> None:
        self.named = 0
        """Frames that got a name."""
        self.contradicted = 0
        """Frames among those that the report calls otherwise."""

    def stack(
        self, frames: Iterable[ReportedFrame], tables: Sequence[Table | None]
    ) -> tuple[ReportedFrame, ...]:
        """The frames of a thread, calls that are inlined into each before it.

        Args:
            frames: innermost first.
            tables: for each image of the report what is known, or None.
        """
        found: list[ReportedFrame] = []
        inlined: list[ReportedFrame] = []  # as the report has them
        for frame in frames:
            if frame.is_inline:
                inlined.append(frame)
                continue
            named = self.frame(frame, tables)
            if len(named) <= len(inlined):  # the report knew of more
                found += inlined
                found.append(named[-1])
            else:
                found += named
            inlined = []
        return (*found, *inlined)

    def frame(
        self, frame: ReportedFrame, tables: Sequence[Table | None]
    ) -> tuple[ReportedFrame, ...]:
        """A frame of the machine and, before it, the calls that are inlined there."""
        table = None if frame.image is None else tables[frame.image]
        if table is None:
            return (frame,)
        lookup = frame.lookup
        calls = () if lookup is None else table.get(lookup, ())
        if not calls:
            return (frame,)
        self.named += 1
        details = frame.details
        if frame.symbol is not None and not _is_called(frame.symbol.name, calls):
            self.contradicted += 1
            details = _with_reported(details, frame.symbol)
        outer = calls[-1]
        into = None
        if outer.start is not None and frame.offset is not None:
            into = frame.offset - outer.start
        machine = ReportedFrame(
            frame.address,
            frame.image,
            frame.offset,
            frame.adjustment,
            ReportedSymbol(outer.name, into, outer.source),
            outer.location or (frame.location if len(calls) == 1 else None),
            is_inline=False,
            details=details,
        )
        if len(calls) == 1:
            return (machine,)
        return (*(_inlined(frame, call) for call in calls[:-1]), machine)

    def tree(self, tree: SampledTree, tables: Sequence[Table | None]) -> tuple[SampledNode, ...]:
        """The nodes of a tree; what is inlined into a node is below it, and above its children."""
        nodes: list[SampledNode] = []
        places: list[int] = []  # where each node's innermost call is among the new ones
        for node in tree.nodes:
            parent = None if node.parent is None else places[node.parent]
            frames = (node.frame,) if node.frame.is_inline else self.frame(node.frame, tables)
            for frame in reversed(frames):
                nodes.append(SampledNode(parent, node.samples, frame))
                parent = len(nodes) - 1
            places.append(len(nodes) - 1)
        return tuple(nodes)


def _is_called(name: str, calls: Sequence[ReportCall]) -> bool:
    spellings = {name, name.removeprefix("_"), f"_{name}"}
    return any(call.name in spellings or not spellings.isdisjoint(call.others) for call in calls)


def _with_reported(details: Details, symbol: ReportedSymbol) -> Details:
    into = "" if symbol.offset is None else f" + {symbol.offset}"
    return {**details, "reported symbol": f"{symbol.name}{into}"}


def _inlined(frame: ReportedFrame, call: ReportCall) -> ReportedFrame:
    return ReportedFrame(
        frame.address,
        frame.image,
        frame.offset,
        frame.adjustment,
        ReportedSymbol(call.name, None, call.source),
        call.location,
        is_inline=True,
    )
