"""Joining the parts of a source file's path, as debug information of any system gives them."""

from __future__ import annotations

from ntpath import splitdrive


def join_path(base: str, path: str) -> str:
    """``path``, which may be relative to ``base``.

    Nothing else is changed: ``..`` stays, for it may follow a symbolic link.
    """
    if not path or not base:
        return path or base
    if path.startswith("/") or _is_windows_root(path) or (path[0] == "<" and path[-1] == ">"):
        return path
    separator = "\\" if _is_windows_root(base) and "/" not in base[2:] else "/"
    return base + path if base.endswith(("/", "\\")) else f"{base}{separator}{path}"


def _is_windows_root(path: str) -> bool:
    return path.startswith("\\\\") or (path[1:2] == ":" and splitdrive(path)[1][:1] in ("/", "\\"))
