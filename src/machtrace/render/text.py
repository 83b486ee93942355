"""Text for a terminal: a heading a thread, a line a frame, and how each frame was found.

Explanations go under each frame: how its caller was found, and the results of other methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TextIO

from machtrace.model.capture import (
    BrokenInformation,
    Capture,
    FollowedRule,
    FrameExplanation,
    MethodAnswer,
    StackExplanation,
)
from machtrace.model.stack import AddressKind, FrameTrust, Stop, StopReason
from machtrace.model.symbol import CallStack, Frame
from machtrace.model.text import COLOUR, PLAIN, printable

METHODS = {
    FrameTrust.CONTEXT: "registers",
    FrameTrust.PREWALKED: "prewalked",
    FrameTrust.CFI: "call-frame information",
    FrameTrust.PROLOGUE: "instruction analysis",
    FrameTrust.COMPACT: "compact unwind",
    FrameTrust.EXIDX: "exception tables",
    FrameTrust.PCSP: "Go's table",
    FrameTrust.SIGNAL_FRAME: "signal frame",
    FrameTrust.ASYNC: "continuation",
    FrameTrust.FRAME_POINTER: "frame pointer",
    FrameTrust.LINK_REGISTER: "link register",
    FrameTrust.SCAN: "scan",
}
STOPS = {
    StopReason.ROOT: "no caller",
    StopReason.UNREADABLE: "memory that was not captured",
    StopReason.NO_PROGRESS: "no further",
    StopReason.MISALIGNED: "a misaligned frame",
    StopReason.NO_RULE: "an unknown register",
    StopReason.DEPTH_LIMIT: "too many frames",
}
_METHOD = " " * 8
_DETAIL = " " * 12


def explanation_lines(explained: FrameExplanation) -> Iterator[str]:
    """Yield the lines below a frame's own, without line ends and colours.

    First the method that was followed, marked with an arrow, then the others.
    """
    chosen = explained.chosen
    yield f"{_METHOD}→ {METHODS[chosen.method]}: {explained.reason}"
    if isinstance(chosen.outcome, FollowedRule):
        yield f"{_DETAIL}{chosen.outcome.rule}"
        yield f"{_DETAIL}{_places(chosen.outcome)}"
    if chosen.origin:
        yield f"{_DETAIL}{printable(chosen.origin)}"
    for answer in explained.others:
        yield f"{_METHOD}  {METHODS[answer.method]}: {_verdict(explained, answer)}"
        if isinstance(answer.outcome, FollowedRule):
            if not _is_same_rule(explained, answer):
                yield f"{_DETAIL}{answer.outcome.rule}"
            if answer.origin:
                yield f"{_DETAIL}{printable(answer.origin)}"


def _places(followed: FollowedRule) -> str:
    cfa = "cfa not known" if followed.cfa is None else f"cfa {followed.cfa:#x}"
    at = "" if followed.return_address_at is None else f" at {followed.return_address_at:#x}"
    if isinstance(followed.caller, Stop):
        return f"{cfa}, return address{at}: {_stop(followed.caller)}"
    kind = followed.caller.address.kind
    kind_name = "pc" if kind is AddressKind.PROGRAM_COUNTER else "return address"
    return f"{cfa}, {kind_name} {followed.caller.address.address:#x}{at}"


def _is_same_rule(explained: FrameExplanation, answer: MethodAnswer) -> bool:
    mine, its = explained.chosen.outcome, answer.outcome
    if not isinstance(mine, FollowedRule) or not isinstance(its, FollowedRule):
        return False
    return mine.rule == its.rule


def _verdict(explained: FrameExplanation, answer: MethodAnswer) -> str:
    outcome = answer.outcome
    if outcome is None:
        return "nothing"
    if isinstance(outcome, BrokenInformation):
        return f"cannot be used: {printable(outcome.error)}"
    if _is_same_rule(explained, answer):
        verdict = "the same rule"
    elif explained.agrees(answer):
        verdict = "the same caller"
    elif isinstance(outcome.caller, Stop):
        verdict = _stop(outcome.caller)
    else:
        verdict = _caller(outcome.caller)
    return verdict if answer.claims else f"{verdict}, which it does not claim here"


def _caller(frame: Frame) -> str:
    text = f"{frame.address.address:#x}"
    if frame.image is None:
        return f"{text}, in no image"
    if frame.symbol is None or frame.symbol_offset is None:
        return f"{text} in {printable(frame.image.name)}"
    return f"{text} {printable(frame.symbol.name)} + {frame.symbol_offset}"


def _stop(stop: Stop) -> str:
    where = "" if stop.at is None else f" at {stop.at:#x}"
    return f"{STOPS[stop.reason]}{where}"


def lines(
    stack: CallStack,
    *,
    pointer_size: int,
    colour: bool = False,
    explanation: StackExplanation | None = None,
    registers: bool | None = None,
) -> Iterator[str]:
    """Yield the stack's lines, its heading first, without line ends.

    ``explanation`` is of this stack; its lines go below their frames. ``registers``: see
    :meth:`~machtrace.model.symbol.CallStack.text_lines`.
    """
    yield from stack.text_lines(
        pointer_size=pointer_size,
        style=COLOUR if colour else PLAIN,
        details=None if explanation is None else _details(explanation.frames),
        remainder_details=None if explanation is None else _details(explanation.physical_remainder),
        with_registers=registers,
    )


def _details(explained: Sequence[FrameExplanation | None]) -> list[tuple[str, ...]]:
    return [() if frame is None else tuple(explanation_lines(frame)) for frame in explained]


def write(
    report: Capture, sink: TextIO, *, colour: bool = False, registers: bool | None = None
) -> None:
    """Write every thread, after a line that identifies the process."""
    sink.write(f"{report.heading}\n")
    pointer_size = report.process.arch.pointer_size
    for stack, explanation in zip_longest(report.stacks, report.explanations):
        sink.write("\n")
        for_stack = lines(
            stack,
            pointer_size=pointer_size,
            colour=colour,
            explanation=explanation,
            registers=registers,
        )
        sink.writelines(text + "\n" for text in for_stack)
    sink.writelines(f"\n{line}\n" for line in report.native_lines)
