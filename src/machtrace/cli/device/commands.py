"""``machtrace device``: iOS devices, their apps and their crash reports.

``machtrace device reports``: a device's crash reports, copied here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from machtrace.cli.device.listing import UdidArgument, apps, list_devices
from machtrace.cli.symbols.listing import local_time
from machtrace.cli.tables import (
    FormatOption,
    Output,
    counted,
    parse_age,
    readable_size,
    write_json,
    write_table,
)

if TYPE_CHECKING:
    from machtrace.targets.ios.access import Device, DeviceFile

_FOLDER = Path("crash-reports")


def reports(
    udid: UdidArgument = None,
    output_folder: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where to; it is made if need be."),
    ] = _FOLDER,
    *,
    newer_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE|DATE",
            help="Only reports written since: 7d, 12h, 30m, or 2026-01-31 (local time).",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Only files whose name begins so; with * and ? all of it, such as '*.ips'.",
            show_default=False,
        ),
    ] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="Say which there are, and copy none.")
    ] = False,
    format: FormatOption = Output.TEXT,  # noqa: A002 - the option's name
) -> None:
    """Copy the crash reports of an iOS device into a folder.

    Files that are there already stay as they are, so that the same command brings what is new.
    Nothing is deleted on the device. The status is 1 where a report could not be had.
    """
    from machtrace.cli import console
    from machtrace.cli.device.progress import listing_progress, pull_progress
    from machtrace.pipeline.device_reports import ReportChoice, chosen_reports, pull_reports
    from machtrace.targets.ios.session import LibraryAccess

    choice = ReportChoice(name=name, newer_than=_since(newer_than))
    with LibraryAccess().open(udid) as session:
        device = session.device
        with listing_progress() as seen:
            files = chosen_reports(session, choice, seen)
        if only_list:
            with console.output():
                _write_list(device, files, format)
            return
        with pull_progress(len(files), sum(one.size for one in files)) as progress:
            pulled = pull_reports(session, files, output_folder, progress)
    with console.output():
        if format is Output.JSON:
            from machtrace.model.text import encodable

            write_json(
                {
                    "device": device.udid,
                    "folder": encodable(str(output_folder)),
                    "written": [encodable(str(path)) for path in pulled.written],
                    "kept": [encodable(str(path)) for path in pulled.kept],
                    "problems": [encodable(str(error)) for error in pulled.problems],
                }
            )
        else:
            there = f", {len(pulled.kept):,} already there" if pulled.kept else ""
            sys.stdout.write(
                f"{counted(len(pulled.written), 'report')} copied{there}: {output_folder}\n"
            )
    if pulled.problems:
        console.print_errors(pulled.problems)
        raise typer.Exit(1)


def _since(text: str | None) -> float | None:
    """A moment: a date, or an age before now."""
    if text is None:
        return None
    from datetime import datetime

    if text[:4].isdecimal() and "-" in text:
        try:
            return datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            raise typer.BadParameter(
                f"{text!r} is no date; write 2026-01-31", param_hint="--newer-than"
            ) from None
    return time.time() - parse_age(text, "--newer-than")


def _write_list(device: Device, files: Sequence[DeviceFile], form: Output) -> None:
    from machtrace.model.text import encodable, printable

    if form is Output.JSON:
        rows = [
            {
                "path": encodable(one.path),
                "size": one.size,
                "modified": local_time(one.modified),
            }
            for one in files
        ]
        write_json({"device": device.udid, "reports": rows})
        return
    if files:
        write_table(
            ("WRITTEN", "SIZE", "NAME"),
            [
                (
                    local_time(one.modified)[:16].replace("T", " "),
                    readable_size(one.size),
                    printable(one.path.removeprefix("/")),
                )
                for one in files
            ],
            right=frozenset({1}),
            fixed=frozenset({0, 1}),
        )
    size = readable_size(sum(one.size for one in files))
    sys.stdout.write(f"{counted(len(files), 'report')}, {size} on {printable(device.udid)}\n")


device_app = typer.Typer(
    help="iOS devices: which there are, their apps, their crash reports.",
    no_args_is_help=True,
)
device_app.command("list")(list_devices)
device_app.command("apps")(apps)
device_app.command("reports")(reports)
