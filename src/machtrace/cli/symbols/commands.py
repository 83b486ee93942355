"""``machtrace symbols``: the store of images and debug files that names are looked up in.

``machtrace symbols gc``: take out of the store what is not needed.

``machtrace symbols missing``: what a report or core still needs.
"""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from machtrace.cli.symbols.add import add
from machtrace.cli.symbols.listing import export, find, list_files
from machtrace.cli.tables import (
    FormatOption,
    Output,
    StoreOption,
    counted,
    parse_age,
    parse_size,
    readable_size,
    write_json,
    write_table,
)
from machtrace.model.image import shown_identifier

if TYPE_CHECKING:
    from machtrace.cli.symbols.needed_images import NeededImage
    from machtrace.symbolstore.gc import Removal
    from machtrace.symbolstore.store import SymbolStore


def gc(
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Keep this much at most, as 20G: the longest unused files go.",
            show_default=False,
        ),
    ] = None,
    unused_for: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Remove what was neither added nor read for so long, as 90d.",
            show_default=False,
        ),
    ] = None,
    *,
    orphans: Annotated[
        bool,
        typer.Option("--orphans", help="Remove files whose own UUID is not that of their place."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only say what would be removed.")
    ] = False,
    store: StoreOption = None,
    format: FormatOption = Output.TEXT,  # noqa: A002 - the option's name
) -> None:
    """Remove leftovers of interrupted commands, and what the options ask for."""
    from machtrace.cli.console import output
    from machtrace.symbolstore.gc import check_is_store, remove
    from machtrace.symbolstore.store import SymbolStore

    limit = None if max_size is None else parse_size(max_size, "--max-size")
    age = None if unused_for is None else parse_age(unused_for, "--unused-for")
    there = SymbolStore(store)
    check_is_store(there)
    removals = _removals(there, limit=limit, age=age, orphans=orphans)
    if not dry_run:
        remove(there, removals)
    with output():
        if format is Output.JSON:
            write_json(
                {
                    "store": str(there.root),
                    "dry_run": dry_run,
                    "removed": [
                        {"path": str(one.path), "size": one.size, "reason": one.reason.value}
                        for one in removals
                    ],
                }
            )
        else:
            _write_text(removals, dry_run=dry_run)


def _removals(
    store: SymbolStore, *, limit: int | None, age: float | None, orphans: bool
) -> list[Removal]:
    import time

    from machtrace.symbolstore.gc import (
        beyond_size,
        leftovers,
        misplaced,
        unused_since,
    )

    now = time.time()
    removals = {one.path: one for one in leftovers(store, now=now)}
    files = list(store.files())
    for one in chain(
        misplaced(files) if orphans else (),
        () if age is None else unused_since(files, now - age),
    ):
        removals.setdefault(one.path, one)
    if limit is not None:
        kept = [one for one in files if one.path not in removals]
        removals |= {one.path: one for one in beyond_size(kept, limit)}
    return list(removals.values())


def _write_text(removals: list[Removal], *, dry_run: bool) -> None:
    from machtrace.model.text import printable

    for one in removals:
        sys.stdout.write(f"{printable(str(one.path))}: {one.reason.value}\n")
    size = readable_size(sum(one.size for one in removals))
    verb = "would be removed" if dry_run else "removed"
    sys.stdout.write(f"{counted(len(removals), 'file')} {verb}, {size}\n")


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
    from machtrace.model.text import printable

    identifier = "without UUID" if one.identifier is None else shown_identifier(one.identifier)
    what = "debug file" if one.kinds else "all"
    return identifier, one.arch or "?", what, printable(one.path or one.name or "?")


def _document(one: NeededImage) -> dict[str, Any]:
    from machtrace.model.text import encodable

    return {
        "uuid": None if one.identifier is None else shown_identifier(one.identifier),
        "arch": one.arch,
        "name": encodable(one.name),
        "path": encodable(one.path),
        "system": one.is_system,
        "stored": sorted(kind.value for kind in one.kinds),
    }


symbols_app = typer.Typer(
    help="Keep images and dSYMs in a store, by UUID, for names to be found in it.",
    no_args_is_help=True,
)
symbols_app.command("add")(add)
symbols_app.command("list")(list_files)
symbols_app.command("find")(find)
symbols_app.command("missing")(missing)
symbols_app.command("export")(export)
symbols_app.command("gc")(gc)
