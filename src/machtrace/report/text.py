"""For people on a terminal: a heading a thread, a line a frame, and how each frame is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TextIO

from machtrace.model.report import Report
from machtrace.model.stack import AddressKind, Dispute, FrameTrust, StopReason, stretches
from machtrace.model.symbol import CallStack, Certainty, Frame, FrameChain
from machtrace.report.printable import printable

_MILLISECOND = 1_000_000
_IMAGE_WIDTH = 40
_FOLDED = 4
"""Frames alike that are shown as one."""

_STOPS = {
    StopReason.ROOT: "",
    StopReason.UNREADABLE: "the next frame's memory was not captured",
    StopReason.NO_PROGRESS: "the next frame would be this one or an earlier one again",
    StopReason.MISALIGNED: "the next frame's place is misaligned",
    StopReason.NO_RULE: "nothing says how to go on",
    StopReason.NOT_CODE: "the return address is in no image",
    StopReason.DEPTH_LIMIT: "more frames than a stack can have",
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
    """A short time with its unit: ``18.4 µs``."""
    if nanoseconds < _MILLISECOND:
        return f"{nanoseconds / 1_000:.1f} µs"
    return f"{nanoseconds / _MILLISECOND:.1f} ms"


def lines(stack: CallStack, *, pointer_size: int, colour: bool = False) -> Iterator[str]:
    """The stack's lines, its heading first, without line ends."""
    bold, dim, reset = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if colour else ("", "", "")
    yield f"{bold}{_heading(stack)}{reset}"
    yield from _chain(stack, pointer_size, dim, reset)
    if stack.physical_remainder is not None:
        yield f"     {dim}the machine frames that ran it:{reset}"
        yield from _chain(stack.physical_remainder, pointer_size, dim, reset)


def _chain(chain: FrameChain, pointer_size: int, dim: str, reset: str) -> Iterator[str]:
    """The frames, and what is missing of them: in the middle, and at the end."""
    if chain.frames:
        yield from _frames(chain, pointer_size, dim, reset)
    complaint = _STOPS[chain.stop.reason]
    if complaint:
        where = "" if chain.stop.at is None else f" at {chain.stop.at:#x}"
        yield f"     {dim}incomplete: {complaint}{where}{reset}"


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


def _frames(chain: FrameChain, pointer_size: int, dim: str, reset: str) -> Iterator[str]:
    width = min(_IMAGE_WIDTH, max(len(_image(frame)) for frame in chain.frames))
    last = len(chain.frames) + (0 if chain.gap is None else chain.gap.count) - 1
    digits = max(4, len(str(last)))
    for first, frames in stretches(chain.frames, chain.gap):
        if first and chain.gap is not None:
            between = _counted(chain.gap.count, "frame")
            yield f"{'…':>{digits}s}  {dim}{between} in between{reset}"
        for index, count in _runs(frames):
            frame = frames[index]
            how = _provenance(frame)
            tail = f"  {dim}[{how}]{reset}" if how else ""
            address = f"{dim}0x{frame.address.address:0{2 * pointer_size}x}{reset}"
            number = f"{first + index:{digits}d}"
            yield f"{number}  {_image(frame):<{width}s}  {address}  {_name(frame)}{tail}"
            if count > 1:
                same = f"the same frame {count - 1} more times"
                yield f"{first + index + count - 1:{digits}d}  {dim}{same}{reset}"


def _runs(frames: Sequence[Frame]) -> Iterator[tuple[int, int]]:
    """Where frames begin that recursion repeats, and how often; short runs stay apart."""
    index = 0
    for _, group in groupby(frames, key=lambda frame: frame.address):
        count = sum(1 for _ in group)
        if count >= _FOLDED:
            yield index, count
        else:
            yield from ((one, 1) for one in range(index, index + count))
        index += count


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
    if frame.certainty in (Certainty.EXPORT, Certainty.STUB):
        parts.append(frame.certainty.value)
    return ", ".join(part for part in parts if part)


def _dispute(dispute: Dispute) -> str:
    who = f"but {_TRUST[dispute.trust]}"
    if dispute.address is None:
        return f"{who} finds no caller"
    return f"{who} says {dispute.address:#x}"


def write(report: Report, sink: TextIO, *, colour: bool = False) -> None:
    """Every thread, after a line that says which process this is."""
    process = report.process
    pid = "" if process.pid is None else f" [{process.pid}]"
    sink.write(
        f"{printable(process.name) or 'process'}{pid}  {process.arch.value}  "
        f"{_counted(len(report.stacks), 'thread')}  {_counted(len(report.images), 'image')}\n"
    )
    pointer_size = process.arch.pointer_size
    for stack in report.stacks:
        sink.write("\n")
        for_stack = lines(stack, pointer_size=pointer_size, colour=colour)
        sink.writelines(text + "\n" for text in for_stack)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"
