"""``machtrace symbols``: the store of images and debug files in which names are looked up."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from machtrace.cli.application import LazyCommand, lazy_group
from machtrace.cli.options import (
    DocumentFormat,
    complete_files,
    format_option,
    parse_age,
    size_type,
    store_option,
)
from machtrace.cli.tables import readable_size, write_json, write_table
from machtrace.model.image import shown_identifier
from machtrace.model.text import counted

if TYPE_CHECKING:
    from machtrace.symbolstore.gc import Removal
    from machtrace.symbolstore.store import SymbolStore

import re
from collections.abc import Iterator

from machtrace.errors import FileAccessError
from machtrace.formats.object_file import signature
from machtrace.frozen import dataclass
from machtrace.images.open_file import open_image_file
from machtrace.images.store_layout import FileKind, Identifier
from machtrace.reports.image_lists import listed_images
from machtrace.symbolstore.store import SymbolStore

_SYSTEM = re.compile(
    r"^/(?:System|usr/lib|usr/libexec|Library/Apple|lib|lib64)/"
    r"|/RuntimeRoot/|/iOS DeviceSupport/|^\[.*\]$|^linux-(?:vdso|gate)"
)
"""Paths of images that come with an operating system."""
_VDSO = re.compile(r"\[vdso\]|linux-(?:vdso|gate)\.so\.1")
"""The name of the kernel's image in each process, which has no file."""
_TEXT_LIMIT = 256 << 20
"""Bytes of a report that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededImage:
    """An image that a report, core or process lists."""

    identifier: Identifier | None
    arch: str | None
    name: str
    path: str
    kinds: frozenset[FileKind]
    """The kinds of its files that the store has or, for a target's image, this machine."""

    @property
    def has_debug_file(self) -> bool:
        """Whether the file with its debug information is available."""
        return FileKind.DEBUGINFO in self.kinds

    @property
    def is_system(self) -> bool:
        """Whether it belongs to the operating system, judged by its path."""
        return _SYSTEM.search(self.path) is not None


def needed_images(spec: str, store: SymbolStore) -> Iterator[NeededImage]:
    """Yield the images with files of ``spec``: a report's path, a target, or ``-`` for stdin.

    Raises:
        MachtraceError: it cannot be read, or lists no images.
    """
    text = _report_text(spec)
    images = _of_target(spec, store) if text is None else _of_report(text, spec, store)
    return (image for image in images if not _VDSO.fullmatch(image.name))


def _of_report(text: str, spec: str, store: SymbolStore) -> Iterator[NeededImage]:
    for image in listed_images(text, "standard input" if spec == "-" else spec):
        yield NeededImage(
            identifier=image.identifier,
            arch=image.arch,
            name=image.name,
            path=image.path,
            kinds=_kinds(store, image.identifier),
        )


def _of_target(spec: str, store: SymbolStore) -> Iterator[NeededImage]:
    """Yield a target's images; files at the paths that the target reports count as well."""
    from machtrace.images.resolver import ImageResolver
    from machtrace.model.symbol import FrameStatus
    from machtrace.pipeline.backtraces import snapshot

    resolver = ImageResolver()
    for image in snapshot(spec).images:
        files = resolver.files(image)
        kinds = set() if image.uuid is None else set(_kinds(store, image.uuid))
        if not isinstance(files.binary, FrameStatus):
            kinds.add(FileKind.EXECUTABLE)
        if not isinstance(files.lines, FrameStatus):
            kinds.add(FileKind.DEBUGINFO)
        yield NeededImage(
            identifier=image.uuid,
            arch=image.arch.value,
            name=image.name,
            path=image.path,
            kinds=frozenset(kinds),
        )


def _kinds(store: SymbolStore, identifier: Identifier) -> frozenset[FileKind]:
    # Reports are not sure of architectures (arm64 for arm64e); UUIDs are.
    return frozenset(kind for kind in FileKind if store.find(identifier, None, kind))


def _report_text(spec: str) -> str | None:
    """Return the text of the report ``spec``, or None if it names a target."""
    if spec == "-":
        return sys.stdin.buffer.read(_TEXT_LIMIT).decode("utf-8", "replace")
    if spec.isdigit() or spec.startswith("emulated:") or not Path(spec).exists():
        return None
    data = open_image_file(spec)
    kind = signature(data)
    if kind is not None and kind.has_images:
        return None
    if len(data) > _TEXT_LIMIT:
        raise FileAccessError(spec, f"a report of {len(data):,} bytes is not read")
    return bytes(data).decode("utf-8", "replace")


@click.command()
@click.option(
    "--max-size",
    metavar="SIZE",
    type=size_type(),
    help="Keep at most this much, such as 20G: the files unused for longest are removed.",
)
@click.option(
    "--unused-for",
    metavar="AGE",
    type=parse_age,
    help="Remove files that were neither added nor read for this long, such as 90d.",
)
@click.option("--orphans", is_flag=True, help="Remove files stored under another UUID than theirs.")
@click.option("--dry-run", "-n", is_flag=True, help="Only list what would be removed.")
@store_option
@format_option()
def gc(
    *,
    max_size: int | None,
    unused_for: float | None,
    orphans: bool,
    dry_run: bool,
    store: Path | None,
    form: DocumentFormat,
) -> None:
    """Remove leftovers of interrupted commands, and files that the options select."""
    from machtrace.cli.console import output
    from machtrace.symbolstore.gc import check_is_store, remove
    from machtrace.symbolstore.store import SymbolStore

    symbol_store = SymbolStore(store)
    check_is_store(symbol_store)
    removals = _removals(symbol_store, limit=max_size, age=unused_for, orphans=orphans)
    if not dry_run:
        remove(symbol_store, removals)
    with output():
        if form is DocumentFormat.JSON:
            write_json(
                {
                    "store": str(symbol_store.root),
                    "dry_run": dry_run,
                    "removed": [
                        {
                            "path": str(removal.path),
                            "size": removal.size,
                            "reason": removal.reason.value,
                        }
                        for removal in removals
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
    removals = {removal.path: removal for removal in leftovers(store, now=now)}
    files = list(store.files())
    for removal in chain(
        misplaced(files) if orphans else (),
        () if age is None else unused_since(files, now - age),
    ):
        removals.setdefault(removal.path, removal)
    if limit is not None:
        remaining = [removal for removal in files if removal.path not in removals]
        removals |= {removal.path: removal for removal in beyond_size(remaining, limit)}
    return list(removals.values())


def _write_text(removals: list[Removal], *, dry_run: bool) -> None:
    from machtrace.model.text import printable

    for removal in removals:
        sys.stdout.write(f"{printable(str(removal.path))}: {removal.reason.value}\n")
    size = readable_size(sum(removal.size for removal in removals))
    verb = "would be removed" if dry_run else "removed"
    sys.stdout.write(f"{counted(len(removals), 'file')} {verb}, {size}\n")


@click.command()
@click.argument("report", metavar="REPORT", shell_complete=complete_files)
@click.option(
    "--system/--no-system",
    default=True,
    show_default=True,
    help="List images of the operating system, too.",
)
@store_option
@format_option()
def missing(*, report: str, system: bool, store: Path | None, form: DocumentFormat) -> int:
    """List the images of a report that the store lacks, or has without their debug files.

    REPORT is a crash report of any kind, a core or a process id; '-' is stdin. The program's own
    images come first. For a core or process, files on this machine count as well. The exit status
    is 1 if all files of an image are missing.
    """
    from machtrace.cli.console import output
    from machtrace.symbolstore.store import SymbolStore

    symbol_store = SymbolStore(store)
    images = [
        image for image in needed_images(report, symbol_store) if system or not image.is_system
    ]
    images.sort(key=lambda image: (image.is_system, bool(image.kinds), image.name))
    lacking = [image for image in images if not image.kinds]
    partial = [image for image in images if image.kinds and not image.has_debug_file]
    with output():
        if form is DocumentFormat.JSON:
            write_json(
                {"store": str(symbol_store.root), "images": [_document(image) for image in images]}
            )
        else:
            if lacking or partial:
                write_table(
                    ("UUID", "ARCH", "MISSING", "NAME"),
                    [_row(image) for image in (*lacking, *partial)],
                    fixed=frozenset({0, 1}),
                )
            sys.stdout.write(
                f"{counted(len(images), 'image')}: {len(lacking):,} missing, {len(partial):,} "
                f"without a debug file, {len(images) - len(lacking) - len(partial):,} complete\n"
            )
    return 1 if lacking else 0


def _row(image: NeededImage) -> tuple[str, ...]:
    from machtrace.model.text import printable

    identifier = "without UUID" if image.identifier is None else shown_identifier(image.identifier)
    missing_part = "debug file" if image.kinds else "all"
    return identifier, image.arch or "?", missing_part, printable(image.path or image.name or "?")


def _document(image: NeededImage) -> dict[str, Any]:
    from machtrace.model.text import encodable

    return {
        "uuid": None if image.identifier is None else shown_identifier(image.identifier),
        "arch": image.arch,
        "name": encodable(image.name),
        "path": encodable(image.path),
        "system": image.is_system,
        "stored": sorted(kind.value for kind in image.kinds),
    }


_SYMBOLS = "machtrace.cli.symbols"

symbols_app = lazy_group(
    "symbols",
    "Manage the store of images and dSYMs in which names are looked up, by UUID.",
    {
        "add": LazyCommand(f"{_SYMBOLS}.add:add", "Add images and debug files to the store."),
        "list": LazyCommand(f"{_SYMBOLS}.listing:list_files", "List the images in the store."),
        "find": LazyCommand(
            f"{_SYMBOLS}.listing:find", "Print the paths of an image's files in the store."
        ),
        "missing": LazyCommand(
            f"{_SYMBOLS}.commands:missing",
            "List the images of a report that the store lacks, or has without their debug files.",
        ),
        "export": LazyCommand(
            f"{_SYMBOLS}.listing:export", "Write the store's files in the layout of another tool."
        ),
        "gc": LazyCommand(
            f"{_SYMBOLS}.commands:gc",
            "Remove leftovers of interrupted commands, and files that the options select.",
        ),
    },
)
