"""The folders that platforms have for what programs keep for a user."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path


class UserFolder(Enum):
    """What it is for: where it is on a Mac, and elsewhere by the XDG Base Directories."""

    DATA = ("Application Support", "XDG_DATA_HOME", ".local/share")
    CACHE = ("Caches", "XDG_CACHE_HOME", ".cache")
    """What can be made again."""

    def path(self) -> Path:
        """Ours in it, on this platform; on Windows all are in ``%LOCALAPPDATA%``."""
        of_macos, variable, else_ = self.value
        home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises where there is none
        if sys.platform == "darwin":
            outer = home / "Library" / of_macos
        elif sys.platform == "win32":
            outer = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
        else:
            outer = Path(os.environ.get(variable) or home / else_)
        return outer / "machtrace"
