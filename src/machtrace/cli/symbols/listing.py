"""``machtrace symbols list`` and ``find``: what is in the store, and where.

``machtrace symbols export``: the store's files as other tools look for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from machtrace.cli.tables import (
    FormatOption,
    Output,
    StoreOption,
    counted,
    readable_size,
    write_json,
    write_table,
)
from machtrace.images.store_layout import ExportLayout
from machtrace.model.image import shown_identifier

if TYPE_CHECKING:
    from machtrace.symbolstore.export import Exported
    from machtrace.symbolstore.store import StoredFile, SymbolStore


def list_files(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Only of images so named; * and ? stand for any text.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    format: FormatOption = Output.TEXT,  # noqa: A002 - the option's name
) -> None:
    """List the images in the store."""
    from machtrace.cli.console import output
    from machtrace.symbolstore.store import SymbolStore

    there = SymbolStore(store)
    files = [one for one in there.files() if name is None or is_named(one, name)]
    with output():
        if format is Output.JSON:
            write_json({"store": str(there.root), "files": [document(one) for one in files]})
            return
        images = _by_image(files)
        if images:
            write_table(
                ("UUID", "ARCH", "FILES", "SIZE", "ADDED", "NAME"),
                [_row(image) for image in images],
                right=frozenset({3}),
                fixed=frozenset({0, 1, 3, 4}),
            )
        size = readable_size(sum(one.size for one in files))
        line = f"{counted(len(images), 'image')}, {counted(len(files), 'file')}, {size}"
        sys.stdout.write(f"{line} in {_printable(str(there.root))}\n")


def find(
    what: Annotated[
        str,
        typer.Argument(metavar="UUID", help="A UUID or build-id, with dashes or not; or a name."),
    ],
    *,
    arch: Annotated[str | None, typer.Option(help="Only of this architecture.")] = None,
    store: StoreOption = None,
    format: FormatOption = Output.TEXT,  # noqa: A002 - the option's name
) -> None:
    """Print the paths of an image's files in the store, the debug file first.

    The status is 1 where there are none.
    """
    from machtrace.cli.console import output, warn
    from machtrace.images.store_layout import parse_identifier
    from machtrace.symbolstore.store import SymbolStore

    there = SymbolStore(store)
    identifier = parse_identifier(what)
    files: Iterable[StoredFile] = () if identifier is None else there.files_of(identifier)
    found = [one for one in files if arch in (None, one.arch)]
    if not found:
        found = [one for one in there.files() if is_named(one, what) and arch in (None, one.arch)]
    found.sort(key=lambda one: (str(one.identifier), one.kind.value))
    with output() as sink:
        if format is Output.JSON:
            write_json({"store": str(there.root), "files": [document(one) for one in found]})
        else:
            for one in found:
                sink.write(f"{_printable(str(one.path))}\n")
    if not found:
        nothing = f"nothing for {_printable(what)} in {_printable(str(there.root))}"
        if identifier is None:
            why = "it is no UUID or build-id, and no image there has the name"
            warn(f"{nothing}: {why}; see machtrace symbols list")
        else:
            warn(f"{nothing}; add files with machtrace symbols add")
        raise typer.Exit(1)


def is_named(stored: StoredFile, pattern: str) -> bool:
    """Whether the file's name is ``pattern``, in any case, or matches it."""
    from fnmatch import fnmatchcase

    return fnmatchcase((stored.name or "").lower(), pattern.lower())


def document(stored: StoredFile) -> dict[str, Any]:
    """``stored`` for machines."""
    from machtrace.model.text import encodable

    return {
        "uuid": shown_identifier(stored.identifier),
        "arch": stored.arch,
        "kind": stored.kind.value,
        "name": None if stored.name is None else encodable(stored.name),
        "size": stored.size,
        "added": local_time(stored.added),
        "path": encodable(str(stored.path)),
    }


def _by_image(files: Sequence[StoredFile]) -> list[list[StoredFile]]:
    images: dict[tuple[str, str | None], list[StoredFile]] = {}
    for one in files:
        images.setdefault((str(one.identifier), one.arch), []).append(one)
    return list(images.values())


def _row(files: Sequence[StoredFile]) -> tuple[str, ...]:
    names = dict.fromkeys(one.name for one in files if one.name)
    return (
        shown_identifier(files[0].identifier),
        files[0].arch or "?",
        " ".join(sorted(one.kind.value for one in files)),
        readable_size(sum(one.size for one in files)),
        local_time(min(one.added for one in files))[:16].replace("T", " "),
        _printable(", ".join(names) or "?"),
    )


def local_time(seconds: float) -> str:
    """A moment in the local time zone, as ISO 8601 has it."""
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return "?"


def _printable(text: str) -> str:
    from machtrace.model.text import printable

    return printable(text)


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
    from machtrace.symbolstore.export import ExportResult, export_file
    from machtrace.symbolstore.store import SymbolStore

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
