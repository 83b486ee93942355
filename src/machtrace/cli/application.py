"""The commands, put together."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from machtrace.cli.backtrace import backtrace
from machtrace.cli.demo.command import demo
from machtrace.cli.device.commands import device_app
from machtrace.cli.doctor.command import doctor
from machtrace.cli.image.command import image
from machtrace.cli.reports.commands import convert, report, symbolicate
from machtrace.cli.sample import sample
from machtrace.cli.snapshot import snapshot
from machtrace.cli.symbols.commands import symbols_app

app = typer.Typer(
    name="machtrace",
    help="The call stack of any thread, on Apple platforms and beyond.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (backtrace, sample, snapshot, symbolicate, convert, report, image, demo, doctor):
    app.command()(command)
app.add_typer(symbols_app, name="symbols")
app.add_typer(device_app, name="device")


@app.command(
    "atos",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def _atos(context: typer.Context) -> None:
    """Name addresses as Apple's atos does, with its own options: see atos -h."""
    from machtrace.cli.atos.command import run  # which main() starts without coming here

    raise typer.Exit(run(context.args))


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("machtrace")
        except PackageNotFoundError:
            number = "from a source tree"
        sys.stdout.write(f"machtrace {number}\n")
        raise typer.Exit


@app.callback()
def _common(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """The call stack of any thread, on Apple platforms and beyond."""
    del version
