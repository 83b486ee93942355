"""An explanation as text: under each frame how its caller was found, and what else was known."""

from __future__ import annotations

from collections.abc import Iterator

from machtrace.model.explanation import (
    BrokenInformation,
    FollowedRule,
    FrameExplanation,
    MethodAnswer,
)
from machtrace.model.stack import AddressKind, FrameTrust, Stop, StopReason
from machtrace.model.symbol import Frame
from machtrace.render.printable import printable

METHODS = {
    FrameTrust.CONTEXT: "registers",
    FrameTrust.PREWALKED: "prewalked",
    FrameTrust.CFI: "call-frame information",
    FrameTrust.PROLOGUE: "instruction analysis",
    FrameTrust.COMPACT: "compact unwind",
    FrameTrust.EXIDX: "exception tables",
    FrameTrust.SIGNAL_FRAME: "signal frame",
    FrameTrust.ASYNC: "continuation",
    FrameTrust.FRAME_POINTER: "frame pointer",
    FrameTrust.LINK_REGISTER: "link register",
    FrameTrust.SCAN: "scan",
}
STOPS = {
    StopReason.ROOT: "nobody called",
    StopReason.UNREADABLE: "memory that was not captured",
    StopReason.NO_PROGRESS: "no further",
    StopReason.MISALIGNED: "a misaligned frame",
    StopReason.NO_RULE: "a register that is not known",
    StopReason.DEPTH_LIMIT: "more frames than a stack can have",
}
_METHOD = " " * 8
_DETAIL = " " * 12


def explanation_lines(explained: FrameExplanation) -> Iterator[str]:
    """Lines to go below the frame's own, without line ends and colours.

    First the method that was followed, with an arrow before it, then the others.
    """
    chosen = explained.chosen
    yield f"{_METHOD}→ {METHODS[chosen.method]}: {explained.reason}"
    if isinstance(chosen.outcome, FollowedRule):
        yield f"{_DETAIL}{chosen.outcome.rule}"
        yield f"{_DETAIL}{_places(chosen.outcome)}"
    if chosen.origin:
        yield f"{_DETAIL}{printable(chosen.origin)}"
    for answer in explained.others:
        yield f"{_METHOD}  {METHODS[answer.method]}: {_said(explained, answer)}"
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
    what = "pc" if kind is AddressKind.PROGRAM_COUNTER else "return address"
    return f"{cfa}, {what} {followed.caller.address.address:#x}{at}"


def _is_same_rule(explained: FrameExplanation, answer: MethodAnswer) -> bool:
    mine, its = explained.chosen.outcome, answer.outcome
    if not isinstance(mine, FollowedRule) or not isinstance(its, FollowedRule):
        return False
    return mine.rule == its.rule


def _said(explained: FrameExplanation, answer: MethodAnswer) -> str:
    outcome = answer.outcome
    if outcome is None:
        return "nothing"
    if isinstance(outcome, BrokenInformation):
        return f"cannot be used: {printable(outcome.error)}"
    if _is_same_rule(explained, answer):
        said = "the same rule"
    elif explained.agrees(answer):
        said = "the same caller"
    elif isinstance(outcome.caller, Stop):
        said = _stop(outcome.caller)
    else:
        said = _caller(outcome.caller)
    return said if answer.claims else f"{said}, which it does not claim here"


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
