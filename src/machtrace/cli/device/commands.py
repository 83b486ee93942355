"""``machtrace device``: iOS devices, their apps and their crash reports."""

from __future__ import annotations

import typer

from machtrace.cli.device.listing import apps, list_devices
from machtrace.cli.device.device_reports import reports

device_app = typer.Typer(
    help="iOS devices: which there are, their apps, their crash reports.",
    no_args_is_help=True,
)
device_app.command("list")(list_devices)
device_app.command("apps")(apps)
device_app.command("reports")(reports)
