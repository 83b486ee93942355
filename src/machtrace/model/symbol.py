"""Names for addresses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from machtrace.model.address import ImageOffset
from machtrace.model.image import BinaryImage
from machtrace.model.snapshot import ThreadInfo
from machtrace.model.stack import FrameAddress, Gap, Stop


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameChain:
    """Frames that called one another, innermost first.

    An :class:`~machtrace.model.stack.AddressChain` with names.
    """

    frames: tuple[Frame, ...]
    """Those that were kept."""
    stop: Stop
    gap: Gap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStack(FrameChain):
    """A thread's stack with names."""

    thread: ThreadInfo
    stopped_for_ns: int | None = None
    """How long the thread was kept from running for this; None where nothing was stopped."""
    physical_remainder: FrameChain | None = None
    """See :attr:`~machtrace.model.stack.Walk.physical_remainder`."""
