"""lldb's ``bt all``, which people who debug on a Mac read every day.

The lines follow lldb's default ``thread-format`` and ``frame-format`` settings. The selected
thread, marked with ``*``, is the crashed one, else the first with a cause, else the first. lldb
prints a deep stack in full; here a line states how many frames are missing from the middle, and the
others keep their numbers.
Inlined calls are frames of their own, with the address of the function that they are in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from machtrace.model.capture import Capture
from machtrace.model.image import BinaryImage
from machtrace.model.stack import stretches
from machtrace.model.symbol import CallStack, Frame, SourceLocation, Symbol
from machtrace.model.text import printable


def lines(
    stack: CallStack, *, selected: bool, pointer_size: int = 8, is_unique: bool = False
) -> Iterator[str]:
    """Yield the stack's lines, its heading first, without line ends.

    With ``is_unique`` the heading lists the numbers of all threads with the stack.
    """
    if is_unique:
        threads = (stack.thread, *stack.others)
        yield f"{len(threads)} thread(s) {''.join(f'#{thread.index} ' for thread in threads)}"
    else:
        yield ("* " if selected else "  ") + _heading(stack)
    index = 0
    for first, frames in stretches(stack.frames, stack.gap):
        if first and stack.gap is not None:
            yield f"    ... {stack.gap.count} frames not shown"
            index += stack.gap.count
        for frame in frames:
            for text in _calls(frame, pointer_size):
                mark = "*" if selected and index == 0 else " "
                yield f"  {mark} frame #{index}: {text}"
                index += 1


def _heading(stack: CallStack) -> str:
    parts = [f"thread #{stack.thread.index}"]
    if stack.thread.name:
        parts.append(f"name = '{printable(stack.thread.name)}'")
    if stack.thread.queue:
        parts.append(f"queue = '{printable(stack.thread.queue)}'")
    if stack.cause is not None:
        parts.append(f"stop reason = {printable(stack.cause.lldb_text)}")
    return ", ".join(parts)


def _calls(frame: Frame, pointer_size: int) -> Iterator[str]:
    """Yield inlined calls or Python functions, innermost first, and their holder."""
    text = f"0x{frame.address.address:0{2 * pointer_size}x}"
    if frame.image is not None:
        text += f" {printable(frame.image.name)}"
        if frame.symbol is not None:
            text += f"`{_symbol(frame.symbol, frame.image)}"
    elif frame.symbol is not None and frame.symbol.is_named:
        text += f" `{printable(frame.symbol.name)}"  # a report's symbol may be in no image
    for call in frame.inlined:
        yield f"{text} [inlined] {printable(call.name) or '?'}{_place(call.location)}"
    for function in frame.python:
        yield f"{text} [python] {printable(function.name) or '?'}{_place(function.location)}"
    offset = frame.symbol_offset
    place = _place(frame.location)
    yield text + (place or (f" + {offset}" if offset else ""))


def _place(location: SourceLocation | None) -> str:
    """Return the source location, as far as known; columns of lines often are not."""
    if location is None:
        return ""
    parts = (printable(location.path.rpartition("/")[2]), location.line, location.column)
    return " at " + ":".join(str(part) for part in parts if part is not None)


def _symbol(symbol: Symbol, image: BinaryImage) -> str:
    if symbol.is_named:
        return printable(symbol.name)
    # lldb 21 and later number them by file address; earlier ones consecutively.
    return f"___lldb_unnamed_symbol_{image.header_svma + symbol.offset:x}"


def write_unique(report: Capture, sink: TextIO) -> None:
    """Write every stack of a :attr:`~machtrace.model.capture.Capture.unique` capture.

    As lldb's ``thread backtrace unique`` does, but for the order.
    """
    size = report.process.arch.pointer_size
    for stack in report.stacks:
        stack_lines = lines(stack, selected=False, pointer_size=size, is_unique=True)
        sink.writelines(text + "\n" for text in stack_lines)


def write(report: Capture, sink: TextIO) -> None:
    """Write every thread of the report."""
    report = report.of_each_thread
    chosen = next((stack for stack in report.stacks if stack.thread.crashed), None)
    if chosen is None and report.stacks:
        stopped = (stack for stack in report.stacks if stack.cause is not None)
        chosen = next(stopped, report.stacks[0])
    for stack in report.stacks:
        sink.writelines(
            text + "\n"
            for text in lines(
                stack, selected=stack is chosen, pointer_size=report.process.arch.pointer_size
            )
        )
