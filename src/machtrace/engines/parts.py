"""Parts of a job's input, as rows that are small: a process reads what they refer to."""

from __future__ import annotations

import re
import tempfile
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa

from machtrace.engines.store import Store
from machtrace.errors import FileAccessError
from machtrace.warehouse.manifest import Manifest
from machtrace.warehouse.reader import MANIFEST
from machtrace.warehouse.segment import Segment
from machtrace.warehouse.segment_files import read_segment

SEGMENTS = pa.schema([("folder", pa.string()), ("names", pa.string())])
"""Paths below the root; ``names`` is null where the segment's own names are the latest."""
SPOOLS = pa.schema([("file", pa.string()), ("device", pa.string())])
_NODES = "nodes.parquet"
_UNFINISHED = ".unfinished-"
_SPOOL = re.compile(r".+\.spool(?:\.\d+)?")
"""A spool, or an older one of the same process."""
_OFFSETS_OF_PART = 1 << 16
_SPOOLS_OF_PART = 16


def segment_parts(place: str) -> list[pa.Table]:
    """Return the segments of a warehouse, or of a folder of segments, each as a part.

    Args:
        place: a path or a URI.

    Raises:
        ArgumentError, FileAccessError, FormatError: there is none, or it cannot be read.
    """
    store = Store.open(place)
    if MANIFEST in store.names():
        rows = _of_manifest(store)
    else:
        nodes = (PurePosixPath(name) for name in store.names(is_deep=True))
        folders = (node.parent for node in nodes if node.name == _NODES)
        rows = [(str(each), None) for each in folders if not each.name.startswith(_UNFINISHED)]
        if not rows:
            error = FileAccessError(place, "no warehouse, and no segment in it")
            error.remedy = "pass the folder of a warehouse, or one with segments"
            raise error
    return [
        pa.table([[folder], pa.array([names], pa.string())], schema=SEGMENTS)
        for folder, names in rows
    ]


def read_part(store: Store, folder: str, names: str | None, *, has_occurrences: bool) -> Segment:
    """Read the segment of a part.

    Raises:
        FileAccessError, FormatError: it cannot be read, or is damaged.
    """
    return read_segment(
        store.root / folder,
        None if names is None else store.root / names,
        has_occurrences=has_occurrences,
        files=store.files,
    )


def image_parts(offsets: pa.Table) -> list[pa.Table]:
    """Return images with offsets, as parts of about equal numbers of these; no image is divided."""
    counts = np.diff(offsets["offsets"].combine_chunks().offsets.to_numpy())
    part = (np.cumsum(counts) - counts) // _OFFSETS_OF_PART
    bounds = [*np.unique(part, return_index=True)[1].tolist(), len(counts)]
    return [offsets.slice(begin, end - begin) for begin, end in pairwise(bounds)]


def spool_parts(place: str) -> list[pa.Table]:
    """Return the spools of an agent below a folder; a device is a folder in it.

    Raises:
        ArgumentError, FileAccessError: there is none, or the folder cannot be read.
    """
    store = Store.open(place)
    paths = map(PurePosixPath, store.names(is_deep=True))
    files = [path for path in paths if _SPOOL.fullmatch(path.name)]
    if not files:
        raise FileAccessError(place, "no *.spool in this folder")
    rows = [
        {"file": str(file), "device": file.parts[0] if len(file.parts) > 1 else store.root.name}
        for file in files
    ]
    return [
        pa.Table.from_pylist(rows[at : at + _SPOOLS_OF_PART], SPOOLS)
        for at in range(0, len(rows), _SPOOLS_OF_PART)
    ]


def _of_manifest(store: Store) -> list[tuple[str, str | None]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(str(store.root)) / MANIFEST
        if not path.is_file():
            # SQLite opens files of this machine alone.
            path = Path(folder) / MANIFEST
            path.write_bytes(store.read(MANIFEST))
        manifest = Manifest(path)
        try:
            names = manifest.names()
            return [
                (f"segments/{row.id:08}", f"names/{names[row.id]}" if row.id in names else None)
                for row in manifest.segments()
            ]
        finally:
            manifest.close()
