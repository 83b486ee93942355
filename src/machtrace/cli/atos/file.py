"""``atos -o``: addresses in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from machtrace.cli.atos.arguments import AddressMode, AtosRequest
from machtrace.cli.atos.atos_image import Contents, open_named
from machtrace.cli.atos.output import AnswerWriter
from machtrace.errors import FormatError
from machtrace.formats.macho.contents import FileContents
from machtrace.model.image import BinaryImage
from machtrace.symbolizer.image_names import ImageNames

_END = 1 << 64


class FileAnswers:
    """Answers about one file."""

    def __init__(self, path: str, request: AtosRequest, warn: Callable[[str], object]) -> None:
        """Open the file at ``path`` and what belongs to it.

        Raises:
            MachtraceError: it has no symbols to give.
        """
        image, contents = open_named(path, request.arch, warn)
        self._request = request
        self._slide = _slide(request, image, contents)
        self._header = int(image.header_svma)
        self._low, self._high = _bounds(contents)
        self._names = ImageNames(image, contents, [path])
        self._writer = AnswerWriter(image.name, request)
        self._warn = warn
        self._told: set[str] = set()

    def answer(self, addresses: Sequence[int | None]) -> list[str | None]:
        """An answer for each address; None for what is in no part of the image."""
        stated = [
            None if one is None else self._stated_in_image(one - self._slide) for one in addresses
        ]
        inside = [place for place, one in enumerate(stated) if one is not None]
        offsets = [one - self._header for one in stated if one is not None]
        is_offset = self._request.mode is AddressMode.OFFSET
        shown = [
            stated[place] if is_offset else addresses[place]  # what Apple's command shows
            for place in inside
        ]
        answers: list[str | None] = [None] * len(addresses)
        found = self._writer.answers(self._names, offsets, [one or 0 for one in shown])
        for place, text in zip(inside, found, strict=True):
            answers[place] = text
        for problem in self._names.problems:
            line = f"{problem}; {problem.remedy}"
            if line not in self._told:
                self._told.add(line)
                self._warn(line)
        return answers

    def _stated_in_image(self, address: int) -> int | None:
        return address if self._low <= address < self._high else None


def _slide(request: AtosRequest, image: BinaryImage, contents: Contents) -> int:
    """What to subtract from an address to get a stated one."""
    match request.mode:
        case AddressMode.STATED:
            return 0
        case AddressMode.SLID:
            return request.base
        case AddressMode.OFFSET:
            return -int(image.header_svma)
        case AddressMode.LOADED:
            return request.base - int(image.header_svma)
        case AddressMode.TEXT_EXEC:
            return request.base - _text_exec(contents)


def _text_exec(contents: Contents) -> int:
    segment = contents.image.segment("__TEXT_EXEC") if isinstance(contents, FileContents) else None
    if segment is None:
        raise FormatError(
            "there is no segment __TEXT_EXEC",
            source=contents.source,
            offset=0,
            remedy="give -l with the load address; -textExecAddress is for kernels and kexts",
        )
    return int(segment.vmaddr)


def _bounds(contents: Contents) -> tuple[int, int]:
    """Where the image's segments are, from the header on."""
    if isinstance(contents, FileContents):
        spans = [
            (one.vmaddr, one.vmaddr + one.vmsize)
            for one in contents.image.segments
            if one.vmsize and one.name not in ("__PAGEZERO", "__DWARF")
        ]
    else:
        spans = [(one.address, one.end) for one in contents.image.load_segments]
    header = int(contents.image.header_svma)
    return header, min(max((end for _, end in spans), default=header), _END)
