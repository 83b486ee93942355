"""Names for the addresses of a backtrace."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING

from machtrace.errors import ArgumentError, FormatError, MachtraceError, MemoryReadError
from machtrace.images.resolver import ImageResolver, Search
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage
from machtrace.model.memory import MemoryReader
from machtrace.model.snapshot import Snapshot, ThreadSnapshot
from machtrace.model.stack import AddressChain, AddressKind, Backtrace, FrameAddress
from machtrace.model.symbol import (
    CallStack,
    Certainty,
    Frame,
    FrameChain,
    FrameStatus,
    InlineFrame,
    Symbol,
)
from machtrace.symbols.image_symbols import ImageSymbols, open_image

if TYPE_CHECKING:  # they bring much that the first names can do without
    from numpy.typing import ArrayLike

    from machtrace.formats.object_file import ObjectFile
    from machtrace.lines.debug_information import AnyDebugIndex, DebugInformation
    from machtrace.symbolizer.columns import SymbolColumns

_Answer = tuple[FrameStatus, BinaryImage | None, Symbol | None, tuple[InlineFrame, ...]]
"""The names of an address; the calls there end with the function that they are inlined into."""

SIGNAL_HANDLER_CALLED = "<signal handler called>"
"""The name of a signal trampoline without a symbol, as in gdb."""
_REMEMBERED = 1 << 16
"""Addresses of one snapshot whose answers are cached; at the limit the cache is cleared."""


class Symbolicator:
    """Names any number of backtraces, and any number of offsets; opens each image once.

    An image's symbols are read from the files in ``search``, else from the file where the target
    had it, else from the snapshot's memory. A file whose UUID is not the image's is never used.

    :meth:`symbolicate` names a backtrace's frames. :meth:`lookup` takes a column of N offsets
    (ImageOffset) of one image and returns columns of N rows, in the same order::

        columns = Symbolicator(search=["symbols"]).lookup("libx.dylib", [0x1000, 0x1f40])
        columns.names()  # ['start', None]: None without a function
        columns.symbols  # int32, shape (2,): an id for each function, -1 for none
        columns.function_starts  # uint64, shape (2,)
        columns.lines  # uint32, shape (2,); 0 if unknown
    """

    def __init__(self, search: Search = (), *, lines: bool = True) -> None:
        """Open nothing yet.

        Args:
            search: files and folders to search for images and debug files; or a resolver, which
                then is shared.
            lines: whether source lines and inlined calls are wanted. If an image has debug
                information, all of it is read once, which can take seconds, and cached.
        """
        self._search = search
        self._wants_lines = lines
        self._images: dict[Hashable, ImageSymbols] = {}
        self._here: dict[Avma, ImageSymbols | FrameStatus] = {}
        self._snapshot: Snapshot | None = None
        self._found: dict[tuple[Avma, bool], _Answer] = {}

    def __repr__(self) -> str:
        """Return the search paths, whether lines are wanted, and the number of open images."""
        count = len(self._images) + len(self._here)
        images = f"{count} image{'' if count == 1 else 's'}"
        search = self._search if isinstance(self._search, Sequence) else "shared"
        return f"<Symbolicator search={search!r} lines={self._wants_lines}: {images} open>"

    @cached_property
    def _files(self) -> ImageResolver:

        return ImageResolver.of(self._search)

    @cached_property
    def _debug(self) -> DebugInformation | None:
        from machtrace.lines.debug_information import DebugInformation

        return DebugInformation(self._files) if self._wants_lines else None

    @property
    def problems(self) -> tuple[MachtraceError, ...]:
        """Why names or lines may be missing so far; none was raised by a lookup.

        Paths to search that do not exist; debug information that could not be indexed, and object
        files that are missing or were changed; malformed tables of images.
        """
        files, debug = vars(self).get("_files"), vars(self).get("_debug")
        images = (*self._images.values(), *self._here.values())
        return (
            *(() if files is None else files.path.problems),
            *(() if debug is None else debug.problems),
            *(
                problem
                for image in images
                if isinstance(image, ImageSymbols)
                for problem in image.problems
            ),
        )

    # --- backtraces ---

    def symbolicate(self, backtrace: Backtrace) -> CallStack:
        """Return ``backtrace`` with names: as many frames as it has addresses."""
        return self._stack(backtrace, named=True)

    def locate(self, backtrace: Backtrace) -> CallStack:
        """Return ``backtrace`` with images and without names: no file is opened."""
        return self._stack(backtrace, named=False)

    def _stack(self, backtrace: Backtrace, *, named: bool) -> CallStack:
        def frames(chain: AddressChain) -> tuple[Frame, ...]:
            return tuple(self.frame(address, snapshot, named=named) for address in chain.addresses)

        snapshot, rest = backtrace.snapshot, backtrace.physical_remainder
        return CallStack(
            thread=backtrace.thread.info,
            frames=frames(backtrace),
            stop=backtrace.stop,
            gap=backtrace.gap,
            stopped_for_ns=backtrace.thread.stopped_for_ns,
            physical_remainder=None
            if rest is None
            else FrameChain(frames=frames(rest), stop=rest.stop, gap=rest.gap),
            registers=_named_registers(backtrace.thread),
            overflowed_stack=backtrace.thread.overflowed_stack,
        )

    def frame(self, address: FrameAddress, snapshot: Snapshot, *, named: bool = True) -> Frame:
        """Return an address of a snapshot's process with its image and, if wanted, its name."""
        if self._snapshot is not snapshot or len(self._found) >= _REMEMBERED:
            self._snapshot, self._found, self._here = snapshot, {}, {}
        key = (address.lookup, named)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._find(address.lookup, snapshot, named=named)
        status, image, symbol, calls = found
        is_trampoline = address.kind is AddressKind.SIGNAL_TRAMPOLINE
        if named and is_trampoline and image is not None and not (symbol and symbol.is_named):
            status = FrameStatus.SYMBOLICATED
            symbol = Symbol(
                name=SIGNAL_HANDLER_CALLED,
                linkage_name="",
                offset=image.offset_of(address.address),
                size=None,
                certainty=Certainty.EXACT,
            )
        return Frame(
            address=address,
            status=status,
            image=image,
            symbol=symbol,
            location=calls[-1].location if calls else None,
            inlined=calls[:-1],
        )

    def _find(self, lookup: Avma, snapshot: Snapshot, *, named: bool) -> _Answer:
        image = snapshot.images.find(lookup)
        if image is None:
            return FrameStatus.UNKNOWN_IMAGE, None, None, ()
        if not named:
            return FrameStatus.NOT_ASKED, image, None, ()
        status, symbol = self._name(image, image.offset_of(lookup), snapshot.memory)
        if self._debug is None:
            return status, image, symbol, ()
        offset = image.offset_of(lookup)
        calls = self._debug.frames(image, offset)
        if calls:
            symbol = self._debug.symbol(image, offset, calls[-1], symbol)
            if symbol is not None and symbol.is_named:
                status = FrameStatus.SYMBOLICATED
        return status, image, symbol, calls

    def _name(
        self, image: BinaryImage, offset: ImageOffset, memory: MemoryReader
    ) -> tuple[FrameStatus, Symbol | None]:
        symbols = self._opened(image, memory)
        if isinstance(symbols, FrameStatus):
            return symbols, None
        try:
            symbol = symbols.find(offset)
        except (FormatError, MemoryReadError):
            return FrameStatus.MALFORMED_FILE, None
        if symbol is None or not symbol.is_named:
            malformed = any(isinstance(problem, FormatError) for problem in symbols.problems)
            status = FrameStatus.MALFORMED_FILE if malformed else FrameStatus.MISSING_SYMBOL
            return status, symbol
        return FrameStatus.SYMBOLICATED, symbol

    def _opened(self, image: BinaryImage, memory: MemoryReader) -> ImageSymbols | FrameStatus:
        opened = self._here.get(image.load_address)
        if opened is None:
            key = self._files.key(image)
            opened = self._images.get(key)
            if opened is None:
                opened = open_image(self._files, image, memory)
                if image.uuid is None or isinstance(opened, FrameStatus):
                    self._here[image.load_address] = opened
                else:
                    self._images[key] = opened
        return opened

    # --- columns ---

    def lookup(
        self,
        image: str | PathLike[str] | BinaryImage,
        offsets: ArrayLike | Iterable[int],
        *,
        return_addresses: bool = False,
        arch: Arch | str | None = None,
        threads: int | None = None,
    ) -> SymbolColumns:
        """Look up the functions and source lines at many offsets of one image, as columns.

        Args:
            image: a file, or an image to search files for.
            offsets: bytes from the image's header, in any order: a column of whole numbers from 0
                to 2**64 - 1, of any integer type. It is copied.
            return_addresses: whether they are return addresses, to be looked up one byte earlier,
                inside the call.
            arch: of a fat file, which of its images; an :class:`Arch` or its name, ``"arm64"``.
            threads: how many to share a large column among, 1 or more; None for as many as this
                process has processors if it is very large. They end with the call.

        Raises:
            ArgumentError: an argument is invalid: negative offsets, or an unknown ``arch``.
            FileAccessError: the file does not exist, or the image has none.
            FormatError: it is malformed.
            MachtraceError: a fat file has several images, or not that of ``arch``.
        """
        from machtrace.symbolizer.columns import SymbolColumns, offsets_array

        column = offsets_array(offsets)
        if threads is not None and (threads < 1 or threads != int(threads)):
            raise ArgumentError(f"threads is {threads!r}", remedy="pass 1 or more")
        wanted, symbols = self._file(image, None if arch is None else _arch(arch))
        return SymbolColumns(
            column,
            symbols,
            lambda: self._lines(wanted),
            back=int(return_addresses),
            threads=threads,
        )

    def _file(
        self, image: str | PathLike[str] | BinaryImage, arch: Arch | None
    ) -> tuple[BinaryImage, ImageSymbols]:
        from machtrace.images.named_file import no_file, path_image

        files = self._files
        if isinstance(image, BinaryImage):
            wanted, file = image, None
        else:
            wanted, file = path_image(image, arch)
            files.adopt(wanted, file)
        key = files.key(wanted)
        symbols = self._images.get(key)
        if symbols is None:
            if file is not None:
                others = partial(_twins, files, wanted)
                symbols = ImageSymbols(file.contents, others=others)
            else:
                opened = open_image(files, wanted, None)
                if isinstance(opened, FrameStatus):
                    raise no_file(wanted, opened)
                symbols = opened
            self._images[key] = symbols
        return wanted, symbols

    def _lines(self, image: BinaryImage) -> AnyDebugIndex | None:
        found = FrameStatus.NOT_ASKED if self._debug is None else self._debug.index(image)
        return None if isinstance(found, FrameStatus) else found


def _arch(name: Arch | str) -> Arch:
    try:
        return Arch(name)
    except ValueError:
        names = ", ".join(one.value for one in Arch)
        text = f"no architecture is called {name!r}"
        raise ArgumentError(text, remedy=f"choose one of: {names}") from None


def _named_registers(thread: ThreadSnapshot) -> tuple[tuple[str, int], ...]:
    others = thread.other_registers
    if not others and thread.native_registers:
        from machtrace.formats.elf.core.registers import read_other_registers

        others = read_other_registers(thread.native_registers)
    return (*thread.registers.named(), *others)


def _twins(files: ImageResolver, image: BinaryImage) -> Sequence[ObjectFile]:
    return files.files(image).twins(image.path)
