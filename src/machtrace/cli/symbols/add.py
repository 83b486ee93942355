"""``machtrace symbols add``: put images and debug files into the store."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from machtrace.cli.options import (
    DocumentFormat,
    complete_files,
    count_type,
    format_option,
    parse_path,
    size_type,
    store_option,
)
from machtrace.cli.progress import progress_bar
from machtrace.cli.tables import readable_size, write_json
from machtrace.frozen import dataclass
from machtrace.model.image import shown_identifier
from machtrace.model.text import counted

if TYPE_CHECKING:  # their package is imported when the command runs
    from machtrace.symbolstore.adding import AddOutcome, Stored
    from machtrace.symbolstore.archive import UnpackLimits
    from machtrace.symbolstore.contained_images import Skipped
    from machtrace.symbolstore.store import SymbolStore

_SHOWN = 20
"""Skipped inputs that are listed; the others are counted."""


@click.command()
@click.argument(
    "paths",
    metavar="PATH...",
    nargs=-1,
    required=True,
    type=parse_path,
    shell_complete=complete_files,
)
@store_option
@click.option("--follow-links", is_flag=True, help="Follow links in folders to files elsewhere.")
@click.option(
    "--max-member",
    metavar="SIZE",
    default="8G",
    show_default=True,
    type=size_type(),
    help="Maximum size of an archive's member, unpacked.",
)
@click.option(
    "--max-unpacked",
    metavar="SIZE",
    default="64G",
    show_default=True,
    type=size_type(),
    help="Maximum size of all unpacked members together.",
)
@click.option(
    "--max-depth",
    metavar="N",
    type=count_type(16),
    default=3,
    show_default=True,
    help="Maximum nesting of archives.",
)
@click.option("--verbose", "-v", is_flag=True, help="List each stored image.")
@format_option()
def add(
    *,
    paths: tuple[Path, ...],
    store: Path | None,
    follow_links: bool,
    max_member: int,
    max_unpacked: int,
    max_depth: int,
    verbose: bool,
    form: DocumentFormat,
) -> int:
    """Add images and debug files to the store.

    Each PATH is an app bundle, .ipa, .xcarchive, dSYM, zip file or image, or a folder of these.
    Folders are searched, zip archives unpacked, fat files split. Each image is stored under its
    UUID or build-id; stored files are never replaced. The exit status is 1 if something could not
    be read or stored, or a path holds no image.
    """
    from machtrace.cli.console import output
    from machtrace.symbolstore.archive import UnpackLimits
    from machtrace.symbolstore.store import SymbolStore

    limits = UnpackLimits(
        member_bytes=max_member,
        total_bytes=max_unpacked,
        depth=max_depth,
    )
    symbol_store = SymbolStore(store)
    tally = _add_all(symbol_store, paths, limits, follow_links=follow_links)
    with output():
        if form is DocumentFormat.JSON:
            write_json(_document(symbol_store.root, tally))
        else:
            _write_text(symbol_store.root, tally, verbose=verbose)
    if form is DocumentFormat.TEXT:
        _print_skipped(tally)
    return int(bool(tally.empty) or any(skipped.reason.is_failure for skipped in tally.skipped))


@dataclass(slots=True)
class _Tally:
    """The outcome of the command."""

    stored: list[Stored] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    """Inputs that were not stored, without files in folders that are not images."""
    ignored: int = 0
    """The number of files in folders that are not images."""
    empty: list[Path] = field(default_factory=list)
    """The user's paths that hold no image."""

    @property
    def added(self) -> list[Stored]:
        """The images that were not in the store before."""
        return [image for image in self.stored if image.is_new]


def _add_all(
    store: SymbolStore, paths: Sequence[Path], limits: UnpackLimits, *, follow_links: bool
) -> _Tally:
    from machtrace.symbolstore.adding import SymbolAdder, input_files
    from machtrace.symbolstore.contained_images import Skipped

    tally = _Tally()
    entries = [list(input_files(path, follow_links=follow_links)) for path in paths]
    size = sum(entry.size for part in entries for entry in part if not isinstance(entry, Skipped))
    with progress_bar(size, unit="bytes", note=_counts(tally)) as progress:
        adder = SymbolAdder(store, limits, progress.advance)
        for path, part in zip(paths, entries, strict=True):
            before = len(tally.stored)
            for entry in part:
                if not isinstance(entry, Skipped):
                    progress.show(label=entry.path.name)
                outcomes = (entry,) if isinstance(entry, Skipped) else adder.add(entry)
                is_named = not isinstance(entry, Skipped) and entry.is_named
                for outcome in outcomes:
                    _count(tally, outcome, is_named=is_named)
                    progress.show(note=_counts(tally))
            if len(tally.stored) == before:
                tally.empty.append(path)
    return tally


def _counts(tally: _Tally) -> str:
    added = sum(image.is_new for image in tally.stored)
    return f"{added:,} added, {len(tally.stored) - added:,} already there"


def _count(tally: _Tally, outcome: AddOutcome, *, is_named: bool) -> None:
    from machtrace.symbolstore.contained_images import Skipped, SkipReason

    if not isinstance(outcome, Skipped):
        tally.stored.append(outcome)
    elif is_named or outcome.reason is not SkipReason.NOT_AN_IMAGE:
        tally.skipped.append(outcome)
    else:
        tally.ignored += 1


def _write_text(root: Path, tally: _Tally, *, verbose: bool) -> None:
    if verbose:
        for image in tally.stored:
            state = "added" if image.is_new else "already there"
            name = f"{shown_identifier(image.identifier)} {image.arch} {image.kind.value}"
            sys.stdout.write(f"{name}: {state}: {_printable(image.source)}\n")
    rows = [
        ("added", len(tally.added), _added(tally.added)),
        ("already there", len(tally.stored) - len(tally.added), ""),
        ("skipped", len(tally.skipped), _reasons(tally.skipped)),
        ("other files", tally.ignored, ""),
    ]
    sys.stdout.write(f"{_printable(str(root))}\n")
    for label, count, detail in rows:
        if count or label == "added":
            sys.stdout.write(f"  {label:<14}{count:>7,}  {detail}".rstrip() + "\n")


def _added(added: Sequence[Stored]) -> str:
    if not added:
        return ""
    kinds = Counter(image.kind.value for image in added)
    parts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    return f"{parts}; {readable_size(sum(image.size for image in added))}"


def _reasons(skipped: Sequence[Skipped]) -> str:
    counts = Counter(skip.reason.value for skip in skipped)
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())


def _print_skipped(tally: _Tally) -> None:
    from machtrace.cli.console import warn

    lines = list(_skipped_lines(tally))
    for line in lines[:_SHOWN]:
        warn(line)
    if len(lines) > _SHOWN:
        more = counted(len(lines) - _SHOWN, "more was", "more were")
        warn(f"{more} skipped", hint="--format json lists all")


def _skipped_lines(tally: _Tally) -> Iterator[str]:
    named = {str(path) for path in tally.empty}
    for skip in tally.skipped:
        if skip.reason.is_remarkable or skip.source in named:
            detail = f" ({_printable(skip.detail)})" if skip.detail else ""
            yield f"{skip.reason.value}: {_printable(skip.source)}{detail}"
    reported = {skip.source for skip in tally.skipped}
    for path in tally.empty:
        if str(path) not in reported:
            yield f"no image in {_printable(str(path))}"


def _document(root: Path, tally: _Tally) -> dict[str, Any]:
    from machtrace.model.text import encodable

    return {
        "store": encodable(str(root)),
        "images": [
            {
                "uuid": shown_identifier(image.identifier),
                "arch": image.arch,
                "kind": image.kind.value,
                "new": image.is_new,
                "size": image.size,
                "source": encodable(image.source),
                "path": encodable(str(image.path)),
            }
            for image in tally.stored
        ],
        "skipped": [
            {
                "source": encodable(skip.source),
                "reason": skip.reason.value,
                "detail": encodable(skip.detail),
                "failure": skip.reason.is_failure,
            }
            for skip in tally.skipped
        ],
        "other_files": tally.ignored,
    }


def _printable(text: str) -> str:
    from machtrace.model.text import printable

    return printable(text)
