"""``machtrace symbols missing``: what a report or core still needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from machtrace.cli.tables import (
    FormatOption,
    Output,
    StoreOption,
    counted,
    write_json,
    write_table,
)
from machtrace.model.image import shown_identifier

if TYPE_CHECKING:  # it brings what reads files, which the command line's help can do without
    from machtrace.cli.symbols.needed_images import NeededImage


def missing(
    report: Annotated[
        str,
        typer.Argument(
            metavar="REPORT",
            help="A crash report (.ips, .crash or other text), a core, a process id; - for stdin.",
        ),
    ],
    *,
    system: Annotated[
        bool,
        typer.Option("--system/--no-system", help="List images of the operating system, too."),
    ] = True,
    store: StoreOption = None,
    format: FormatOption = Output.TEXT,  # noqa: A002 - the option's name
) -> None:
    """Say which images of a report the store lacks, or has without their debug files.

    The program's own images come first. Of a core or process, files that this machine has where
    the program had them count as well. The status is 1 where nothing of an image is there.
    """
    from machtrace.cli.console import output
    from machtrace.cli.symbols.needed_images import needed_images
    from machtrace.symbolstore.store import SymbolStore

    there = SymbolStore(store)
    images = [one for one in needed_images(report, there) if system or not one.is_system]
    images.sort(key=lambda one: (one.is_system, bool(one.kinds), one.name))
    lacking = [one for one in images if not one.kinds]
    partial = [one for one in images if one.kinds and not one.has_debug_file]
    with output():
        if format is Output.JSON:
            write_json({"store": str(there.root), "images": [_document(one) for one in images]})
        else:
            if lacking or partial:
                write_table(
                    ("UUID", "ARCH", "MISSING", "NAME"),
                    [_row(one) for one in (*lacking, *partial)],
                    fixed=frozenset({0, 1}),
                )
            sys.stdout.write(
                f"{counted(len(images), 'image')}: {len(lacking):,} missing, {len(partial):,} "
                f"without a debug file, {len(images) - len(lacking) - len(partial):,} complete\n"
            )
    if lacking:
        raise typer.Exit(1)


def _row(one: NeededImage) -> tuple[str, ...]:
    from machtrace.render.printable import printable

    identifier = "without UUID" if one.identifier is None else shown_identifier(one.identifier)
    what = "debug file" if one.kinds else "all"
    return identifier, one.arch or "?", what, printable(one.path or one.name or "?")


def _document(one: NeededImage) -> dict[str, Any]:
    from machtrace.render.printable import encodable

    return {
        "uuid": None if one.identifier is None else shown_identifier(one.identifier),
        "arch": one.arch,
        "name": encodable(one.name),
        "path": encodable(one.path),
        "system": one.is_system,
        "stored": sorted(kind.value for kind in one.kinds),
    }
