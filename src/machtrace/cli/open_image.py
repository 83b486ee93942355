"""Opening the files that ``machtrace image`` shows."""

from __future__ import annotations

from pathlib import Path

from machtrace.cli.image_description import DescribedImage
from machtrace.cli.macho_description import DescribedMachO
from machtrace.errors import FileAccessError, MachOError
from machtrace.macho.fat import is_fat, parse_slices
from machtrace.macho.header import is_macho
from machtrace.symbolicate.image_file import open_image_file

_ARCHIVE_MAGIC = b"!<arch>\n"


def open_described(path: Path, arch: str | None) -> tuple[Path, tuple[DescribedImage, ...]]:
    """The file that ``path`` names, and its images; ``arch`` picks one of a fat file's.

    Raises:
        FileAccessError: there is no such file, or it cannot be read.
        FormatError: it is neither Mach-O nor ELF, is malformed, or has no slice for ``arch``.
    """
    path = _in_bundle(path)
    data = open_image_file(path)
    source = str(path)
    if bytes(data[:8]) == _ARCHIVE_MAGIC:
        raise MachOError(
            "a static library is an archive of object files",
            source=source,
            offset=0,
            remedy="unpack it with ar -x and give one of the files",
        )
    if not is_macho(data) and not is_fat(data):
        raise MachOError(
            "neither Mach-O nor ELF",
            source=source,
            offset=0,
            remedy="give an executable, a library, an object file, a core or a dSYM",
        )
    slices = parse_slices(data, source)
    chosen = [part for part in slices if arch is None or part.arch_name == arch]
    if not chosen:
        names = ", ".join(part.arch_name for part in slices)
        raise MachOError(
            f"no slice is for {arch}", source=source, offset=0, remedy=f"give --arch one of {names}"
        )
    return path, tuple(DescribedMachO(part, source) for part in chosen)


def _in_bundle(path: Path) -> Path:
    """The file in a dSYM bundle; anything else as it is."""
    inside = path / "Contents" / "Resources" / "DWARF"
    if path.suffix != ".dSYM" or not inside.is_dir():
        return path
    files = sorted(inside.iterdir())
    if len(files) != 1:
        raise FileAccessError(str(inside), f"{len(files)} files in a dSYM; give one of them")
    return files[0]
