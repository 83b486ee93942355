"""Opening image files: mapped into memory, so that only what is looked at is read."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from machtrace.errors import FileAccessError
from machtrace.mapped_file import mapped_file


def open_image_file(path: str | PathLike[str]) -> memoryview:
    """The bytes of the file at ``path``, read-only; the mapping lives as long as they do.

    Raises:
        FileAccessError: there is no such file, it is a directory or a device, it is empty, or it
            may not be read.
    """
    try:
        # Looked at before it is opened: opening a named pipe would wait for its other end.
        status = Path(path).stat()
        reason = _unfit(status.st_mode, status.st_size)
        if reason is None:
            with Path(path).open("rb") as file:
                return mapped_file(file.fileno())
    except FileNotFoundError:
        reason = "no such file"
    except PermissionError:
        reason = "no permission to read the file"
    except OSError as error:
        reason = (error.strerror or "the file cannot be read").lower()
    except ValueError as error:
        # A NUL in the path, or a file that lost its contents between the look and the mapping.
        reason = f"the file cannot be mapped ({error})"
    raise FileAccessError(fspath(path), reason)


def _unfit(mode: int, size: int) -> str | None:
    if S_ISDIR(mode):
        return "this is a directory, not a file"
    if not S_ISREG(mode):
        return "not a regular file"
    return None if size else "the file is empty"
