"""Files that a warehouse does not need any more."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from machtrace.warehouse.log import UNFINISHED_LOG, remove_records
from machtrace.warehouse.manifest import WHOLE_LOG, Manifest
from machtrace.warehouse.segment_files import sync_folder

_GRACE = 600 * 10**9
"""Nanoseconds for which segments that were replaced stay, since somebody may read them."""


def segment_folder(folder: Path, number: int) -> Path:
    """Return the folder of a segment, by its number."""
    return folder / "segments" / f"{number:08}"


def remove_left_over(folder: Path, manifest: Manifest) -> None:
    """Remove what was deleted, what a killed writer left behind, and what was replaced long ago.

    Raises:
        FileAccessError: a log cannot be read or written.
    """
    before = time.time_ns() - _GRACE
    with manifest.transaction() as database:
        database.execute("DELETE FROM segment WHERE retired < ?", (before,))
        database.execute("DELETE FROM names WHERE segment NOT IN (SELECT id FROM segment)")
    live = {segment_folder(folder, number).name for number in manifest.all_segments()}
    for path in (folder / "segments").iterdir():
        if path.name not in live:
            shutil.rmtree(path, ignore_errors=True)
    files = set(manifest.names().values())
    for path in (folder / "names").iterdir():
        if path.name not in files and path.stat().st_mtime_ns < before:
            path.unlink(missing_ok=True)
    groups = {row.file for row in manifest.groups().values()}
    for path in (folder / "groups").glob("*"):
        if path.name not in groups and path.stat().st_mtime_ns < before:
            shutil.rmtree(path, ignore_errors=True)
    for path in (folder / "log").glob(f"*{UNFINISHED_LOG}"):
        path.unlink(missing_ok=True)
    _remove_bytes(folder / "log", manifest)


def _remove_bytes(folder: Path, manifest: Manifest) -> None:
    """Remove the bytes that the manifest states must not be in the logs."""
    for name, offsets in manifest.removals().items():
        path = folder / name
        if WHOLE_LOG in offsets:
            path.unlink(missing_ok=True)
        elif path.is_file():
            remove_records(path, offsets)
        if offsets != {WHOLE_LOG}:
            sync_folder(folder)
            # That a log was removed as a whole stays known; its number is not used again.
            with manifest.transaction() as database:
                row = (name, WHOLE_LOG)
                database.execute("DELETE FROM removal WHERE log = ? AND offset <> ?", row)
