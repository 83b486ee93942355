"""The ``machtrace`` command: one module a command.

Whatever takes time to import is imported inside :func:`main`, so that an interruption there is
as silent as later.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and SIGINT's number."""


def main() -> None:
    """Run the command line; an error is one line on stderr and exit status 1."""
    try:
        status = _run()
    except KeyboardInterrupt:
        status = INTERRUPTED
    sys.exit(status)


def _run() -> int:
    from machtrace.cli.console import complain, prepare_output
    from machtrace.errors import FileAccessError, MachtraceError

    prepare_output()
    try:
        from machtrace.cli.application import app

        app()
    except MachtraceError as error:
        complain(error)
        return 1
    except OSError as error:  # help that cannot be written, above all
        reason = error.strerror or "cannot be written"
        complain(FileAccessError(str(error.filename or "standard output"), reason))
        return 1
    return 0
