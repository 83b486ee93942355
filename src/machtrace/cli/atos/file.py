"""``atos -o``: addresses in a file, a slice of a fat file, or a bundle's executable or dSYM."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from machtrace.cli.atos.arguments import AddressMode, AtosRequest, LoadError
from machtrace.cli.atos.output import AnswerWriter
from machtrace.errors import FileAccessError, FormatError, MemoryReadError
from machtrace.formats.object_file import ObjectFile, linked_image
from machtrace.images.dsym import dsym_error
from machtrace.images.open_file import IdentifiedFile, OpenedFile
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.symbolizer.image_names import ImageNames

_HOSTS = {"arm64": "arm64", "aarch64": "arm64", "x86_64": "x86_64", "amd64": "x86_64"}
_ALIASES = {"aarch64": "arm64", "amd64": "x86_64"}
_PLIST_LIMIT = 1 << 20
_MIN_BYTES = 0x1000
"""Bytes of an image without a stated size, such as a dSYM's."""


def open_named(
    path: str, arch: str | None, warn: Callable[[str], object]
) -> tuple[BinaryImage, IdentifiedFile]:
    """Open the image in the file or bundle at ``path``, as if loaded where it was linked for.

    A fat file's slice for ``arch`` is used; without ``arch`` the one for this machine, else the
    first, with a message to ``warn``.

    Raises:
        LoadError: there is no such file or slice.
    """
    try:
        file = str(_in_bundle(Path(path)))
        part = _part(list(OpenedFile(file).images()), arch, file, warn)
        image = linked_image(part.contents, path=os.path.realpath(file))
        return replace(image, size=image.size or _MIN_BYTES), part
    except (FileAccessError, FormatError, MemoryReadError) as error:
        raise LoadError(path, arch, error) from error


def _part(
    parts: list[IdentifiedFile], arch: str | None, source: str, warn: Callable[[str], object]
) -> IdentifiedFile:
    names = [part.arch_name for part in parts]
    if arch is not None:
        return parts[_check(arch, names, source)]
    if len(parts) == 1:
        return parts[0]
    host = _host()
    chosen = names.index(host) if host in names else 0
    warn(f"{source} is for {', '.join(names)}: {names[chosen]} is taken; -arch takes another")
    return parts[chosen]


def _check(arch: str | None, names: list[str], source: str) -> int:
    wanted = _ALIASES.get(arch or "", arch)
    if wanted is None:
        return 0
    if wanted not in names:
        remedy = f"give -arch one of {', '.join(names)}"
        raise FormatError("no such architecture", source=source, offset=0, remedy=remedy)
    return names.index(wanted)


def _in_bundle(path: Path) -> Path:
    """Return the main file of a bundle; any other path unchanged."""
    if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where it may not look
        return path
    dwarf = path / "Contents" / "Resources" / "DWARF"
    if os.path.isdir(dwarf):  # noqa: PTH112
        return _only(dwarf, path.name.removesuffix(".dSYM").partition(".")[0])
    for contents in (path / "Contents", path / "Versions" / "A" / "Resources", path):
        executable = _executable_name(contents / "Info.plist")
        for name in filter(None, (executable, path.stem)):
            for folder in (path / "Contents" / "MacOS", path):
                if os.path.isfile(folder / name):  # noqa: PTH113
                    return folder / name
    raise FileAccessError(str(path), "no executable was found in the folder")


def _only(folder: Path, name: str) -> Path:
    """Return the file in a dSYM's folder; if it has several, the one named after the bundle."""
    try:
        files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    except OSError as error:
        raise FileAccessError(str(folder), error.strerror or "cannot be listed") from error
    named = [file for file in files if file.name == name] or files
    if len(named) != 1:
        raise dsym_error(folder, len(files))
    return named[0]


def _host() -> str:
    """Return this machine's architecture by its Mach-O name."""
    from platform import machine

    return _HOSTS.get(machine().lower(), machine())


def _executable_name(plist: Path) -> str | None:
    import plistlib

    try:
        with plist.open("rb") as file:
            properties = plistlib.loads(file.read(_PLIST_LIMIT))
    except (OSError, ValueError, RecursionError, plistlib.InvalidFileException, LookupError):
        return None
    name = properties.get("CFBundleExecutable") if isinstance(properties, dict) else None
    return name if isinstance(name, str) and name and "/" not in name else None


_END = 1 << 64


class FileAnswers:
    """Answers about one file."""

    def __init__(self, path: str, request: AtosRequest, warn: Callable[[str], object]) -> None:
        """Open the file at ``path`` and its debug files.

        Raises:
            MachtraceError: it has no usable symbols.
        """
        image, file = open_named(path, request.arch, warn)
        contents = file.contents
        self._request = request
        self._slide = _slide(request, image, contents)
        self._header = int(image.header_svma)
        self._low, self._high = _bounds(contents)
        self._names = ImageNames(image, file, [path])
        self._writer = AnswerWriter(image.name, request)
        self._warn = warn
        self._warnings: set[str] = set()
        """Warnings that were printed."""

    def answer(self, addresses: Sequence[int | None]) -> list[str | None]:
        """Return an answer for each address; None for addresses outside the image."""
        stated = [
            None if address is None else self._stated_in_image(address - self._slide)
            for address in addresses
        ]
        inside = [index for index, svma in enumerate(stated) if svma is not None]
        offsets = [svma - self._header for svma in stated if svma is not None]
        # As Apple's command: an offset is shown as the address in the file.
        requested = stated if self._request.mode is AddressMode.OFFSET else addresses
        shown = [requested[index] or 0 for index in inside]
        answers: list[str | None] = [None] * len(addresses)
        texts = self._writer.answers(self._names, offsets, shown)
        for index, text in zip(inside, texts, strict=True):
            answers[index] = text
        for problem in self._names.problems:
            line = f"{problem}; {problem.remedy}"
            if line not in self._warnings:
                self._warnings.add(line)
                self._warn(line)
        return answers

    def _stated_in_image(self, address: int) -> int | None:
        return address if self._low <= address < self._high else None


def _slide(request: AtosRequest, image: BinaryImage, contents: ObjectFile) -> int:
    """Return the difference of a requested address and that of the file."""
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


def _text_exec(contents: ObjectFile) -> int:
    segment = None
    if contents.format is ImageFormat.MACHO:
        segment = contents.image.segment("__TEXT_EXEC")
    if segment is None:
        raise FormatError(
            "there is no segment __TEXT_EXEC",
            source=contents.source,
            offset=0,
            remedy="give -l with the load address; -textExecAddress is for kernels and kexts",
        )
    return int(segment.vmaddr)


def _bounds(contents: ObjectFile) -> tuple[int, int]:
    """Return the addresses of the image's header and of the end of its last segment."""
    ends: list[int]
    if contents.format is ImageFormat.MACHO:
        ends = [
            segment.vmaddr + segment.vmsize
            for segment in contents.image.segments
            if segment.vmsize and segment.name not in ("__PAGEZERO", "__DWARF")
        ]
    else:
        ends = [segment.end for segment in contents.image.load_segments]
    header = int(contents.image.header_svma)
    return header, min(max(ends, default=header), _END)
