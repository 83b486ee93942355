"""Named frames and stacks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum

from machtrace.frozen import dataclass
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.cause import Cause
from machtrace.model.image import BinaryImage
from machtrace.model.registers import register_rows
from machtrace.model.snapshot import ThreadInfo
from machtrace.model.stack import MACHINE_FRAMES, FrameAddress, Gap, Stop, address_row, chain_text
from machtrace.model.text import (
    PLAIN,
    Document,
    FrameText,
    Row,
    Style,
    counted,
    folded_rows,
    numbered,
    printable,
    ranges,
    short_location,
)


class Certainty(Enum):
    """The certainty of a name, best first."""

    EXACT = "exact"
    """A symbol at the start of the function that contains the address.

    In an image without local symbols, a name is exact only if the linker lists functions
    (LC_FUNCTION_STARTS), a table states that one starts there, and unwind information describes it:
    linkers omit initialisers, which are found by other means, and assembly code, which has no
    unwind information.
    """
    EXPORT = "export"
    """An exported symbol before the address in a Mach-O image without local symbols: a nameless
    function may be in between."""
    OBJC = "objc"
    """An Objective-C method, from the class's or category's list of methods."""
    RTTI = "rtti"
    """A C++ virtual method, from the vtable of the class that its type information names."""
    SWIFT = "swift"
    """A Swift function, from the metadata of a type."""
    PCLNTAB = "pclntab"
    """A Go function, from the table of Go's own tracebacks."""
    STUB = "stub"
    """A linkage stub, named after the function that it calls."""
    NONE = "none"
    """No name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A function.

    A function without a name is called ``unnamed_`` and its offset in hexadecimal digits: the same
    in every process with the image, so that such functions can be distinguished and counted. Its
    certainty is ``NONE``.
    """

    name: str
    """The name for people: demangled, else without the underscore of Mach-O's tables."""
    linkage_name: str
    """The name in the symbol table; empty if there is none."""
    offset: ImageOffset
    """The offset of the first instruction."""
    size: int | None
    """The size in bytes; None if only the start is known."""
    certainty: Certainty
    aliases: tuple[str, ...] = ()
    """Other names of the same instructions, written as :attr:`name`: linkers merge functions with
    equal code."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_named(self) -> bool:
        """Whether :attr:`name` is from the program and not derived from the offset."""
        return self.certainty is not Certainty.NONE


def unnamed(offset: ImageOffset, size: int | None) -> Symbol:
    """Return a function without a name."""
    return Symbol(
        name=f"unnamed_{offset:x}",
        linkage_name="",
        offset=offset,
        size=size,
        certainty=Certainty.NONE,
    )


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A position in a source file."""

    path: str
    line: int | None = None
    """1-based."""
    column: int | None = None
    """1-based."""

    def __str__(self) -> str:
        numbers = (self.line,) if self.column is None else (self.line, self.column)
        return ":".join((self.path, *(str(number) for number in numbers if number is not None)))


@dataclass(frozen=True, slots=True)
class InlineFrame:
    """A function that the compiler inlined at the frame's address."""

    name: str
    """The name for people; empty if the debug information has none."""
    location: SourceLocation | None
    """The position in this function, or of the call that is inlined into it."""
    linkage_name: str = ""
    """The name in the debug information."""


@dataclass(frozen=True, slots=True)
class PythonFrame:
    """A Python function that was running."""

    name: str
    """The qualified name in the code object."""
    location: SourceLocation


class FrameStatus(Enum):
    """The result of symbolication (after Symbolicator's ``FrameStatus``)."""

    SYMBOLICATED = "symbolicated"
    MISSING_SYMBOL = "missing-symbol"
    """The image's file has no symbol here."""
    MISSING_FILE = "missing-file"
    MISMATCHED_FILE = "mismatched-file"
    """Only files with another UUID were found."""
    MALFORMED_FILE = "malformed-file"
    UNKNOWN_IMAGE = "unknown-image"
    """No image contains the address."""
    PYTHON = "python"
    """A Python function without the frame of the interpreter that runs it."""
    NOT_ASKED = "not-asked"
    """Symbolication was not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """An address with its image, function and source position."""

    address: FrameAddress
    status: FrameStatus
    image: BinaryImage | None = None
    is_placed: bool = True
    """Whether the address's offset in :attr:`image` is known: reports also name images without
    their load address."""
    symbol: Symbol | None = None
    """The function. With the status ``MISSING_SYMBOL``, one without a name, or None if its start is
    unknown, too."""
    has_symbol_offset: bool = True
    """Whether the function's start is known: reports also name functions without an offset."""
    location: SourceLocation | None = None
    inlined: tuple[InlineFrame, ...] = ()
    """Innermost first; all inside :attr:`symbol`."""
    python: tuple[PythonFrame, ...] = ()
    """The Python functions that a frame of CPython's interpreter loop runs, if requested; innermost
    first. A call from Python to Python does not start another loop (since 3.11)."""

    @property
    def certainty(self) -> Certainty:
        """The certainty of the frame's name."""
        return Certainty.NONE if self.symbol is None else self.symbol.certainty

    @property
    def image_offset(self) -> int | None:
        """Bytes from the image's header to the frame's unadjusted address; None if unknown."""
        if self.image is None or not self.is_placed:
            return None
        return self.image.offset_of(self.address.address)

    @property
    def symbol_offset(self) -> int | None:
        """Bytes from the symbol's start to the frame's unadjusted address; None if unknown."""
        if self.symbol is None or not self.has_symbol_offset:
            return None
        if self.image is None:  # a report's symbol, whose start is an address
            return self.address.address - self.symbol.offset
        return self.image.offset_of(self.address.address) - self.symbol.offset

    @property
    def is_python(self) -> bool:
        """Whether this is a Python function, :attr:`python`, without a frame of machine code."""
        return self.status is FrameStatus.PYTHON

    @property
    def text(self) -> FrameText:
        """The frame's lines: functions inlined into it and interpreted by it, then itself."""
        number = self.address.address
        image = "???" if self.image is None else self.image.label
        rows = [
            Row(image, number, printable(call.name) or "?", _location(call.location), "inlined")
            for call in self.inlined
        ]
        functions = [
            Row(_PYTHON, None, printable(function.name) or "?", _location(function.location))
            for function in self.python
        ]
        rows += folded_rows(functions, "function")
        if self.is_python:
            return FrameText(rows, self.python)
        parts = [self.address.provenance]
        if self.certainty not in (Certainty.EXACT, Certainty.NONE):
            parts.append(self.certainty.value)
        row = address_row(self.address, self.image, ", ".join(part for part in parts if part))
        if not self.is_placed:
            row = row._replace(name="?")
        if self.symbol is not None:
            into = "" if self.symbol_offset is None else f" + {self.symbol_offset}"
            row = row._replace(name=f"{printable(self.symbol.name)}{into}")
        row = row._replace(location=_location(self.location))
        rows.append(row)
        return FrameText(rows, (self.address, self.python, row.name, row.location))

    def __str__(self) -> str:
        return str(self.text)

    def __repr__(self) -> str:
        row = self.text.rows[-1]
        number = "" if self.is_python else f"{self.address.address:#x} "
        return f"<Frame {number}{row.name} in {row.image}>"


def _location(location: SourceLocation | None) -> str:
    return "" if location is None else short_location(location.path, location.line)


_PYTHON = "Python"
"""The image's name in lines of Python functions."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FrameChain:
    """Frames that called one another, innermost first.

    An :class:`~machtrace.model.stack.AddressChain` with names.
    """

    frames: tuple[Frame, ...]
    """The retained frames."""
    stop: Stop
    gap: Gap | None = None

    @property
    def depth(self) -> int:
        """The number of frames, retained or dropped."""
        return len(self.frames) + (0 if self.gap is None else self.gap.count)

    def lines(
        self,
        *,
        pointer_size: int | None = None,
        style: Style = PLAIN,
        details: Sequence[Sequence[str]] | None = None,
    ) -> Iterator[str]:
        """Yield the frames, and what is missing; see :func:`~machtrace.model.text.chain_lines`."""
        yield from chain_text(
            [frame.text for frame in self.frames],
            self.gap,
            self.stop,
            pointer_size=pointer_size,
            style=style,
            details=details,
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {counted(self.depth, 'frame')}, {self.stop}>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CallStack(FrameChain, Document):
    """A thread's stack with names."""

    thread: ThreadInfo
    stopped_for_ns: int | None = None
    """How long the thread was stopped; None if nothing was stopped."""
    physical_remainder: FrameChain | None = None
    """See :attr:`~machtrace.model.stack.Walk.physical_remainder`."""
    registers: tuple[tuple[str, int], ...] = ()
    """Names and values of the innermost frame's registers; none if unavailable."""
    overflowed_stack: Avma | None = None
    """The lowest address of the stack if the stack pointer is below it: the stack overflowed."""
    others: tuple[ThreadInfo, ...] = ()
    """Other threads with the same stack, if equal stacks were merged; see :func:`unique_stacks`."""

    @property
    def cause(self) -> Cause | None:
        """Why the thread was stopped, if a signal or an exception did it."""
        return self.thread.cause

    def text_lines(
        self,
        *,
        pointer_size: int | None = None,
        style: Style = PLAIN,
        details: Sequence[Sequence[str]] | None = None,
        remainder_details: Sequence[Sequence[str]] | None = None,
        with_registers: bool | None = None,
    ) -> Iterator[str]:
        """Yield all lines of the thread: its heading, why it was stopped, frames, registers.

        Args:
            pointer_size: see :func:`~machtrace.model.text.chain_lines`.
            style: see there.
            details: lines below each frame.
            remainder_details: those of :attr:`physical_remainder`.
            with_registers: whether registers are shown; None shows those of a crashed thread.
        """
        yield f"{style.bold}{self.thread.heading(self.stopped_for_ns)}{style.reset}"
        yield from others_lines(self.others)
        if self.cause is not None and self.cause.is_shown:
            yield f"  {printable(str(self.cause))}"
        if self.overflowed_stack is not None:
            stack = f"{self.overflowed_stack:#x}"
            yield f"  the stack pointer is below the stack {stack}: the stack overflowed"
        yield from self.lines(pointer_size=pointer_size, style=style, details=details)
        rest = self.physical_remainder
        if rest is not None:
            yield f"     {style.dim}{MACHINE_FRAMES}{style.reset}"
            yield from rest.lines(pointer_size=pointer_size, style=style, details=remainder_details)
        if self.thread.crashed if with_registers is None else with_registers:
            size = pointer_size or (8 if any(value >> 32 for _, value in self.registers) else 4)
            yield from register_rows(self.registers, size)

    def __str__(self) -> str:
        """Return what ``machtrace backtrace`` prints for the thread."""
        return "\n".join(self.text_lines())

    def __repr__(self) -> str:
        return f"<CallStack of {self.thread}: {counted(self.depth, 'frame')}, {self.stop}>"


def unique_stacks(stacks: Iterable[CallStack]) -> list[CallStack]:
    """Return each distinct stack once, with the threads that share it as its :attr:`others`.

    Stacks are equal if they have the same addresses, found in the same way, and the same Python
    functions, and the same cause is shown. Crashed threads are not merged. They come first, then
    those that a signal or an exception stopped, then the stacks of most threads.
    """
    groups: dict[Hashable, list[CallStack]] = {}
    for stack in stacks:
        groups.setdefault(_identity(stack), []).append(stack)
    merged = [
        replace(group[0], others=tuple(thread for stack in group for thread in _threads(stack))[1:])
        for group in groups.values()
    ]
    return sorted(
        merged,
        key=lambda stack: (
            not stack.thread.crashed,
            _shown_cause(stack) is None,
            -len(stack.others),
        ),
    )


def _threads(stack: CallStack) -> tuple[ThreadInfo, ...]:
    return (stack.thread, *stack.others)


def _identity(stack: CallStack) -> Hashable:
    info, rest = stack.thread, stack.physical_remainder
    own = info.id if info.crashed else None
    chains = _chain_identity(stack), None if rest is None else _chain_identity(rest)
    return own, _shown_cause(stack), chains


def _shown_cause(stack: CallStack) -> str | None:
    return None if stack.cause is None or not stack.cause.is_shown else str(stack.cause)


def _chain_identity(chain: FrameChain) -> Hashable:
    frames = tuple(
        (
            *(frame.address.address, frame.address.kind, frame.address.trust, frame.python),
            None if frame.symbol is None else frame.symbol.name,
        )
        for frame in chain.frames
    )
    return frames, chain.gap, chain.stop.reason


def others_lines(others: Sequence[ThreadInfo]) -> Iterator[str]:
    """Yield a line for the threads of each name, or of each name with consecutive numbers."""
    named: dict[tuple[str | None, bool, str | None], list[tuple[ThreadInfo, int | None]]] = {}
    for thread in others:
        name, number = (None, None) if thread.name is None else numbered(thread.name)
        named.setdefault((name, number is None, thread.queue), []).append((thread, number))
    groups = sorted(named.items(), key=lambda item: -len(item[1]))
    for (name, _, queue), threads in groups[:_NAMES]:
        parts = [
            f"  and {counted(len(threads), 'thread')}: {ranges(one.index for one, _ in threads)}",
            f"id {ranges(one.id for one, _ in threads)}",
        ]
        if name is not None:
            numbers = [number for _, number in threads if number is not None]
            parts.append(f"“{printable(name)}”{' ' if numbers else ''}{ranges(numbers)}")
        if queue:
            parts.append(f"queue {printable(queue)}")
        yield "  ".join(parts)
    rest = groups[_NAMES:]
    if rest:
        count = sum(len(threads) for _, threads in rest)
        yield f"  and {counted(count, 'thread')} of {counted(len(rest), 'other name')}"


_NAMES = 8
"""Names of threads with one stack that text lists."""
