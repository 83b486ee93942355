"""``machtrace image``: the contents of a program or library file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING

import click

from machtrace.cli.options import (
    DocumentFormat,
    check_search_paths,
    complete_files,
    format_option,
    parse_path,
    search_option,
)
from machtrace.errors import FileAccessError, FormatError, MachtraceError
from machtrace.images.dsym import dsym_error
from machtrace.model.address import Svma

if TYPE_CHECKING:  # its package is imported when the command runs
    from machtrace.cli.image.description import DescribedImage, ImageDescription
    from machtrace.formats.object_file import ObjectSlice


def _address(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Svma | None:
    if text is None:
        return None
    try:
        address = int(text, 0)
    except ValueError:
        address = -1
    if not 0 <= address < 1 << 64:
        raise click.BadParameter(f"{text!r} is not an address; write 0x100003f80 or 4294983552")
    return Svma(address)


@click.command()
@click.argument("file", metavar="FILE", type=parse_path, shell_complete=complete_files)
@click.option("--symbols", is_flag=True, help="Show the symbol table.")
@click.option("--segments", is_flag=True, help="Show segments and sections.")
@click.option(
    "--debug-files",
    is_flag=True,
    help="Show which files hold its source lines and symbols, and which were examined.",
)
@search_option
@click.option(
    "--lookup",
    "address",
    metavar="ADDRESS",
    callback=_address,
    help="Show what is at an address of the file, without slide: 0x... or decimal.",
)
@click.option("--arch", metavar="ARCH", help="Show only this slice of a fat file.")
@format_option()
def image(
    *,
    file: Path,
    symbols: bool,
    segments: bool,
    debug_files: bool,
    search: tuple[str, ...],
    address: Svma | None,
    arch: str | None,
    form: DocumentFormat,
) -> int:
    """Show a program or library file: its slices, headers, segments and symbols.

    FILE is a Mach-O file, thin or fat, a dSYM bundle, or an ELF file. Without options its headers
    are summarised; options select parts. The exit status is 1 if a table could not be read, or the
    address is in no segment.
    """
    from machtrace.cli.console import output, print_error

    check_search_paths(search)
    searched = search if debug_files or search else None
    path, images = _open(file, arch)
    with output():
        if form is DocumentFormat.JSON:
            _write_json(path, images, symbols=symbols, address=address, search=searched)
        else:
            _write_text(
                path, images, symbols=symbols, segments=segments, address=address, search=searched
            )
    problems = [problem for described in images for problem in described.problems]
    for problem in problems:
        print_error(problem)
    return 1 if problems else 0


def _open(path: Path, arch: str | None) -> tuple[Path, tuple[DescribedImage, ...]]:
    """Return the file that ``path`` names and its images; ``arch`` selects one of a fat file's.

    Raises:
        FileAccessError: there is no such file, or it cannot be read.
        FormatError: it is neither Mach-O nor ELF, is malformed, or has no slice for ``arch``.
    """
    from machtrace.errors import MachOError
    from machtrace.formats.object_file import Signature, signature, sniff
    from machtrace.images.open_file import open_image_file

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
        from machtrace.cli.image.macho import DescribedMachO

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
        raise dsym_error(inside, len(files))
    return files[0]


def _write_text(
    path: Path,
    images: Sequence[DescribedImage],
    *,
    symbols: bool,
    segments: bool,
    address: Svma | None,
    search: Sequence[str] | None,
) -> None:
    from machtrace.cli.console import wants_colour
    from machtrace.cli.image import text as image_text

    style = image_text.Style.of(colour=wants_colour(sys.stdout))
    is_overview = not (symbols or segments or search is not None or address is not None)
    shown = False
    for described_image in images:
        described = described_image.describe()
        address_contents = None if address is None else described_image.look_up(address)
        parts = [image_text.overview(described, style)] if is_overview else []
        if segments:
            parts.append(image_text.segments(described, style))
        if symbols:
            parts.append(image_text.symbols(described_image.symbols()))
        if address_contents is not None:
            parts.append(image_text.looked_up(address_contents))
        if search is not None:
            parts.append(_files(path, described, search))
        if parts:
            shown = True
            sys.stdout.write(f"{image_text.heading(described, style)}\n")
            sys.stdout.writelines(f"{line}\n" for line in chain.from_iterable(parts))
    if not shown and address is not None:
        raise _nowhere(path, address)


def _files(path: Path, described: ImageDescription, search: Sequence[str]) -> Iterator[str]:
    from machtrace.cli.image.debug_files import describe_files, files_text

    return files_text(describe_files(path, described, search))


def _write_json(
    path: Path,
    images: Sequence[DescribedImage],
    *,
    symbols: bool,
    address: Svma | None,
    search: Sequence[str] | None,
) -> None:
    import json
    from dataclasses import asdict

    documents = []
    nowhere = address is not None
    for described_image in images:
        described = described_image.describe()
        document = asdict(described)
        if symbols:
            document["symbols"] = [row._asdict() for row in described_image.symbols()]
        if address is not None:
            address_contents = described_image.look_up(address)
            nowhere = nowhere and address_contents is None
            document["lookup"] = None if address_contents is None else asdict(address_contents)
        if search is not None:
            from machtrace.cli.image.debug_files import describe_files

            document["debug_files"] = asdict(describe_files(path, described, search))
        documents.append(document)
    if nowhere and address is not None:
        raise _nowhere(path, address)
    json.dump({"schema": 1, "file": str(path), "images": documents}, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _nowhere(path: Path, address: Svma) -> MachtraceError:
    return MachtraceError(
        f"{address:#x} is in no segment of {path}",
        remedy="pass an address of the file, without slide; --segments lists the segments",
    )
