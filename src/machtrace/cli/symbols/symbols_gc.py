"""``machtrace symbols gc``: take out of the store what is not needed."""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from machtrace.cli.tables import (
    FormatOption,
    Output,
    StoreOption,
    counted,
    parse_age,
    parse_size,
    readable_size,
    write_json,
)

if TYPE_CHECKING:  # they bring what reads files, which the command line's help can do without
    from machtrace.symbolstore.store import SymbolStore
    from machtrace.symbolstore.gc import Removal


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
    from machtrace.symbolstore.store import SymbolStore
    from machtrace.symbolstore.gc import check_is_store, remove

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
    from machtrace.render.printable import printable

    for one in removals:
        sys.stdout.write(f"{printable(str(one.path))}: {one.reason.value}\n")
    size = readable_size(sum(one.size for one in removals))
    verb = "would be removed" if dry_run else "removed"
    sys.stdout.write(f"{counted(len(removals), 'file')} {verb}, {size}\n")
