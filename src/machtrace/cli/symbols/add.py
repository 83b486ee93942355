"""``machtrace symbols add``: put images and debug files into the store."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from machtrace.cli.tables import (
    FormatOption,
    Output,
    StoreOption,
    counted,
    parse_size,
    readable_size,
    write_json,
)
from machtrace.model.image import shown_identifier

if TYPE_CHECKING:  # they bring what reads files, which the command line's help can do without
    from machtrace.symbolstore.adding import AddOutcome, Stored
    from machtrace.symbolstore.archive import UnpackLimits
    from machtrace.symbolstore.contained_images import Skipped
    from machtrace.symbolstore.store import SymbolStore

_SHOWN = 20
"""Lines about what was skipped; the rest is counted."""


def add(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH…",
            help="App bundles, .ipa, .xcarchive, dSYMs, zip files, images, or folders of these.",
        ),
    ],
    *,
    store: StoreOption = None,
    follow_links: Annotated[
        bool,
        typer.Option("--follow-links", help="Read files that links in folders lead to elsewhere."),
    ] = False,
    max_member: Annotated[
        str, typer.Option(metavar="SIZE", help="Of an archive's member, unpacked, at most.")
    ] = "8G",
    max_unpacked: Annotated[
        str, typer.Option(metavar="SIZE", help="Of all unpacked members together at most.")
    ] = "64G",
    max_depth: Annotated[
        int, typer.Option(min=1, max=16, help="How many archives may be in each other.")
    ] = 3,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name each image that is in the store now.")
    ] = False,
    format: FormatOption = Output.TEXT,  # noqa: A002 - the option's name
) -> None:
    """Add images and debug files to the store, each under its UUID or build-id.

    Folders are searched, zip archives unpacked, fat files taken apart. What is in the store is
    never replaced. The status is 1 where something could not be read or stored, or a path held no
    image.
    """
    from machtrace.cli.console import output
    from machtrace.symbolstore.archive import UnpackLimits
    from machtrace.symbolstore.store import SymbolStore

    limits = UnpackLimits(
        member_bytes=parse_size(max_member, "--max-member"),
        total_bytes=parse_size(max_unpacked, "--max-unpacked"),
        depth=max_depth,
    )
    there = SymbolStore(store)
    tally = _add_all(there, paths, limits, follow_links=follow_links)
    with output():
        if format is Output.JSON:
            write_json(_document(there.root, tally))
        else:
            _write_text(there.root, tally, verbose=verbose)
    if format is Output.TEXT:
        _complain(tally)
    if tally.empty or any(one.reason.is_failure for one in tally.skipped):
        raise typer.Exit(1)


@dataclass(slots=True)
class _Tally:
    """What became of everything."""

    stored: list[Stored] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    """Without files in folders that are no images."""
    ignored: int = 0
    """How many of these there were."""
    empty: list[Path] = field(default_factory=list)
    """What the user named and held no image."""

    @property
    def added(self) -> list[Stored]:
        """Those that were not in the store before."""
        return [one for one in self.stored if one.is_new]


def _add_all(
    store: SymbolStore, paths: Sequence[Path], limits: UnpackLimits, *, follow_links: bool
) -> _Tally:
    from machtrace.cli.symbols.progress import add_progress
    from machtrace.symbolstore.adding import SymbolAdder, input_files
    from machtrace.symbolstore.contained_images import Skipped

    tally = _Tally()
    found = [list(input_files(place, follow_links=follow_links)) for place in paths]
    size = sum(one.size for part in found for one in part if not isinstance(one, Skipped))
    with add_progress(size) as progress:
        adder = SymbolAdder(store, limits, progress.advance)
        for place, part in zip(paths, found, strict=True):
            before = len(tally.stored)
            for one in part:
                progress.look_at(one)
                outcomes = (one,) if isinstance(one, Skipped) else adder.add(one)
                is_named = not isinstance(one, Skipped) and one.is_named
                for outcome in outcomes:
                    _count(tally, outcome, is_named=is_named)
                    progress.count(len(tally.added), len(tally.stored) - len(tally.added))
            if len(tally.stored) == before:
                tally.empty.append(place)
    return tally


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
        for one in tally.stored:
            state = "added" if one.is_new else "already there"
            name = f"{shown_identifier(one.identifier)} {one.arch} {one.kind.value}"
            sys.stdout.write(f"{name}: {state}: {_printable(one.source)}\n")
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
    kinds = Counter(one.kind.value for one in added)
    parts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    return f"{parts}; {readable_size(sum(one.size for one in added))}"


def _reasons(skipped: Sequence[Skipped]) -> str:
    counts = Counter(one.reason.value for one in skipped)
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())


def _complain(tally: _Tally) -> None:
    from machtrace.cli.console import warn

    lines = list(_complaints(tally))
    for line in lines[:_SHOWN]:
        warn(line)
    if len(lines) > _SHOWN:
        more = counted(len(lines) - _SHOWN, "more was", "more were")
        warn(f"{more} skipped; --format json lists all")


def _complaints(tally: _Tally) -> Iterator[str]:
    named = {str(place) for place in tally.empty}
    for one in tally.skipped:
        if one.reason.is_remarkable or one.source in named:
            detail = f" ({_printable(one.detail)})" if one.detail else ""
            yield f"{one.reason.value}: {_printable(one.source)}{detail}"
    told = {one.source for one in tally.skipped}
    for place in tally.empty:
        if str(place) not in told:
            yield f"no image was found in {_printable(str(place))}"


def _document(root: Path, tally: _Tally) -> dict[str, Any]:
    from machtrace.model.text import encodable

    return {
        "store": encodable(str(root)),
        "images": [
            {
                "uuid": shown_identifier(one.identifier),
                "arch": one.arch,
                "kind": one.kind.value,
                "new": one.is_new,
                "size": one.size,
                "source": encodable(one.source),
                "path": encodable(str(one.path)),
            }
            for one in tally.stored
        ],
        "skipped": [
            {
                "source": encodable(one.source),
                "reason": one.reason.value,
                "detail": encodable(one.detail),
                "failure": one.reason.is_failure,
            }
            for one in tally.skipped
        ],
        "other_files": tally.ignored,
    }


def _printable(text: str) -> str:
    from machtrace.model.text import printable

    return printable(text)
