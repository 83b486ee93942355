"""Opening the files that ``machtrace image`` shows."""

from __future__ import annotations

from os.path import isdir
from pathlib import Path

from machtrace.cli.image.description import DescribedImage
from machtrace.cli.image.macho import DescribedMachO
from machtrace.errors import FileAccessError, FormatError, MachOError
from machtrace.formats.object_file import ObjectSlice, Signature, signature, sniff
from machtrace.images.open_file import open_image_file


def open_described(path: Path, arch: str | None) -> tuple[Path, tuple[DescribedImage, ...]]:
    """Return the file that ``path`` names and its images; ``arch`` selects one of a fat file's.

    Raises:
        FileAccessError: there is no such file, or it cannot be read.
        FormatError: it is neither Mach-O nor ELF, is malformed, or has no slice for ``arch``.
    """
    path = _in_bundle(path)
    data = open_image_file(path)
    source = str(path)
    kind = signature(data)
    if kind is Signature.STATIC_LIBRARY:
        raise MachOError(
            "a static library is an archive of object files",
            source=source,
            offset=0,
            remedy="unpack it with ar -x and give one of the files",
        )
    if kind is None:
        raise MachOError(
            "neither Mach-O nor ELF",
            source=source,
            offset=0,
            remedy="give an executable, a library, an object file, a core or a dSYM",
        )
    slices = sniff(data, source)
    _check_arch(arch, [part.arch_name for part in slices], source)
    return path, tuple(_described(part) for part in slices if arch in (None, part.arch_name))


def _described(part: ObjectSlice) -> DescribedImage:
    if part.fat is not None:
        return DescribedMachO(part.fat, part.source)
    from machtrace.cli.image.elf import DescribedElf

    return DescribedElf(part.data, part.source)


def _check_arch(wanted: str | None, present: list[str], source: str) -> None:
    if wanted is not None and wanted not in present:
        raise FormatError(
            f"nothing in the file is for {wanted}",
            source=source,
            offset=0,
            remedy=f"give --arch one of {', '.join(present)}",
        )


def _in_bundle(path: Path) -> Path:
    """Return the file in a dSYM bundle; any other path unchanged."""
    inside = path / "Contents" / "Resources" / "DWARF"
    if path.suffix != ".dSYM" or not isdir(inside):  # noqa: PTH112 - Path.is_dir may raise
        return path
    try:
        files = sorted(inside.iterdir())
    except OSError as error:
        raise FileAccessError(str(inside), error.strerror or "cannot be read") from error
    if len(files) != 1:
        raise FileAccessError(str(inside), f"{len(files)} files in a dSYM; give one of them")
    return files[0]
