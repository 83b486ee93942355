"""``machtrace symbols``: the store of images and debug files that names are looked up in."""

from __future__ import annotations

import typer

from machtrace.cli.symbols.add import add
from machtrace.cli.symbols.symbols_export import export
from machtrace.cli.symbols.symbols_gc import gc
from machtrace.cli.symbols.listing import find, list_files
from machtrace.cli.symbols.symbols_missing import missing

symbols_app = typer.Typer(
    help="Keep images and dSYMs in a store, by UUID, for names to be found in it.",
    no_args_is_help=True,
)
symbols_app.command("add")(add)
symbols_app.command("list")(list_files)
symbols_app.command("find")(find)
symbols_app.command("missing")(missing)
symbols_app.command("export")(export)
symbols_app.command("gc")(gc)
