"""The ``machtrace`` command: one module a command, loaded when it is asked for."""

from __future__ import annotations

import sys

import typer

from machtrace.cli.backtrace import backtrace
from machtrace.cli.demo import demo
from machtrace.cli.image import image

app = typer.Typer(
    name="machtrace",
    help="The call stack of any thread, on Apple platforms and beyond.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (backtrace, image, demo):
    app.command()(command)


def main() -> None:
    """Run the command line; an error is one line on stderr and exit status 1."""
    from machtrace.errors import MachtraceError

    try:
        app()
    except MachtraceError as error:
        from machtrace.cli.console import complain

        complain(error)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output has had enough, as `head` does; that is no failure of ours.
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
