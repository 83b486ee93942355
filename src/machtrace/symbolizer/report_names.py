"""Names for offsets in the images of reports: each image opened once, each name built once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from machtrace.demangler import apple_style, demangle
from machtrace.errors import AmbiguousImageError, MachtraceError
from machtrace.images.named_file import NamedImageFile, find_by_name
from machtrace.images.resolver import ImageFiles, ImageResolver, Search
from machtrace.images.store_layout import Identifier
from machtrace.model.address import Avma, ImageOffset, Svma
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.model.report import NameSource, ReportedImage, ReportedSymbol
from machtrace.model.symbol import Certainty, FrameStatus, SourceLocation, Symbol
from machtrace.symbolizer.image_names import ImageNames, InlinedCall, NamedOffset

if TYPE_CHECKING:  # a few names can do without numpy
    import numpy as np
    import numpy.typing as npt

    from machtrace.symbolizer.name_columns import NameColumns

_ARCHES = {arch.value: arch for arch in Arch}
_SOURCES: dict[Certainty, NameSource] = {
    certainty: NameSource(certainty.value)
    for certainty in Certainty
    if certainty is not Certainty.NONE
}
_DEBUG = NameSource.DEBUG_INFORMATION
_new = tuple.__new__
_MAX_CACHED = 1 << 19
"""Offsets and calls of an image that are cached for the next reports: some 250 MB."""
_UNKNOWN = "???"
_MIN_BYTES = 0x1000
"""Bytes of an image whose size is not reported."""


class ReportCall(NamedTuple):
    """A function that an offset is in: itself, or inlined there."""

    name: str
    start: ImageOffset | None
    """The function's start; None of an inlined one."""
    source: NameSource
    location: SourceLocation | None
    others: tuple[str, ...] = ()
    """Further spellings and names of the same function."""
    symbol: ReportedSymbol | None = None
    """The symbol of an inlined call, shared by all frames that it is in."""
    size: int | None = None
    """The function's size in bytes; None if unknown, or of an inlined one."""


Calls = tuple[ReportCall, ...]
"""Innermost first; the function that holds the offset is the last. Empty if it has no name."""


class ReportNames:
    """Names in any number of images, found by their UUIDs; those without, by their names."""

    def __init__(self, search: Search = ()) -> None:
        """Open nothing yet.

        Args:
            search: files and folders to search for images and debug files, or a resolver.
        """
        self._files = ImageResolver.of(search)
        self._images: dict[Hashable, _NamedImage | FrameStatus] = {}
        self._by_name: dict[tuple[str, str | None], NamedImageFile | None] = {}
        self._ambiguous: list[MachtraceError] = []

    @property
    def problems(self) -> tuple[MachtraceError, ...]:
        """Why names or lines may be missing so far."""
        opened = (image for image in self._images.values() if isinstance(image, _NamedImage))
        return (
            *self._files.path.problems,
            *self._ambiguous,
            *(problem for image in opened for problem in image.problems),
        )

    def identifier(self, image: ReportedImage) -> Identifier | None:
        """Return its own identifier; else that of the only given file of its name.

        None if it has neither. Raises nothing.
        """
        if image.uuid is not None:
            return image.uuid
        found = self.file_by_name(image)
        return None if found is None else found.identifier

    def file_by_name(self, image: ReportedImage) -> NamedImageFile | None:
        """Return the file for an image without an identifier; None without any."""
        if image.uuid is not None or not image.name:
            return None
        key = image.name, image.arch
        if key not in self._by_name:
            arch = _ARCHES.get(image.arch or "")
            try:
                self._by_name[key] = find_by_name(image.name, arch, self._files.path)
            except AmbiguousImageError as error:
                self._ambiguous.append(error)
                self._by_name[key] = None
        return self._by_name[key]

    def status(self, image: ReportedImage) -> FrameStatus:
        """Return SYMBOLICATED if a file of the image exists; else why none does."""
        opened = self._opened(image)
        return opened if isinstance(opened, FrameStatus) else FrameStatus.SYMBOLICATED

    def files(self, image: ReportedImage) -> ImageFiles | FrameStatus:
        """Return the files of an image, or why there are none. Raises nothing."""
        status, identifier = self.status(image), self.identifier(image)
        if status is not FrameStatus.SYMBOLICATED or identifier is None:
            return status
        return self._files.files(_binary_image(image, identifier, self.file_by_name(image)))

    def find(self, image: ReportedImage, offsets: Iterable[int]) -> dict[int, Calls]:
        """Return the names at each of the offsets (ImageOffset) in an image; empty without a file.

        Raises nothing.
        """
        opened = self._opened(image)
        if isinstance(opened, FrameStatus):
            return {}
        wanted = sorted(offsets)
        return dict(zip(wanted, opened.find(wanted), strict=True))

    def functions(
        self, image: ReportedImage, offsets: Iterable[int]
    ) -> dict[int, tuple[ImageOffset, int | None]]:
        """Return the start and the size of the function at each offset, named or not.

        The size is None if it is unknown; an offset in no function is left out. Raises nothing.
        """
        opened = self._opened(image)
        return {} if isinstance(opened, FrameStatus) else opened.functions(sorted(offsets))

    def columns(self, image: ReportedImage, offsets: npt.NDArray[np.uint64]) -> NameColumns | None:
        """Return the names at each of very many offsets in an image; None without a file."""
        opened = self._opened(image)
        return None if isinstance(opened, FrameStatus) else opened.columns(offsets)

    def starts(self, image: ReportedImage, name: str) -> Sequence[ImageOffset]:
        """Return the starts of functions of this name; none without a file.

        Args:
            image: the image.
            name: as linkers spell it, with or without Mach-O's underscore.
        """
        opened = self._opened(image)
        return () if isinstance(opened, FrameStatus) else opened.starts(name)

    def _opened(self, image: ReportedImage) -> _NamedImage | FrameStatus:
        identifier = self.identifier(image)
        if identifier is None:
            return FrameStatus.UNKNOWN_IMAGE
        wanted = _binary_image(image, identifier, self.file_by_name(image))
        key = self._files.key(wanted)
        opened = self._images.get(key)
        if opened is None:
            status = self._files.files(wanted).status
            if status is FrameStatus.SYMBOLICATED:
                opened = _NamedImage(ImageNames(wanted, search=self._files))
            else:
                opened = status
            self._images[key] = opened
        return opened


def _binary_image(
    image: ReportedImage, identifier: Identifier, file: NamedImageFile | None
) -> BinaryImage:
    """Return the image as it was linked; all but its identifier only helps to search."""
    arch = _ARCHES.get(image.arch or "", Arch.ARM64) if file is None else file.arch
    return BinaryImage(
        path=image.path or image.name,
        uuid=identifier,
        arch=arch,
        format=ImageFormat.identified_by(identifier) if file is None else file.format,
        load_address=Avma(0),
        header_svma=Svma(0),
        size=image.size or _MIN_BYTES,
    )


class _NamedImage:
    """One image's names; those at a source location, and a function's name, are built once."""

    def __init__(self, names: ImageNames) -> None:
        self._names = names
        self._calls: dict[NamedOffset, Calls] = {}
        self._functions: dict[int, ReportCall | None] = {-1: None}
        self._spelt: dict[int, tuple[str, tuple[str, ...]]] = {}
        self._paths: dict[int, str] = {}
        self._inlined: dict[InlinedCall, ReportCall] = {}
        self._starts: dict[str, list[ImageOffset]] | None = None

    @property
    def problems(self) -> Sequence[MachtraceError]:
        return self._names.problems

    def find(self, offsets: Sequence[int]) -> list[Calls]:
        named = self._names.find(offsets)
        known = self._calls
        if len(known) + len(self._inlined) > _MAX_CACHED:
            known.clear()
            self._inlined.clear()
        new = [offset for offset in dict.fromkeys(named) if offset not in known]
        chains = self._names.chains([offset.location for offset in new])
        for offset, chain in zip(new, chains, strict=True):
            known[offset] = self._made(offset.function, chain)
        return [known[offset] for offset in named]

    def functions(self, offsets: Sequence[int]) -> dict[int, tuple[ImageOffset, int | None]]:
        named = zip(offsets, self._names.find(offsets), strict=True)
        found = ((offset, self._names.function(each.function)) for offset, each in named)
        return {offset: (each.offset, each.size) for offset, each in found if each is not None}

    def columns(self, offsets: npt.NDArray[np.uint64]) -> NameColumns:
        from machtrace.symbolizer.name_columns import Texts, name_columns

        texts = Texts(self._symbol_text, lambda one: self._spelling(one)[0], _DEBUG.value, _UNKNOWN)
        return name_columns(self._names, offsets, texts)

    def starts(self, name: str) -> Sequence[ImageOffset]:
        if self._starts is None:
            self._starts = self._names.starts()
        return self._starts.get(name, ()) or self._starts.get(f"_{name}", ())

    def _made(self, function: int, chain: tuple[InlinedCall, ...]) -> Calls:
        symbol = self._function(function)
        if not chain or chain[-1].file < 0:
            return () if symbol is None or not symbol.name else (symbol,)
        calls = [self._inlined.get(one) or self._inlined_call(one) for one in chain]
        if symbol is not None:
            calls[-1] = _joined(calls[-1], symbol)
        return tuple(calls)

    def _function(self, number: int) -> ReportCall | None:
        """Return the function with an id; nameless if only its start is known."""
        if number not in self._functions:
            symbol = self._names.function(number)
            self._functions[number] = None if symbol is None else _of_symbol(symbol)
        return self._functions[number]

    def _inlined_call(self, inlined: InlinedCall) -> ReportCall:
        name, others = self._spelling(inlined.function)
        location = None
        if inlined.file >= 0:
            if inlined.file not in self._paths:
                self._paths[inlined.file] = self._names.file_path(inlined.file)
            location = SourceLocation(self._paths[inlined.file], inlined.line or None)
        symbol = _new(ReportedSymbol, (name, None, _DEBUG))
        call = _new(ReportCall, (name, None, _DEBUG, location, others, symbol, None))
        self._inlined[inlined] = call
        return call

    def _spelling(self, function: int) -> tuple[str, tuple[str, ...]]:
        """Return the name of an inlined call's function, and its other spellings."""
        if function not in self._spelt:
            linkage_name = self._names.linkage_name(function)
            full = demangle(linkage_name)
            shown = apple_style(linkage_name, full)
            self._spelt[function] = shown or _UNKNOWN, (full, linkage_name)
        return self._spelt[function]

    def _symbol_text(self, number: int) -> tuple[str, str]:
        symbol = self._function(number)
        return ("", "") if symbol is None else (symbol.name, symbol.source.value)


def _of_symbol(symbol: Symbol) -> ReportCall:
    if not symbol.is_named:
        return ReportCall("", symbol.offset, NameSource.EXACT, None)
    return ReportCall(
        name=apple_style(symbol.linkage_name, symbol.name),
        start=symbol.offset,
        source=_SOURCES[symbol.certainty],
        location=None,
        others=(symbol.name, symbol.linkage_name, *symbol.aliases),
        size=symbol.size,
    )


def _joined(call: ReportCall, symbol: ReportCall) -> ReportCall:
    """Return a function by its debug information, with the facts of its symbol."""
    name, _, source, location, others, *_ = call
    known, start, _, _, more, _, size = symbol
    if known:
        name = known if name == _UNKNOWN else name
        others = (*others, known, *more)
    # Made as a tuple: there are very many, and a call of the class takes twice as long.
    return _new(ReportCall, (name, start, source, location, others, None, size))
