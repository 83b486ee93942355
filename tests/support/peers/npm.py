"""Programs that are npm packages, as peers of what we write."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

_FOLDER = "MACHTRACE_NODE_MODULES"
_TRIES = 15


class PeerMissingError(Exception):
    """A peer is missing; the message names it and the paths that were searched."""


def npm_package(name: str) -> Path:
    """Return a package's folder in the one that MACHTRACE_NODE_MODULES names.

    Raises:
        PeerMissingError: it is not there.
    """
    modules = os.environ.get(_FOLDER)
    if modules is None:
        raise PeerMissingError(f"{_FOLDER} does not name a folder with npm packages")
    found = Path(modules) / name
    if not found.exists():
        raise PeerMissingError(f"the npm package {name} is not in {_FOLDER}")
    return found


class Asking(Protocol):
    """A call of a program."""

    def __call__(self, *words: str) -> str:
        """Return its output for these arguments."""


@contextmanager
def firefox_profiler(profile: Path, folder: Path) -> Iterator[Asking]:
    """Return a call of the Firefox Profiler's command line with a profile loaded.

    Args:
        profile: a file.
        folder: for what it keeps.

    Raises:
        PeerMissingError: it, or node, is not here.
        RuntimeError: it does not take the file, or a question.
    """
    node = shutil.which("node")
    if node is None:
        raise PeerMissingError("no node")
    program = npm_package("@firefox-devtools/profiler-cli") / "dist" / "profiler-cli.js"
    environment = os.environ | {
        "HOME": str(folder),
        "PROFILER_CLI_SESSION_DIR": str(folder / "sessions"),
        "PROFILER_CLI_NO_SYMBOLICATE": "1",
    }

    def ask(*words: str, tries: int = 1) -> str:
        said = ""
        for _ in range(tries):
            done = subprocess.run(
                [node, str(program), *words],
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                timeout=120,
            )
            if done.returncode == 0:
                return done.stdout
            said = done.stdout + done.stderr
        raise RuntimeError(said)

    try:
        # Its daemon must answer within half a second, which a busy machine may not manage.
        ask("load", str(profile), tries=_TRIES)
        yield ask
    finally:
        ask("stop", "--all")
