"""Frames of reports with the names that files have for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from machtrace.model.json_value import NO_DETAILS, Details
from machtrace.model.reported_frame import Adjustment, ReportedFrame, ReportedSymbol
from machtrace.model.reported_tree import SampledNode, SampledTree
from machtrace.symbolizer.report_names import Calls, ReportCall

Table = Mapping[int, Calls]
"""What is at each offset of an image that frames look up."""

_RETURN = Adjustment.RETURN
_new = tuple.__new__


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
            if not inlined:  # as nearly always
                table = None if image is None else tables[image]
                if table is None:
                    found.append(frame)
                else:
                    found += self._frame(frame, table)
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
    ) -> Sequence[ReportedFrame]:
        """A frame of the machine and, before it, the calls that are inlined there."""
        table = None if frame.image is None else tables[frame.image]
        return (frame,) if table is None else self._frame(frame, table)

    def _frame(self, frame: ReportedFrame, table: Table) -> Sequence[ReportedFrame]:
        # Tuples are made as such, here: a call of their class takes twice as long.
        address, image, offset, adjustment, symbol, location, _, details = frame
        if offset is None:
            return (frame,)
        calls = table.get(offset - (adjustment is _RETURN and offset > 0))
        if not calls:
            return (frame,)
        self.named += 1
        name, start, source, place, _, _ = calls[-1]
        if symbol is not None and not _is_called(symbol.name, calls):
            self.contradicted += 1
            details = _with_reported(details, symbol)
        symbol = _new(ReportedSymbol, (name, None if start is None else offset - start, source))
        if len(calls) == 1:
            row = (address, image, offset, adjustment, symbol, place or location, False, details)
            return (_new(ReportedFrame, row),)
        found = [
            _new(
                ReportedFrame,
                (address, image, offset, adjustment, call[5], call[3], True, NO_DETAILS),
            )
            for call in calls
        ]
        row = (address, image, offset, adjustment, symbol, place, False, details)
        found[-1] = _new(ReportedFrame, row)
        return found

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
