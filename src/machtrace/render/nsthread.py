"""``+[NSThread callStackSymbols]``: one line a frame, the innermost first.

The format is that of ``backtrace_symbols`` in Apple's Libc (``gen/backtrace.c``), which Foundation
calls: ``%-4d%-35s 0x%016lx %s + %lu``, the address in eight digits if pointers have four bytes.
Names are not demangled. A frame without a symbol has its image's name and the offset from the
image's header; one in no image has ``???`` and ``0x0`` with the whole address as offset. So has one
whose image is known by its name alone, which stands in place of ``???``. Libc ends
a stack at the size of its caller's buffer; here a line states how many frames are missing from the
middle of a deep one, and the others keep their numbers. A call inlined into a frame has a line of
its own before it, numbered as in Apple's reports, with ``[inlined]`` behind the name and no offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from machtrace.model.capture import Capture
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.stack import stretches
from machtrace.model.symbol import CallStack, Frame, InlineFrame
from machtrace.model.text import INLINED, printable


def lines(stack: CallStack, *, pointer_size: int = 8) -> Iterator[str]:
    """Yield the stack's lines, without line ends."""
    inlined = 0
    for first, frames in stretches(stack.frames, stack.gap):
        if first and stack.gap is not None:
            yield f"... {stack.gap.count} frames not shown"
        index = first + inlined
        for frame in frames:
            for call in frame.inlined:
                yield _inlined(index, call, frame, pointer_size)
                index += 1
            yield line(index, frame, pointer_size=pointer_size)
            index += 1
            inlined += len(frame.inlined)


def line(index: int, frame: Frame, *, pointer_size: int = 8) -> str:
    """Format one frame as ``callStackSymbols`` prints it."""
    address = frame.address.address
    image = printable(frame.image.name) if frame.image is not None else "???"
    if frame.symbol is not None and frame.symbol.is_named:
        name = _spelt(frame.symbol.name, frame.symbol.linkage_name, frame.image)
        symbol, offset = printable(name), frame.symbol_offset or 0
    elif frame.image_offset is not None:
        symbol, offset = image, frame.image_offset
    else:
        symbol, offset = "0x0", address
    return f"{index:<4d}{image:<35s} 0x{address:0{2 * pointer_size}x} {symbol} + {offset}"


def _inlined(index: int, call: InlineFrame, frame: Frame, pointer_size: int) -> str:
    """Format a call inlined into a frame."""
    address = frame.address.address
    image = printable(frame.image.name) if frame.image is not None else "???"
    name = printable(_spelt(call.name, call.linkage_name, frame.image)) or "???"
    return f"{index:<4d}{image:<35s} 0x{address:0{2 * pointer_size}x} {name}{INLINED} + 0"


def _spelt(name: str, linkage_name: str, image: BinaryImage | None) -> str:
    """Return the mangled name; ``dladdr`` drops Mach-O's underscore."""
    if name.endswith(linkage_name) or not linkage_name:
        return name
    is_macho = image is not None and image.format is ImageFormat.MACHO
    return linkage_name.removeprefix("_") if is_macho else linkage_name


def write(report: Capture, sink: TextIO) -> None:
    """Write every thread's lines, separated by empty lines."""
    report = report.of_each_thread
    for number, stack in enumerate(report.stacks):
        if number:
            sink.write("\n")
        for_stack = lines(stack, pointer_size=report.process.arch.pointer_size)
        sink.writelines(text + "\n" for text in for_stack)
