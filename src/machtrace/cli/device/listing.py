"""``machtrace device list`` and ``apps``: the parts of ``device://UDID/bundle-id``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from machtrace.cli.options import DocumentFormat, format_option
from machtrace.cli.tables import counted, write_json, write_table

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
