"""The ``machtrace`` command: one module a command.

Whatever takes time to import is imported inside :func:`main`, so that an interruption there is
as silent as later.
"""

from __future__ import annotations

import gc
import sys

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and SIGINT's number."""


def main() -> None:
    """Run the command line; an error is one line on stderr and exit status 1."""
    try:
        status = _run()
    except KeyboardInterrupt:
        status = INTERRUPTED
    gc.freeze()  # or the interpreter looks through everything for garbage before it ends
    sys.exit(status)


def _run() -> int | str | None:
    from machtrace.cli.console import output, prepare_output, print_error
    from machtrace.errors import MachtraceError

    # What a command makes it keeps to its end, and a hundred thousand frames are no garbage.
    gc.disable()
    prepare_output()
    try:
        if sys.argv[1:2] == ["atos"]:
            return _atos()
        from machtrace.cli.application import app

        with output():  # of help, which the command line's library writes
            try:
                app()
            except SystemExit as done:
                return done.code
    except MachtraceError as error:
        print_error(error)
        return 1
    return 0


def _atos() -> int:
    """The one command whose options are Apple's, and which scripts start for each address.

    What reads the other commands' options takes a tenth of a second to import.
    """
    from machtrace.cli.atos.command import run
    from machtrace.cli.console import output

    with output():  # for its errors: answers are written as they are there
        return run(sys.argv[2:])
