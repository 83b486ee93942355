"""``machtrace symbols export``: the store's files as other tools look for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from machtrace.cli.tables import (
    FormatOption,
    Output,
    StoreOption,
    write_json,
)
from machtrace.model.image import shown_identifier
from machtrace.images.store_layout import ExportLayout

if TYPE_CHECKING:  # they bring what reads files, which the command line's help can do without
    from machtrace.symbolstore.store import StoredFile, SymbolStore
    from machtrace.symbolstore.export import Exported


def export(
    folder: Annotated[Path, typer.Argument(help="Where to write; it need not exist.")],
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[UUID]…", help="Which images, by UUID or name; all by default."),
    ] = None,
    *,
    layout: Annotated[
        ExportLayout,
        typer.Option(
            help="lldb: for DBGFileMappedPaths on a Mac; build-id: for GDB; debuginfod and ssqp: "
            "for servers; unified: as the store itself."
        ),
    ] = ExportLayout.LLDB,
    store: StoreOption = None,
    format: FormatOption = Output.TEXT,  # noqa: A002 - the option's name
) -> None:
    """Write the store's files in the layout of another tool.

    For lldb: dSYM bundles, and for each UUID a link into its bundle. On a Mac, lldb, sample and
    others find them after: defaults write com.apple.DebugSymbols DBGFileMappedPaths FOLDER

    The status is 1 where something else is in a file's place, or nothing is found to export.
    """
    from machtrace.cli.console import output, warn
    from machtrace.symbolstore.store import SymbolStore
    from machtrace.symbolstore.export import ExportResult, export_file

    there = SymbolStore(store)
    missing, files = _chosen(there, what or [])
    exported = [export_file(one, folder, layout) for one in files]
    with output():
        if format is Output.JSON:
            write_json({"folder": str(folder), "files": [_document(one) for one in exported]})
        else:
            for result in ExportResult:
                count = sum(one.result is result for one in exported)
                if count:
                    sys.stdout.write(f"{count:>7,}  {result.value}\n")
    for word in missing:
        warn(f"nothing for {word} in {there.root}")
    collisions = [one for one in exported if one.result is ExportResult.COLLISION]
    for one in collisions:
        warn(f"{one.result.value}: {one.path}; it was left alone")
    if missing or collisions or not any(one.path for one in exported):
        if not exported:
            warn(f"there is nothing to export in {there.root}")
        raise typer.Exit(1)


def _chosen(store: SymbolStore, words: list[str]) -> tuple[list[str], list[StoredFile]]:
    """Words that name nothing, and the files that the others name, each once."""
    from machtrace.cli.symbols.listing import is_named
    from machtrace.images.store_layout import parse_identifier

    if not words:
        return [], list(store.files())
    missing: list[str] = []
    chosen: dict[Path, StoredFile] = {}
    for word in words:
        identifier = parse_identifier(word)
        found = [] if identifier is None else store.files_of(identifier)
        found = found or [one for one in store.files() if is_named(one, word)]
        if not found:
            missing.append(word)
        chosen |= {one.path: one for one in found}
    return missing, list(chosen.values())


def _document(one: Exported) -> dict[str, str | None]:
    return {
        "uuid": shown_identifier(one.stored.identifier),
        "kind": one.stored.kind.value,
        "result": one.result.value,
        "path": None if one.path is None else str(one.path),
    }
