"""BSBacktraceLogger's text, which many iOS hang monitors print and parse.

``Backtrace of Thread %u:`` and, for each frame, ``%-30s  0x%08lx %s + %lu``. Without a symbol, its
name is the image's base address as ``0x%lx``; without an image, its name is ``0x%016lx`` of zero
(``bs_logBacktraceEntry`` in ``BSBacktraceLogger.m``). That logger ends a stack at 50 frames; here a
line states how many are missing from the middle of a deep one. A call inlined into a frame has a
line of its own before it, with ``[inlined]`` behind the name and no offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from machtrace.model.capture import Capture
from machtrace.model.stack import stretches
from machtrace.model.symbol import CallStack, Frame
from machtrace.model.text import INLINED, printable


def lines(stack: CallStack, *, pointer_size: int = 8) -> Iterator[str]:
    """Yield the stack's lines, its heading first, without line ends."""
    yield f"Backtrace of Thread {stack.thread.id}:"
    for first, frames in stretches(stack.frames, stack.gap):
        if first and stack.gap is not None:
            yield f"... {stack.gap.count} frames not shown"
        for frame in frames:
            for call in frame.inlined:
                name = printable(call.name) or "???"
                yield _line(frame, pointer_size, f"{name}{INLINED} + 0")
            yield _line(frame, pointer_size)


def _line(frame: Frame, pointer_size: int, call: str | None = None) -> str:
    """Format a frame, or a call inlined into it."""
    address = frame.address.address
    base = 0 if frame.image is None else frame.image.load_address
    name = f"0x{0:0{2 * pointer_size}x}" if frame.image is None else printable(frame.image.name)
    if call is not None:
        return f"{name:<30s}  0x{address:08x} {call}"
    if frame.symbol is not None and frame.symbol.is_named:
        symbol, offset = printable(frame.symbol.name), frame.symbol_offset or 0
    else:
        symbol, offset = f"0x{base:x}", address - base
    return f"{name:<30s}  0x{address:08x} {symbol} + {offset}"


def write(report: Capture, sink: TextIO) -> None:
    """Write every thread, after the heading that ``bs_backtraceOfAllThread`` writes."""
    report = report.of_each_thread
    sink.write(f"Call Backtrace of {len(report.stacks)} threads:\n")
    for stack in report.stacks:
        for_stack = lines(stack, pointer_size=report.process.arch.pointer_size)
        sink.writelines(text + "\n" for text in for_stack)
        sink.write("\n")
