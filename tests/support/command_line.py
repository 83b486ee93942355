"""Running ``machtrace`` as a command within this process, in a tenth of a new one's time."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from typing import Any
from unittest.mock import patch

from machtrace.cli.main import main


def run_command(
    *words: object,
    **changed: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run ``machtrace`` with the arguments ``words``; its status and what it wrote.

    With ``changed``, the arguments of :func:`subprocess.run`, it runs in a process of its own: what
    is tested there is what only a process has, such as its files, its environment or its rights.
    """
    arguments = ["machtrace", *map(str, words)]
    if changed:
        options = {"capture_output": True, "text": True, "timeout": 250} | changed
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, check=False, **options)
    out, err = BytesIO(), BytesIO()
    with (
        TextIOWrapper(out, "utf-8", write_through=True) as stdout,
        TextIOWrapper(err, "utf-8", write_through=True) as stderr,
    ):
        with patch.object(sys, "argv", arguments), redirect_stdout(stdout), redirect_stderr(stderr):
            status = _status()
        written = [stream.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(arguments, status, *written)


def _status() -> int:
    """Return the exit status that the interpreter gives this exception."""
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
            return 1
        return ended.code or 0
    finally:
        gc.enable()  # the command turns it off until its process ends
        gc.unfreeze()
    return 0
