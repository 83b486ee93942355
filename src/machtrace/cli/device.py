"""``machtrace device``: iOS devices, their apps and their crash reports."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from machtrace.cli.application import LazyCommand, lazy_group
from machtrace.cli.options import (
    DocumentFormat,
    complete_folders,
    format_option,
    parse_age,
    parse_path,
)
from machtrace.cli.progress import Progress, progress_bar, spinner
from machtrace.cli.symbols.listing import local_time
from machtrace.cli.tables import readable_size, write_json, write_table
from machtrace.model.text import counted

if TYPE_CHECKING:
    from machtrace.targets.ios.access import Device, DeviceFile


udid_argument = click.argument("udid", metavar="[UDID]", required=False)


@click.command("list")
@format_option()
def list_devices(*, form: DocumentFormat) -> int:
    """List the connected iOS devices.

    The exit status is 1 if there are none, or one cannot be used; the reason is on stderr.
    """
    from machtrace.cli.console import output, print_error, warn
    from machtrace.model.text import encodable, printable
    from machtrace.targets.ios.session import LibraryAccess

    devices = LibraryAccess().devices()
    with output():
        if form is DocumentFormat.JSON:
            rows = [
                {
                    "udid": device.udid,
                    "name": encodable(device.name),
                    "product": encodable(device.product),
                    "version": encodable(device.version),
                    "connection": device.connection,
                    "problem": None if device.problem is None else encodable(str(device.problem)),
                }
                for device in devices
            ]
            write_json({"devices": rows})
        elif devices:
            write_table(
                ("UDID", "NAME", "MODEL", "SYSTEM", "CONNECTION"),
                [
                    (
                        printable(device.udid),
                        printable(device.name) or "?",
                        printable(device.product) or "?",
                        printable(device.version) or "?",
                        device.connection,
                    )
                    for device in devices
                ],
                fixed=frozenset({0}),
            )
    for device in devices:
        if device.problem is not None:
            print_error(device.problem)
    if not devices:
        warn(
            "no device is connected",
            hint="connect one by USB, unlock it and trust this computer",
        )
    return int(not devices or any(device.problem for device in devices))


@click.command()
@udid_argument
@click.option("--all", "every", is_flag=True, help="List the system's apps, too.")
@format_option()
def apps(*, udid: str | None, every: bool, form: DocumentFormat) -> None:
    """List the apps of an iOS device, and which of them can be attached to.

    UDID selects the device; it is optional if only one is connected.
    """
    from machtrace.cli.console import output
    from machtrace.model.text import encodable, printable
    from machtrace.targets.ios.session import LibraryAccess

    with LibraryAccess().open(udid) as session:
        device = session.device
        listed = sorted(
            (app for app in session.apps() if every or app.is_users), key=lambda a: a.bundle_id
        )
    with output():
        if form is DocumentFormat.JSON:
            rows = [
                {
                    "bundle_id": encodable(app.bundle_id),
                    "name": encodable(app.name),
                    "version": encodable(app.version),
                    "path": encodable(app.path),
                    "kind": "user" if app.is_users else "system",
                    "debuggable": app.is_debuggable,
                }
                for app in listed
            ]
            write_json({"device": device.udid, "apps": rows})
            return
        table: Sequence[Sequence[str]] = [
            (
                printable(app.bundle_id),
                "yes" if app.is_debuggable else "no",
                printable(app.version) or "?",
                printable(app.name) or "?",
            )
            for app in listed
        ]
        if table:
            write_table(("BUNDLE ID", "DEBUGGABLE", "VERSION", "NAME"), table, fixed=frozenset({0}))
        debuggable = sum(app.is_debuggable for app in listed)
        count = counted(len(listed), "app")
        sys.stdout.write(f"{count}, {debuggable} can be attached to: {printable(device.udid)}\n")


def _since(text: str) -> float:
    """Parse a date, or an age before now, as seconds since 1970."""
    from datetime import datetime

    if text[:4].isdecimal() and "-" in text:
        try:
            return datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            raise click.BadParameter(f"{text!r} is not a date; write 2026-01-31") from None
    return time.time() - parse_age(text)


@click.command()
@udid_argument
@click.option(
    "--output",
    "-o",
    "folder",
    metavar="FOLDER",
    type=parse_path,
    shell_complete=complete_folders,
    default=Path("crash-reports"),
    show_default=True,
    help="Output folder; created if it does not exist.",
)
@click.option(
    "--newer-than",
    metavar="AGE|DATE",
    type=_since,
    help="Only reports written since: 7d, 12h, 30m, or 2026-01-31 (local time).",
)
@click.option(
    "--name",
    metavar="PATTERN",
    help="Only file names with this prefix, or matching this glob ('*.ips').",
)
@click.option("--list", "only_list", is_flag=True, help="List the reports, and copy none.")
@format_option()
def reports(
    *,
    udid: str | None,
    folder: Path,
    newer_than: float | None,
    name: str | None,
    only_list: bool,
    form: DocumentFormat,
) -> int:
    """Copy the crash reports of an iOS device into a folder.

    UDID selects the device; it is optional if only one is connected. Files that exist are skipped,
    so that repeating the command copies new ones only. Nothing is deleted on the device. The exit
    status is 1 if a report could not be copied.
    """
    from machtrace.cli import console
    from machtrace.pipeline.device_reports import ReportChoice, chosen_reports, pull_reports
    from machtrace.targets.ios.session import LibraryAccess

    choice = ReportChoice(name=name, newer_than=newer_than)
    with LibraryAccess().open(udid) as session:
        device = session.device
        with spinner("listing the device's reports") as seen:
            files = chosen_reports(session, choice, seen)
        if only_list:
            with console.output():
                _write_list(device, files, form)
            return 0
        with progress_bar(sum(file.size for file in files), unit="bytes") as bar:
            pulled = pull_reports(session, files, folder, _PullProgress(bar, len(files)))
    with console.output():
        if form is DocumentFormat.JSON:
            from machtrace.model.text import encodable

            write_json(
                {
                    "device": device.udid,
                    "folder": encodable(str(folder)),
                    "written": [encodable(str(path)) for path in pulled.written],
                    "kept": [encodable(str(path)) for path in pulled.kept],
                    "problems": [encodable(str(error)) for error in pulled.problems],
                }
            )
        else:
            there = f", {len(pulled.kept):,} already there" if pulled.kept else ""
            sys.stdout.write(f"{counted(len(pulled.written), 'report')} copied{there}: {folder}\n")
    console.print_errors(pulled.problems)
    return 1 if pulled.problems else 0


class _PullProgress:
    """A bar of the bytes, with the number and name of the current file."""

    def __init__(self, bar: Progress, count: int) -> None:
        self._bar = bar
        self._count = count
        self._number = 0
        self.advance = bar.advance

    def begin(self, file: DeviceFile) -> None:
        self._number += 1
        name = file.path.rpartition("/")[2]
        self._bar.show(label=name, note=f"{self._number:,} of {self._count:,}")


def _write_list(device: Device, files: Sequence[DeviceFile], form: DocumentFormat) -> None:
    from machtrace.model.text import encodable, printable

    if form is DocumentFormat.JSON:
        rows = [
            {
                "path": encodable(file.path),
                "size": file.size,
                "modified": local_time(file.modified),
            }
            for file in files
        ]
        write_json({"device": device.udid, "reports": rows})
        return
    if files:
        write_table(
            ("WRITTEN", "SIZE", "NAME"),
            [
                (
                    local_time(file.modified)[:16].replace("T", " "),
                    readable_size(file.size),
                    printable(file.path.removeprefix("/")),
                )
                for file in files
            ],
            right=frozenset({1}),
            fixed=frozenset({0, 1}),
        )
    size = readable_size(sum(file.size for file in files))
    sys.stdout.write(f"{counted(len(files), 'report')}, {size} on {printable(device.udid)}\n")


_DEVICE = "machtrace.cli.device"

device_app = lazy_group(
    "device",
    "List iOS devices and their apps, and copy their crash reports.",
    {
        "list": LazyCommand(f"{_DEVICE}:list_devices", "List the connected iOS devices."),
        "apps": LazyCommand(
            f"{_DEVICE}:apps",
            "List the apps of an iOS device, and which of them can be attached to.",
        ),
        "reports": LazyCommand(
            f"{_DEVICE}:reports", "Copy the crash reports of an iOS device into a folder."
        ),
    },
)
