"""Folders of this machine and of object stores, by pyarrow's file systems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from machtrace.errors import ArgumentError, FileAccessError


class Store(NamedTuple):
    """A folder, and where it is."""

    files: fs.FileSystem
    root: PurePosixPath

    @classmethod
    def open(cls, place: str) -> Store:
        """Return the store of a path, or of a URI such as ``s3://bucket/warehouse``.

        Raises:
            ArgumentError: no file system has such a URI.
            FileAccessError: it cannot be reached.
        """
        if "://" not in place:
            return cls(fs.LocalFileSystem(), PurePosixPath(Path(place).absolute().as_posix()))
        try:
            files, path = fs.FileSystem.from_uri(place)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ArgumentError(
                f"{place}: {error}", remedy="pass a path, or a URI of file, s3, gs or abfs"
            ) from None
        except OSError as error:
            raise FileAccessError(place, str(error)) from None
        return cls(files, PurePosixPath(path))

    def names(self, folder: str = "", *, is_deep: bool = False) -> list[str]:
        """Return the files in a folder as paths below the root, ascending; empty without it.

        Args:
            folder: below the root.
            is_deep: whether folders in it are searched, too.

        Raises:
            FileAccessError: it cannot be listed.
        """
        selector = fs.FileSelector(str(self.root / folder), allow_not_found=True, recursive=is_deep)
        with _errors(str(self.root)):
            listed = self.files.get_file_info(selector)
        paths = (PurePosixPath(each.path) for each in listed if each.type == fs.FileType.File)
        return sorted(path.relative_to(self.root).as_posix() for path in paths)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file below the root.

        Raises:
            FileAccessError: it cannot be read.
        """
        path = str(self.root / name)
        with _errors(path), self.files.open_input_file(path) as file:
            data: Any = file.read()
        return bytes(data)


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileAccessError(path, reason) from None
