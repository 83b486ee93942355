"""Checks of where symbols and debug information are found and kept."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from machtrace.cli.doctor.findings import Check, Finding, State

_TOPIC = "symbols"


def debug_files() -> Finding:
    """Where the system has debug files."""
    from machtrace.images.search_path import DEBUG_ROOTS, debuginfod_cache

    places = (*DEBUG_ROOTS, debuginfod_cache())
    found = [place for place in places if os.path.isdir(place)]  # noqa: PTH112
    if found:
        return Finding(State.OK, f"looked for in {', '.join(found)}, and beside binaries")
    return Finding(
        State.LIMITED,
        f"none of {', '.join(places)} is there: the system's libraries have names, but no lines",
        "install debug packages of the libraries, or give files with --search",
    )


def store() -> Finding:
    """The symbol store."""
    from machtrace.images.symbol_store_location import STORE_VARIABLE, default_store_path

    path = default_store_path()
    if path.is_dir():
        return Finding(State.OK, f"{path} ({STORE_VARIABLE} chooses another)")
    return Finding(State.OK, f"none yet; machtrace symbols add makes it at {path}")


def indices() -> Finding:
    """Whether indices of debug information can be kept."""
    from machtrace.lines.index_folder import CACHE_VARIABLE, default_index_folder

    folder = default_index_folder()
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    error = _write_error(there)
    if error is None:
        return Finding(State.OK, f"kept in {folder}")
    return Finding(
        State.LIMITED,
        f"cannot be kept in {folder} ({error}): lines take seconds every time",
        f"set {CACHE_VARIABLE} to a folder that can be written",
    )


def _write_error(folder: Path) -> str | None:
    """Why nothing can be written in ``folder``, which is tried."""
    try:
        with NamedTemporaryFile(dir=folder, prefix="machtrace-doctor-"):
            return None
    except OSError as error:
        return error.strerror or str(error)


FILE_CHECKS = (
    Check(_TOPIC, "debug files", debug_files),
    Check(_TOPIC, "symbol store", store),
    Check(_TOPIC, "debug indices", indices),
)
