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

    found = LibraryAccess().devices()
    with output():
        if form is DocumentFormat.JSON:
            rows = [
                {
                    "udid": one.udid,
                    "name": encodable(one.name),
                    "product": encodable(one.product),
                    "version": encodable(one.version),
                    "connection": one.connection,
                    "problem": None if one.problem is None else encodable(str(one.problem)),
                }
                for one in found
            ]
            write_json({"devices": rows})
        elif found:
            write_table(
                ("UDID", "NAME", "MODEL", "SYSTEM", "CONNECTION"),
                [
                    (
                        printable(one.udid),
                        printable(one.name) or "?",
                        printable(one.product) or "?",
                        printable(one.version) or "?",
                        one.connection,
                    )
                    for one in found
                ],
                fixed=frozenset({0}),
            )
    for one in found:
        if one.problem is not None:
            print_error(one.problem)
    if not found:
        warn(
            "no device is connected",
            hint="connect one by USB, unlock it and trust this computer",
        )
    return int(not found or any(one.problem for one in found))


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
        found = sorted(
            (one for one in session.apps() if every or one.is_users), key=lambda a: a.bundle_id
        )
    with output():
        if form is DocumentFormat.JSON:
            rows = [
                {
                    "bundle_id": encodable(one.bundle_id),
                    "name": encodable(one.name),
                    "version": encodable(one.version),
                    "path": encodable(one.path),
                    "kind": "user" if one.is_users else "system",
                    "debuggable": one.is_debuggable,
                }
                for one in found
            ]
            write_json({"device": device.udid, "apps": rows})
            return
        table: Sequence[Sequence[str]] = [
            (
                printable(one.bundle_id),
                "yes" if one.is_debuggable else "no",
                printable(one.version) or "?",
                printable(one.name) or "?",
            )
            for one in found
        ]
        if table:
            write_table(("BUNDLE ID", "DEBUGGABLE", "VERSION", "NAME"), table, fixed=frozenset({0}))
        debuggable = sum(one.is_debuggable for one in found)
        count = counted(len(found), "app")
        sys.stdout.write(f"{count}, {debuggable} can be attached to: {printable(device.udid)}\n")
