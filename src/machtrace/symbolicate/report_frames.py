"""Frames of reports with the names that files have for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from machtrace.model.json_value import Details
from machtrace.model.reported_frame import Adjustment, ReportedFrame, ReportedSymbol
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
            image, is_inline = frame[1], frame[6]
            if is_inline:
                inlined.append(frame)
                continue
            if not inlined and (image is None or tables[image] is None):
                found.append(frame)  # as half of all are: nothing is known of their images
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
        address, image, offset, adjustment, symbol, location, _, details = frame
        table = None if image is None else tables[image]
        if table is None or offset is None:
            return (frame,)
        lookup = offset - (adjustment is Adjustment.RETURN and offset > 0)
        calls = table.get(lookup, ())
        if not calls:
            return (frame,)
        self.named += 1
        if symbol is not None and not _is_called(symbol.name, calls):
            self.contradicted += 1
            details = _with_reported(details, symbol)
        outer = calls[-1]
        start = outer.start
        name = ReportedSymbol(outer.name, None if start is None else offset - start, outer.source)
        if len(calls) == 1:
            place = outer.location or location
            return (
                ReportedFrame(
                    address,
                    image,
                    offset,
                    adjustment,
                    name,
                    place,
                    is_inline=False,
                    details=details,
                ),
            )
        found = [
            ReportedFrame(
                address, image, offset, adjustment, call.symbol, call.location, is_inline=True
            )
            for call in calls[:-1]
        ]
        place = outer.location
        found.append(
            ReportedFrame(
                address, image, offset, adjustment, name, place, is_inline=False, details=details
            )
        )
        return tuple(found)

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
