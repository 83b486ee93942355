"""The files of a segment: a folder with a Parquet file for each table, which appears at once.

The folder has another name while it is written. Its files and their folder are on the disk before
it gets its name, so that a segment exists whole or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from machtrace.atomic_write import UNFINISHED
from machtrace.errors import ArgumentError, FileAccessError, FormatError, MachtraceError
from machtrace.warehouse.schema import NODES, OCCURRENCES, TABLES, VERSION
from machtrace.warehouse.segment import FrameTables, Segment, numbers
from machtrace.warehouse.stack_tree import StackTree

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_VERSION_KEY = b"machtrace.segment"
_LEVEL = 3
"""That of zstd: files are a sixteenth smaller than by level 1, at the same speed."""
_ASCENDING = {"stacks": ("node",), "occurrences": ("time",)}
"""Columns whose values mostly ascend, by table: distances take less than a dictionary."""
_LATER = frozenset({"duration", "waits_for"})
"""Columns that the first segments do not have."""
_ROWS = 1 << 20
"""Rows of a group: what is read at once."""


def write_segment(segment: Segment, folder: Path) -> int:
    """Write a segment to a new folder, and return its size in bytes.

    Raises:
        FileAccessError: it cannot be written; nothing remains.
    """
    unfinished = folder.with_name(f"{UNFINISHED}{folder.name}")
    nodes = pa.table([pa.array(segment.tree.depth), pa.array(segment.tree.frame)], schema=NODES)
    tables = {
        "reports": segment.reports,
        "images": segment.images,
        "frames": segment.frames,
        "nodes": nodes,
        "occurrences": segment.occurrences,
        "names": segment.names,
    }
    try:
        unfinished.mkdir(parents=True)
        # The keys of stacks and the files are made by code that does not hold the interpreter.
        with ThreadPoolExecutor(2) as pool:
            stacks = pool.submit(lambda: _write(segment.stacks, unfinished / "stacks.parquet"))
            sizes = [
                pool.submit(_write, table, unfinished / f"{name}.parquet")
                for name, table in tables.items()
            ]
            size = sum(each.result() for each in [stacks, *sizes])
        sync_folder(unfinished)
        unfinished.rename(folder)
        sync_folder(folder.parent)
    except (OSError, pa.ArrowException) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise _access_error(folder, error) from None
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return size


def write_names(names: pa.Table, path: Path) -> None:
    """Write a table of names, which appears at once.

    Raises:
        FileAccessError: it cannot be written.
    """
    unfinished = path.with_name(f"{UNFINISHED}{path.name}")
    try:
        _write(names, unfinished)
        unfinished.rename(path)
        sync_folder(path.parent)
    except (OSError, pa.ArrowException) as error:
        unfinished.unlink(missing_ok=True)
        raise _access_error(path, error) from None


def read_segment(
    folder: PurePath,
    names: PurePath | None = None,
    *,
    has_occurrences: bool = True,
    files: FileSystem | None = None,
) -> Segment:
    """Read the segment of a folder, and check that its rows refer to each other.

    Args:
        folder: its files.
        names: a later table of names than the folder's.
        has_occurrences: whether occurrences are read, which are most of the bytes.
        files: where the folder is, such as an object store; None: on this machine.

    Raises:
        FileAccessError: a file cannot be read.
        FormatError: a file is no such table, or a later version's.
    """
    left_out = {"stacks"} if has_occurrences else {"stacks", "occurrences"}
    tables = {
        name: read_table(folder / f"{name}.parquet", name, files=files)
        for name in TABLES.keys() - left_out
    }
    if names is not None:
        tables["names"] = read_table(names, "names", files=files)
    nodes = tables["nodes"]
    tree = StackTree(
        depth=np.ascontiguousarray(numbers(nodes, "depth")),
        frame=np.ascontiguousarray(numbers(nodes, "frame")),
    )
    segment = Segment(
        reports=tables["reports"],
        images=tables["images"],
        frames=tables["frames"],
        tree=tree,
        occurrences=tables.get("occurrences", OCCURRENCES.empty_table()),
        names=tables["names"],
    )
    try:
        segment.check()
    except ArgumentError as error:
        raise FormatError(str(error), source=str(folder), offset=0) from None
    return segment


def read_frames(
    folder: Path, names: Path, name_columns: Sequence[str] | None = None
) -> FrameTables:
    """Read the frames of a segment, and check that its rows refer to each other.

    Args:
        folder: its files.
        names: its table of names.
        name_columns: those of the names to read, with ``frame``; None: all.

    Raises:
        FileAccessError: a file cannot be read.
        FormatError: a file is no such table, or a later version's.
    """
    tables = FrameTables(
        read_table(folder / "images.parquet", "images"),
        read_table(folder / "frames.parquet", "frames"),
        read_table(names, "names", name_columns),
    )
    try:
        tables.check()
    except ArgumentError as error:
        raise FormatError(str(error), source=str(folder), offset=0) from None
    return tables


def read_table(
    path: PurePath,
    name: str,
    columns: Sequence[str] | None = None,
    files: FileSystem | None = None,
) -> pa.Table:
    """Read one table of a segment.

    Args:
        path: its file.
        name: its name in ``warehouse.schema.TABLES``.
        columns: those to read; None: all.
        files: where it is; None: on this machine.

    Raises:
        FileAccessError: the file cannot be read.
        FormatError: it is no such table, or a later version's.
    """
    with opened(path, files) as file:
        table = file.read(columns=columns)
        schema = TABLES[name]
        if columns is not None:
            schema = pa.schema([schema.field(column) for column in columns])
        for field in schema:
            if field.name not in table.column_names and field.name in _LATER:
                table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        return table.cast(schema).unify_dictionaries().combine_chunks()


@contextmanager
def opened(path: PurePath, files: FileSystem | None = None) -> Iterator[pq.ParquetFile]:
    """Open a table of a segment, to read some of its rows.

    Args:
        path: its file.
        files: where it is; None: on this machine.

    Raises:
        FileAccessError: the file cannot be read.
        FormatError: it is no such table, or a later version's.
    """
    try:
        with pq.ParquetFile(str(path), filesystem=files) as file:
            version = int((file.schema_arrow.metadata or {}).get(_VERSION_KEY, b"0"))
            if version != VERSION:
                raise FormatError(
                    f"a table of version {version}, not {VERSION}", source=str(path), offset=0
                )
            yield file
    except MachtraceError:
        raise
    except OSError as error:
        raise _access_error(path, error) from None
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise FormatError(
            f"not a table of a segment: {error}", source=str(path), offset=0
        ) from None


def count_rows(path: Path) -> int:
    """Return the number of rows of a table of a segment.

    Raises:
        FileAccessError, FormatError: see :func:`opened`.
    """
    with opened(path) as file:
        return int(file.metadata.num_rows)


def read_nodes(path: Path, depth: npt.NDArray[np.uint32], frame: npt.NDArray[np.uint32]) -> None:
    """Read the nodes of a segment, but for the root, into columns of as many rows.

    Raises:
        FileAccessError, FormatError: see :func:`opened`.
    """
    at = -1
    with opened(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=NODES.names).cast(NODES)
            for to, name in ((depth, "depth"), (frame, "frame")):
                rows = numbers(table, name)
                to[max(at, 0) : at + len(rows)] = rows[1:] if at < 0 else rows
            at += table.num_rows


def sync_folder(folder: Path) -> None:
    """Write a folder's list of files to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(table: pa.Table, path: Path) -> int:
    ascending = [each for each in _ASCENDING.get(path.stem, ()) if each in table.column_names]
    versioned = table.replace_schema_metadata({_VERSION_KEY: str(VERSION).encode()})
    with path.open("wb") as file:
        pq.write_table(
            versioned,
            file,
            compression="zstd",
            compression_level=_LEVEL,
            row_group_size=_ROWS,
            use_dictionary=[name for name in table.column_names if name not in ascending],
            column_encoding=dict.fromkeys(ascending, "DELTA_BINARY_PACKED") or None,
        )
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _access_error(path: PurePath, error: Exception) -> FileAccessError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return FileAccessError(str(path), reason)
