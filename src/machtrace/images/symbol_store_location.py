"""Where symbols are kept unless a user says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

from machtrace.images.user_folder import UserFolder

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
    return UserFolder.DATA.path() / "symbols"
