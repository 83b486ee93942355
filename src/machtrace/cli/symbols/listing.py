"""``machtrace symbols list``, ``find`` and ``export``: the files of the store."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from machtrace.cli.options import (
    DocumentFormat,
    complete_folders,
    enum_option,
    format_option,
    parse_path,
    store_option,
)
from machtrace.cli.tables import readable_size, write_json, write_table
from machtrace.images.store_layout import ExportLayout
from machtrace.model.image import shown_identifier
from machtrace.model.text import counted

if TYPE_CHECKING:
    from machtrace.symbolstore.export import Exported
    from machtrace.symbolstore.store import StoredFile, SymbolStore


@click.command("list")
@click.argument("name", metavar="[NAME]", required=False)
@store_option
@format_option()
def list_files(*, name: str | None, store: Path | None, form: DocumentFormat) -> None:
    """List the images in the store.

    NAME selects images by name; * and ? match any text.
    """
    from machtrace.cli.console import output
    from machtrace.symbolstore.store import SymbolStore

    symbol_store = SymbolStore(store)
    files = [stored for stored in symbol_store.files() if name is None or is_named(stored, name)]
    with output():
        if form is DocumentFormat.JSON:
            write_json(
                {"store": str(symbol_store.root), "files": [document(stored) for stored in files]}
            )
            return
        images = _by_image(files)
        if images:
            write_table(
                ("UUID", "ARCH", "FILES", "SIZE", "ADDED", "NAME"),
                [_row(image) for image in images],
                right=frozenset({3}),
                fixed=frozenset({0, 1, 3, 4}),
            )
        size = readable_size(sum(stored.size for stored in files))
        line = f"{counted(len(images), 'image')}, {counted(len(files), 'file')}, {size}"
        sys.stdout.write(f"{line} in {_printable(str(symbol_store.root))}\n")


@click.command()
@click.argument("selector", metavar="UUID")
@click.option("--arch", metavar="ARCH", help="Only files of this architecture.")
@store_option
@format_option()
def find(*, selector: str, arch: str | None, store: Path | None, form: DocumentFormat) -> int:
    """Print the paths of an image's files in the store.

    UUID is a UUID or build-id, with or without dashes, or a name. The debug file comes first. The
    exit status is 1 if the store has no such file.
    """
    from machtrace.cli.console import output, warn
    from machtrace.images.store_layout import parse_identifier
    from machtrace.symbolstore.store import SymbolStore

    symbol_store = SymbolStore(store)
    identifier = parse_identifier(selector)
    files: Iterable[StoredFile] = () if identifier is None else symbol_store.files_of(identifier)
    matches = [stored for stored in files if arch in (None, stored.arch)]
    if not matches:
        matches = [
            stored
            for stored in symbol_store.files()
            if is_named(stored, selector) and arch in (None, stored.arch)
        ]
    matches.sort(key=lambda stored: (str(stored.identifier), stored.kind.value))
    with output() as sink:
        if form is DocumentFormat.JSON:
            write_json(
                {"store": str(symbol_store.root), "files": [document(stored) for stored in matches]}
            )
        else:
            for stored in matches:
                sink.write(f"{_printable(str(stored.path))}\n")
    if matches:
        return 0
    if identifier is None:
        nothing = f"{_printable(selector)} is neither a UUID, a build-id nor an image's name"
        warn(
            f"{nothing} in {_printable(str(symbol_store.root))}", hint="see machtrace symbols list"
        )
    else:
        nothing = f"nothing for {_printable(selector)} in {_printable(str(symbol_store.root))}"
        warn(nothing, hint="add files with machtrace symbols add")
    return 1


def is_named(stored: StoredFile, pattern: str) -> bool:
    """Return whether the file's name matches ``pattern``, in any case."""
    from fnmatch import fnmatchcase

    return fnmatchcase((stored.name or "").lower(), pattern.lower())


def document(stored: StoredFile) -> dict[str, Any]:
    """Return the JSON document of a stored file."""
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
    for stored in files:
        images.setdefault((str(stored.identifier), stored.arch), []).append(stored)
    return list(images.values())


def _row(files: Sequence[StoredFile]) -> tuple[str, ...]:
    names = dict.fromkeys(stored.name for stored in files if stored.name)
    return (
        shown_identifier(files[0].identifier),
        files[0].arch or "?",
        " ".join(sorted(stored.kind.value for stored in files)),
        readable_size(sum(stored.size for stored in files)),
        local_time(min(stored.added for stored in files))[:16].replace("T", " "),
        _printable(", ".join(names) or "?"),
    )


def local_time(seconds: float) -> str:
    """Return a time in the local time zone, in ISO 8601."""
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return "?"


def _printable(text: str) -> str:
    from machtrace.model.text import printable

    return printable(text)


@click.command()
@click.argument("folder", metavar="FOLDER", type=parse_path, shell_complete=complete_folders)
@click.argument("selectors", metavar="[UUID]...", nargs=-1)
@enum_option(
    "--layout",
    members=ExportLayout,
    help="lldb: for DBGFileMappedPaths on a Mac; build-id: for GDB; debuginfod and ssqp: for "
    "servers; unified: as the store itself.",
)
@store_option
@format_option()
def export(
    *,
    folder: Path,
    selectors: tuple[str, ...],
    layout: ExportLayout,
    store: Path | None,
    form: DocumentFormat,
) -> int:
    """Write the store's files in the layout of another tool.

    FOLDER is created if it does not exist. UUID selects images by UUID, build-id or name; all by
    default.

    For lldb: dSYM bundles, and a link for each UUID into its bundle. On a Mac, lldb, sample and
    others find them after: defaults write com.apple.DebugSymbols DBGFileMappedPaths FOLDER

    The exit status is 1 if another file has the name of one to write, or nothing is found to
    export.
    """
    from machtrace.cli.console import output, warn
    from machtrace.symbolstore.export import ExportResult, export_file
    from machtrace.symbolstore.store import SymbolStore

    symbol_store = SymbolStore(store)
    missing, files = _chosen(symbol_store, selectors)
    exported = [export_file(result_file, folder, layout) for result_file in files]
    with output():
        if form is DocumentFormat.JSON:
            write_json(
                {
                    "folder": str(folder),
                    "files": [_document(result_file) for result_file in exported],
                }
            )
        else:
            for result in ExportResult:
                count = sum(result_file.result is result for result_file in exported)
                if count:
                    sys.stdout.write(f"{count:>7,}  {result.value}\n")
    for word in missing:
        warn(f"nothing for {word} in {symbol_store.root}")
    collisions = [
        result_file for result_file in exported if result_file.result is ExportResult.COLLISION
    ]
    for result_file in collisions:
        warn(f"{result_file.result.value}: {result_file.path}; not replaced")
    if not exported:
        warn(f"nothing to export in {symbol_store.root}")
    return int(bool(missing or collisions) or not any(result_file.path for result_file in exported))


def _chosen(store: SymbolStore, words: Sequence[str]) -> tuple[list[str], list[StoredFile]]:
    """Return the words that match nothing, and the files that the others match, each once."""
    from machtrace.images.store_layout import parse_identifier

    if not words:
        return [], list(store.files())
    missing: list[str] = []
    chosen: dict[Path, StoredFile] = {}
    for word in words:
        identifier = parse_identifier(word)
        matches = [] if identifier is None else store.files_of(identifier)
        matches = matches or [stored for stored in store.files() if is_named(stored, word)]
        if not matches:
            missing.append(word)
        chosen |= {stored.path: stored for stored in matches}
    return missing, list(chosen.values())


def _document(exported: Exported) -> dict[str, str | None]:
    return {
        "uuid": shown_identifier(exported.stored.identifier),
        "kind": exported.stored.kind.value,
        "result": exported.result.value,
        "path": None if exported.path is None else str(exported.path),
    }
