"""Text for a terminal: a heading a thread, a line a frame, and how each frame was found.

Explanations go under each frame: how its caller was found, and the results of other methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import TextIO

from machtrace.model.capture import (
    BrokenInformation,
    Capture,
    FollowedRule,
    FrameExplanation,
    MethodAnswer,
    StackExplanation,
)
from machtrace.model.stack import AddressKind, Dispute, FrameTrust, Stop, StopReason, stretches
from machtrace.model.symbol import (
    CallStack,
    Certainty,
    Frame,
    FrameChain,
    InlineFrame,
    PythonFrame,
    SourceLocation,
)
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
    kind_name = "pc" if kind is AddressKind.PROGRAM_COUNTER else "return address"
    return f"{cfa}, {kind_name} {followed.caller.address.address:#x}{at}"


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


_MILLISECOND = 1_000_000
_IMAGE_WIDTH = 40
_FOLDED = 4
"""Consecutive equal frames from which on they are folded."""
_PYTHON = "Python"
"""The image's name in lines of Python functions."""
_NAMELESS_FILES = frozenset({"__init__.py", "__main__.py"})
"""Python file names that are ambiguous without their folder."""

_Explained = Sequence[FrameExplanation | None]
_STOPS = {
    StopReason.ROOT: "",
    StopReason.UNREADABLE: "the next frame's memory was not captured",
    StopReason.NO_PROGRESS: "the next frame would repeat an earlier one",
    StopReason.MISALIGNED: "the next frame is misaligned",
    StopReason.NO_RULE: "no unwind rule",
    StopReason.DEPTH_LIMIT: "too many frames",
}
_TRUST = {
    FrameTrust.CONTEXT: "",
    FrameTrust.PREWALKED: "prewalked",
    FrameTrust.CFI: "cfi",
    FrameTrust.PROLOGUE: "prologue",
    FrameTrust.COMPACT: "compact",
    FrameTrust.EXIDX: "exidx",
    FrameTrust.SIGNAL_FRAME: "signal frame",
    FrameTrust.ASYNC: "async",
    FrameTrust.FRAME_POINTER: "frame pointer",
    FrameTrust.LINK_REGISTER: "link register",
    FrameTrust.SCAN: "scan",
}


def duration(nanoseconds: int) -> str:
    """Format a short time with its unit: ``18.4 µs``."""
    if nanoseconds < _MILLISECOND:
        return f"{nanoseconds / 1_000:.1f} µs"
    return f"{nanoseconds / _MILLISECOND:.1f} ms"


def lines(
    stack: CallStack,
    *,
    pointer_size: int,
    colour: bool = False,
    explanation: StackExplanation | None = None,
) -> Iterator[str]:
    """Yield the stack's lines, its heading first, without line ends.

    ``explanation`` is of this stack; its lines go below their frames.
    """
    bold, dim, reset = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if colour else ("", "", "")
    yield f"{bold}{_heading(stack)}{reset}"
    writer = _Writer(pointer_size, bold, dim, reset)
    yield from writer.chain(stack, None if explanation is None else explanation.frames)
    rest = stack.physical_remainder
    if rest is not None:
        yield f"     {dim}the machine frames that ran it:{reset}"
        below = None if explanation is None else explanation.physical_remainder
        yield from writer.chain(rest, below)


def _heading(stack: CallStack) -> str:
    info = stack.thread
    parts = [f"Thread {info.index}"]
    if info.name:
        parts.append(f"“{printable(info.name)}”")
    parts.append(f"id {info.id}")
    if info.queue:
        parts.append(f"queue {printable(info.queue)}")
    if info.crashed:
        parts.append("crashed")
    if stack.stopped_for_ns is not None:
        parts.append(f"stopped for {duration(stack.stopped_for_ns)}")
    return "  ".join(parts)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes chains of frames."""

    pointer_size: int
    bold: str
    dim: str
    reset: str

    def chain(self, chain: FrameChain, explained: _Explained | None) -> Iterator[str]:
        """Yield the frames, and what is missing: in the middle, and at the end."""
        if chain.frames:
            yield from self._frames(chain, explained)
        complaint = _STOPS[chain.stop.reason]
        if complaint:
            where = "" if chain.stop.at is None else f" at {chain.stop.at:#x}"
            yield f"     {self.dim}incomplete: {complaint}{where}{self.reset}"

    def _frames(self, chain: FrameChain, explained: _Explained | None) -> Iterator[str]:
        dim, reset = self.dim, self.reset
        width = min(_IMAGE_WIDTH, max(_width(frame) for frame in chain.frames))
        last = len(chain.frames) + (0 if chain.gap is None else chain.gap.count) - 1
        digits = max(4, len(str(last)))
        printed = 0
        for first, frames in stretches(chain.frames, chain.gap):
            if first and chain.gap is not None:
                left_out = _counted(chain.gap.count, "frame" if frames else "more frame")
                left_out += " in between" if frames else ""
                yield f"{'…':>{digits}s}  {dim}{left_out}{reset}"
            for index, count in _runs(frames) if explained is None else _one_by_one(frames):
                frame = frames[index]
                for call in frame.inlined:
                    yield f"{first + index:{digits}d}  {self._inlined(frame, call, width)}"
                for text in self._python(frame.python, width):
                    yield f"{first + index:{digits}d}  {text}"
                yield f"{first + index:{digits}d}  {self._frame(frame, width)}"
                if count > 1:
                    same = f"the same frame {count - 1} more times"
                    yield f"{first + index + count - 1:{digits}d}  {dim}{same}{reset}"
                explanation = None if explained is None else explained[printed + index]
                if explanation is not None:
                    yield from (f"{dim}{text}{reset}" for text in explanation_lines(explanation))
            printed += len(frames)

    def _frame(self, frame: Frame, width: int) -> str:
        how = _provenance(frame)
        tail = f"  {self.dim}[{how}]{self.reset}" if how else ""
        return f"{self._where(frame, width)}  {_name(frame)}{self._place(frame.location)}{tail}"

    def _inlined(self, frame: Frame, call: InlineFrame, width: int) -> str:
        name = printable(call.name) or "?"
        tail = f"  {self.dim}[inlined]{self.reset}"
        return f"{self._where(frame, width)}  {name}{self._place(call.location)}{tail}"

    def _python(self, functions: Sequence[PythonFrame], width: int) -> Iterator[str]:
        """Yield a line for each function, without an address; recursion is folded."""
        blank = f"{_PYTHON:<{width}s}  {'':{2 + 2 * self.pointer_size}s}  "
        for function, group in groupby(functions):
            count = sum(1 for _ in group)
            name = f"{self.bold}{printable(function.name) or '?'}{self.reset}"
            text = f"{blank}{name}{self._place(function.location)}"
            if count >= _FOLDED:
                yield text
                yield f"{blank}{self.dim}the same function {count - 1} more times{self.reset}"
            else:
                yield from (text for _ in range(count))

    def _where(self, frame: Frame, width: int) -> str:
        number = f"0x{frame.address.address:0{2 * self.pointer_size}x}"
        return f"{_image(frame):<{width}s}  {self.dim}{number}{self.reset}"

    def _place(self, location: SourceLocation | None) -> str:
        if location is None:
            return ""
        line = "" if location.line is None else f":{location.line}"
        return f"  {self.dim}at {printable(_short(location.path))}{line}{self.reset}"


def _short(path: str) -> str:
    """Return the file's name, with its folder's if ambiguous otherwise."""
    folder, _, name = path.rpartition("/")
    return f"{folder.rpartition('/')[2]}/{name}" if folder and name in _NAMELESS_FILES else name


def _one_by_one(frames: Sequence[Frame]) -> Iterator[tuple[int, int]]:
    return ((index, 1) for index in range(len(frames)))


def _runs(frames: Sequence[Frame]) -> Iterator[tuple[int, int]]:
    """Yield the first frames of recursive runs with their repetitions; short runs stay apart."""
    index = 0
    for _, group in groupby(frames, key=lambda frame: (frame.address, frame.python)):
        count = sum(1 for _ in group)
        if count >= _FOLDED:
            yield index, count
        else:
            yield from ((one, 1) for one in range(index, index + count))
        index += count


def _width(frame: Frame) -> int:
    return max(len(_image(frame)), len(_PYTHON) if frame.python else 0)


def _image(frame: Frame) -> str:
    return "???" if frame.image is None else printable(frame.image.name) or "?"


def _name(frame: Frame) -> str:
    if frame.symbol is not None and frame.symbol_offset is not None:
        return f"{printable(frame.symbol.name)} + {frame.symbol_offset}"
    if frame.image is None:
        return "?"
    return f"? (image + {frame.image.offset_of(frame.address.address):#x})"


def _provenance(frame: Frame) -> str:
    parts = [_TRUST[frame.address.trust]]
    if frame.address.kind is AddressKind.PROGRAM_COUNTER and parts[0]:
        parts.append("interrupted")
    parts += [_dispute(dispute) for dispute in frame.address.disputed_by]
    if frame.certainty not in (Certainty.EXACT, Certainty.NONE):
        parts.append(frame.certainty.value)
    return ", ".join(part for part in parts if part)


def _dispute(dispute: Dispute) -> str:
    who = f"but {_TRUST[dispute.trust]}"
    if dispute.address is None:
        return f"{who} finds no caller"
    return f"{who} finds {dispute.address:#x}"


def write(report: Capture, sink: TextIO, *, colour: bool = False) -> None:
    """Write every thread, after a line that identifies the process."""
    process = report.process
    pid = "" if process.pid is None else f" [{process.pid}]"
    sink.write(
        f"{printable(process.name) or 'process'}{pid}  {process.arch.value}  "
        f"{_counted(len(report.stacks), 'thread')}  {_counted(len(report.images), 'image')}\n"
    )
    pointer_size = process.arch.pointer_size
    for stack, explanation in zip_longest(report.stacks, report.explanations):
        sink.write("\n")
        for_stack = lines(stack, pointer_size=pointer_size, colour=colour, explanation=explanation)
        sink.writelines(text + "\n" for text in for_stack)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"
