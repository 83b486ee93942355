"""``machtrace image``: what a program or library file holds, and what is at an address in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from machtrace.errors import MachtraceError
from machtrace.model.address import Svma

if TYPE_CHECKING:  # they bring numpy, which the command line's help can do without
    from machtrace.cli.image.description import DescribedImage, ImageDescription


class ImageOutput(StrEnum):
    """How to print what was found."""

    TEXT = "text"
    JSON = "json"


def image(
    file: Annotated[
        Path, typer.Argument(help="A Mach-O file, thin or fat, a dSYM bundle, or an ELF file.")
    ],
    *,
    symbols: Annotated[bool, typer.Option("--symbols", help="The symbol table.")] = False,
    segments: Annotated[bool, typer.Option("--segments", help="Segments and sections.")] = False,
    debug_files: Annotated[
        bool,
        typer.Option(
            "--debug-files",
            help="Which files have its source lines and symbols, and what was looked at.",
        ),
    ] = False,
    search: Annotated[
        list[Path] | None,
        typer.Option(help="Also look for debug files here: files, bundles, folders, stores."),
    ] = None,
    lookup: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="What is at a stated address: 0x… or decimal."),
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Of a fat file, only this slice.")] = None,
    format: Annotated[  # noqa: A002 - the option's name
        ImageOutput, typer.Option(help="How to print it.")
    ] = ImageOutput.TEXT,
) -> None:
    """Show a program or library file: its slices, headers, segments and symbols.

    Without options it shows what the headers say; with them, only what they ask for. The status
    is 1 where a table could not be read, or the address is nowhere in the file.
    """
    from machtrace.cli.console import output, print_error
    from machtrace.cli.image.opening import open_described

    address = None if lookup is None else _address(lookup)
    places = (search or []) if debug_files or search else None
    path, images = open_described(file, arch)
    with output():
        if format is ImageOutput.JSON:
            _write_json(path, images, symbols=symbols, address=address, search=places)
        else:
            _write_text(
                path, images, symbols=symbols, segments=segments, address=address, search=places
            )
    problems = [problem for one in images for problem in one.problems]
    for problem in problems:
        print_error(problem)
    if problems:
        raise typer.Exit(1)


def _address(text: str) -> Svma:
    try:
        address = int(text, 0)
    except ValueError:
        address = -1
    if not 0 <= address < 1 << 64:
        raise typer.BadParameter(
            f"{text!r} is no address; write 0x100003f80 or 4294983552", param_hint="--lookup"
        )
    return Svma(address)


def _write_text(
    path: Path,
    images: Sequence[DescribedImage],
    *,
    symbols: bool,
    segments: bool,
    address: Svma | None,
    search: Sequence[Path] | None,
) -> None:
    from machtrace.cli.console import wants_colour
    from machtrace.cli.image import text as image_text

    style = image_text.Style.of(colour=wants_colour(sys.stdout))
    is_overview = not (symbols or segments or search is not None or address is not None)
    shown = False
    for one in images:
        described = one.describe()
        found = None if address is None else one.look_up(address)
        parts = [image_text.overview(described, style)] if is_overview else []
        if segments:
            parts.append(image_text.segments(described, style))
        if symbols:
            parts.append(image_text.symbols(one.symbols()))
        if found is not None:
            parts.append(image_text.looked_up(found))
        if search is not None:
            parts.append(_files(path, described, search))
        if parts:
            shown = True
            sys.stdout.write(f"{image_text.heading(described, style)}\n")
            sys.stdout.writelines(f"{line}\n" for line in chain.from_iterable(parts))
    if not shown and address is not None:
        raise _nowhere(path, address)


def _files(path: Path, described: ImageDescription, search: Sequence[Path]) -> Iterator[str]:
    from machtrace.cli.image.debug_files import describe_files, files_text

    return files_text(describe_files(path, described, search))


def _write_json(
    path: Path,
    images: Sequence[DescribedImage],
    *,
    symbols: bool,
    address: Svma | None,
    search: Sequence[Path] | None,
) -> None:
    import json
    from dataclasses import asdict

    documents = []
    nowhere = address is not None
    for one in images:
        described = one.describe()
        document = asdict(described)
        if symbols:
            document["symbols"] = [row._asdict() for row in one.symbols()]
        if address is not None:
            found = one.look_up(address)
            nowhere = nowhere and found is None
            document["lookup"] = None if found is None else asdict(found)
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
        f"{address:#x} is in no segment: {path}",
        remedy="give a stated address, the slide taken off; --segments shows where they are",
    )
