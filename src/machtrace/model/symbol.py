"""Names for addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from machtrace.frozen import dataclass
from machtrace.model.address import ImageOffset
from machtrace.model.image import BinaryImage
from machtrace.model.snapshot import ThreadInfo
from machtrace.model.stack import MACHINE_FRAMES, FrameAddress, Gap, Stop, address_row, chain_text
from machtrace.model.text import (
    PLAIN,
    FrameText,
    Row,
    Style,
    counted,
    folded_rows,
    printable,
    short_location,
)


class Certainty(Enum):
    """How sure a name is, best first."""

    EXACT = "exact"
    """A symbol at the start of the very function that holds the address.

    Where local symbols were stripped, a name is exact only if the linker lists functions
    (LC_FUNCTION_STARTS), something says that one starts there, and unwind information describes it:
    what linkers do not list are initialisers, which are found otherwise, and assembly code, which
    nothing describes.
    """
    EXPORT = "export"
    """An exported symbol before the address, where local ones were stripped: another function,
    whose name is gone, may be in between."""
    OBJC = "objc"
    """An Objective-C method, from the class's or category's list of methods."""
    RTTI = "rtti"
    """A C++ virtual method, from the vtable of the class that its type information names."""
    SWIFT = "swift"
    """A Swift function, from the metadata of a type."""
    PCLNTAB = "pclntab"
    """A Go function, from the table that Go's own tracebacks are made of."""
    STUB = "stub"
    """A stub, named after the function that it calls."""
    NONE = "none"
    """No name: none is better than a wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A function.

    One that is known to be there, and whose name is not, is called ``unnamed_`` and its offset in
    hexadecimal digits: the same in every process that has the image, so that such functions can be
    told apart and counted. Its certainty is ``NONE``.
    """

    name: str
    """As people read it: demangled, else without the underscore that Mach-O's tables put first."""
    linkage_name: str
    """As the symbol table spells it; empty where there is no name."""
    offset: ImageOffset
    """Of its first instruction."""
    size: int | None
    """In bytes; None when only the start is known."""
    certainty: Certainty
    aliases: tuple[str, ...] = ()
    """Other names of the same instructions, as :attr:`name` is written: linkers make one of
    functions that have the same code."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_named(self) -> bool:
        """Whether :attr:`name` is from the program; else it only says where the function is."""
        return self.certainty is not Certainty.NONE


def unnamed(offset: ImageOffset, size: int | None) -> Symbol:
    """A function whose name is not known.

    Args:
        offset: of its first instruction.
        size: in bytes.
    """
    return Symbol(
        name=f"unnamed_{offset:x}",
        linkage_name="",
        offset=offset,
        size=size,
        certainty=Certainty.NONE,
    )


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A place in a source file."""

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
    """A call that the compiler inlined at the frame's address."""

    name: str
    """As people read it; empty where the debug information has none."""
    location: SourceLocation | None
    """Where in this function the code is, or the call of what is inlined into it."""
    linkage_name: str = ""
    """As the debug information spells it."""


@dataclass(frozen=True, slots=True)
class PythonFrame:
    """A Python function that was running."""

    name: str
    """Qualified, as its code object has it."""
    location: SourceLocation


class FrameStatus(Enum):
    """How far naming got (after Symbolicator's ``FrameStatus``)."""

    SYMBOLICATED = "symbolicated"
    MISSING_SYMBOL = "missing-symbol"
    """The file was read; it names nothing here."""
    MISSING_FILE = "missing-file"
    MISMATCHED_FILE = "mismatched-file"
    """A file was found; its UUID is another's."""
    MALFORMED_FILE = "malformed-file"
    UNKNOWN_IMAGE = "unknown-image"
    """No image holds the address."""
    NOT_ASKED = "not-asked"
    """Names were not wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """An address with everything known about it."""

    address: FrameAddress
    status: FrameStatus
    image: BinaryImage | None = None
    symbol: Symbol | None = None
    """The function; where :attr:`status` is ``MISSING_SYMBOL`` one without a name, or None where
    not even its start is known."""
    location: SourceLocation | None = None
    inlined: tuple[InlineFrame, ...] = ()
    """Innermost first; all inside :attr:`symbol`."""
    python: tuple[PythonFrame, ...] = ()
    """Of a run of CPython's loop, where asked for: the functions that it runs, innermost first. A
    call from Python to Python begins no other run (since 3.11)."""

    @property
    def certainty(self) -> Certainty:
        """How sure the frame's name is."""
        return Certainty.NONE if self.symbol is None else self.symbol.certainty

    @property
    def symbol_offset(self) -> int | None:
        """Bytes from the symbol's start to the frame's address, as people print it."""
        if self.symbol is None or self.image is None:
            return None
        return self.image.offset_of(self.address.address) - self.symbol.offset

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
        parts = [self.address.provenance]
        if self.certainty not in (Certainty.EXACT, Certainty.NONE):
            parts.append(self.certainty.value)
        row = address_row(self.address, self.image, ", ".join(part for part in parts if part))
        if self.symbol is not None and self.symbol_offset is not None:
            row = row._replace(name=f"{printable(self.symbol.name)} + {self.symbol_offset}")
        rows.append(row._replace(location=_location(self.location)))
        return FrameText(rows, (self.address, self.python))

    def __str__(self) -> str:
        return str(self.text)

    def __repr__(self) -> str:
        row = self.text.rows[-1]
        return f"<Frame {self.address.address:#x} {row.name} in {row.image}>"


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
    """Those that were kept."""
    stop: Stop
    gap: Gap | None = None

    @property
    def depth(self) -> int:
        """The number of frames, kept or not."""
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
class CallStack(FrameChain):
    """A thread's stack with names."""

    thread: ThreadInfo
    stopped_for_ns: int | None = None
    """How long the thread was kept from running for this; None where nothing was stopped."""
    physical_remainder: FrameChain | None = None
    """See :attr:`~machtrace.model.stack.Walk.physical_remainder`."""

    def __str__(self) -> str:
        """Return what ``machtrace backtrace`` prints for the thread."""
        lines = [self.thread.heading(self.stopped_for_ns), *self.lines()]
        if self.physical_remainder is not None:
            lines += [f"     {MACHINE_FRAMES}", *self.physical_remainder.lines()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<CallStack of {self.thread}: {counted(self.depth, 'frame')}, {self.stop}>"
