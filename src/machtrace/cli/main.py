"""The ``machtrace`` command: one module per command.

Slow imports are inside :func:`main`, so that an interruption during them is as silent as later.
"""

from __future__ import annotations

import gc
import os
import sys

INTERRUPTED = 130
"""The exit status after Ctrl-C: 128 and SIGINT's number, as in shells."""


def main() -> None:
    """Run the command line; an error is a fact and a hint on stderr, and exit status 1."""
    try:
        status = _run()
    except KeyboardInterrupt:
        status = INTERRUPTED
    if "duckdb" not in sys.modules:  # which reports what is not freed
        gc.freeze()  # or the interpreter searches everything for garbage before it exits
    sys.exit(status)


def _run() -> int:
    from machtrace.cli.console import output, prepare_output, print_error
    from machtrace.errors import MachtraceError

    # A command retains its objects to its end, and a hundred thousand frames are no garbage.
    gc.disable()
    prepare_output()
    try:
        with output():  # for help; results are written as a whole by the commands
            if "_MACHTRACE_COMPLETE" in os.environ:
                from machtrace.cli.application import complete

                return complete(os.environ["_MACHTRACE_COMPLETE"])
            if sys.argv[1:2] == ["atos"]:
                # Scripts run it for each address: it does without the other commands' parser.
                from machtrace.cli.atos import command as atos

                return atos.run(sys.argv[2:])
            from machtrace.cli.application import run

            return run(sys.argv[1:])
    except MachtraceError as error:
        print_error(error)
        return 1
