"""``machtrace device list`` and ``apps``: what ``device://UDID/bundle-id`` can be followed by."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from machtrace.cli.tables import FormatOption, Output, counted, write_json, write_table

UdidArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="UDID", help="Which device; not needed where there is one.", show_default=False
    ),
]


def list_devices(
    format: FormatOption = Output.TEXT,  # noqa: A002 - the option's name
) -> None:
    """List the iOS devices that can be reached.

    The status is 1 where there are none, or one cannot be used; why is on standard error.
    """
    from machtrace.cli.console import output, print_error, warn
    from machtrace.model.text import encodable, printable
    from machtrace.targets.ios.session import LibraryAccess

    found = LibraryAccess().devices()
    with output():
        if format is Output.JSON:
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
        warn("no device is connected; connect one by USB, unlock it and trust this computer")
    if not found or any(one.problem for one in found):
        raise typer.Exit(1)


def apps(
    udid: UdidArgument = None,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="The system's apps, too, and not only users'.")
    ] = False,
    format: FormatOption = Output.TEXT,  # noqa: A002 - the option's name
) -> None:
    """List the apps of an iOS device, and which of them can be attached to."""
    from machtrace.cli.console import output
    from machtrace.model.text import encodable, printable
    from machtrace.targets.ios.session import LibraryAccess

    with LibraryAccess().open(udid) as session:
        device = session.device
        found = sorted(
            (one for one in session.apps() if every or one.is_users), key=lambda a: a.bundle_id
        )
    with output():
        if format is Output.JSON:
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
        told = counted(len(found), "app")
        sys.stdout.write(f"{told}, {debuggable} can be attached to: {printable(device.udid)}\n")
