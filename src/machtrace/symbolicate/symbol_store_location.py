"""Where symbols are kept unless a user says otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path

STORE_VARIABLE = "MACHTRACE_SYMBOLS"
"""The environment variable that says where the default store is."""


def default_store_path() -> Path:
    """Where symbols are kept unless a user says otherwise.

    ``$MACHTRACE_SYMBOLS``, else the platform's folder for a user's data: Application Support on a
    Mac, ``%LOCALAPPDATA%`` on Windows, ``$XDG_DATA_HOME`` or ``~/.local/share`` elsewhere.
    """
    named = os.environ.get(STORE_VARIABLE)
    if named:
        return Path(named).expanduser()
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises where there is none
    if sys.platform == "darwin":
        data = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        data = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return data / "machtrace" / "symbols"
