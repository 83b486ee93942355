"""Stacks of functions, made from stacks of frames: what was inlined has a place of its own."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from machtrace.render.functions import FunctionCall, FunctionTable
from machtrace.model.profile import OUTERMOST, StackTable


@dataclass(frozen=True, slots=True)
class FrameCall:
    """One of the functions that are in a frame."""

    frame: int
    """An index of the profile's frames."""
    call: FunctionCall


@dataclass(frozen=True, slots=True, eq=False)
class CallStacks:
    """Distinct stacks of calls."""

    calls: tuple[FrameCall, ...]
    """By frame, and those of a frame outermost first."""
    stacks: StackTable
    """Its frames are indices of :attr:`calls`."""
    rows: array[int]
    """Of each stack of frames, by its row, the row of the same stack here."""


def call_stacks(stacks: StackTable, functions: FunctionTable) -> CallStacks:
    """The stacks of calls for all ``stacks`` of frames."""
    calls: list[FrameCall] = []
    of_frame: list[range] = []
    for frame, in_frame in enumerate(functions.calls):
        of_frame.append(range(len(calls), len(calls) + len(in_frame)))
        calls += [FrameCall(frame, call) for call in in_frame]
    callers, found, rows = array("i"), array("i"), array("i")
    for caller, frame in zip(stacks.callers, stacks.frames, strict=True):
        at = OUTERMOST if caller == OUTERMOST else rows[caller]
        for number in of_frame[frame]:
            callers.append(at)
            found.append(number)
            at = len(callers) - 1
        rows.append(at)
    return CallStacks(tuple(calls), StackTable(callers, found), rows)
