"""The evidence of an audit: one zip archive with the report, and what it was made of.

It has no time of its own, and its members have a fixed order, so that equal audits have equal
files. The manifest is the last member; it has the size and the SHA-256 of every other one.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from machtrace.atomic_write import replace_file
from machtrace.errors import FormatError
from machtrace.formats.zip_archive import ZipError, ZipMember, ZipProblem, is_zip, read_members

REPORT, MANIFEST = "report.json", "manifest.json"
KIND = "audit-evidence"
SCHEMA = 1
_MAX_MEMBERS = 10_000
_MAX_MANIFEST = 1 << 24
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_UNIX, _MODE = 3, 0o100644
_CHUNK = 1 << 20
_LEVEL = 1
"""Columns of millions of calls: higher levels take several times as long for some percent."""


def write_evidence(path: Path, members: Iterable[tuple[str, bytes]], version: str) -> None:
    """Write members and their manifest; the file appears whole or not at all.

    Args:
        path: the file.
        members: names and contents, in their order.
        version: machtrace's.

    Raises:
        FileAccessError: the file cannot be written.
    """
    with TemporaryFile() as scratch:
        hashes: dict[str, dict[str, Any]] = {}
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
            for name, data in members:
                hashes[name] = {"size": len(data), "sha256": sha256(data).hexdigest()}
                archive.writestr(_entry(name), data, zipfile.ZIP_DEFLATED)
            manifest = {"schema": SCHEMA, "kind": KIND, "machtrace": version, "members": hashes}
            text = json.dumps(manifest, indent=2) + "\n"
            archive.writestr(_entry(MANIFEST), text, zipfile.ZIP_DEFLATED)
        scratch.seek(0)
        replace_file(str(path), _chunks(scratch))


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name.encode("utf-8", "replace").decode(), _EARLIEST)
    entry.create_system = _UNIX
    entry.external_attr = _MODE << 16
    return entry


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def is_evidence(data: bytes | memoryview) -> bool:
    """Return whether a file begins as an archive does."""
    return is_zip(data)


def report_of_evidence(data: memoryview, source: str, most: int) -> bytes:
    """Return the report in an archive, if it is the one that the manifest states.

    Nothing else is unpacked, and no member is written to a file, so that their names do not matter.

    Args:
        data: the archive.
        source: its name in errors.
        most: the largest size of a report in bytes.

    Raises:
        FormatError: it is no evidence of an audit, damaged, or was changed.
    """
    try:
        members = read_members(data, member_limit=_MAX_MEMBERS)
        report = _contents(members, REPORT, most)
        manifest = json.loads(_contents(members, MANIFEST, _MAX_MANIFEST))
        entry = manifest["members"][REPORT]
        is_ours = manifest["kind"] == KIND and manifest["schema"] == SCHEMA
        is_same = entry["sha256"] == sha256(report).hexdigest()
    except (ZipError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = str(error) if isinstance(error, ZipError) else "its manifest is damaged"
        raise _refused(reason, source) from None
    if not is_ours:
        raise _refused("it is of another kind or version", source)
    if not is_same:
        raise _refused(f"{REPORT} is not the one that its manifest states", source)
    return report


def _contents(members: Iterable[ZipMember], name: str, most: int) -> bytes:
    named = [member for member in members if member.name == name and member.is_file]
    if len(named) != 1:
        raise ZipError(ZipProblem.MALFORMED, f"{len(named)} members are named {name}")
    if named[0].size > most:
        raise ZipError(ZipProblem.TOO_LARGE, f"{name} has {named[0].size:,} bytes")
    return b"".join(named[0].chunks())


def _refused(reason: str, source: str) -> FormatError:
    return FormatError(
        f"not evidence of an audit: {reason}",
        source=source,
        offset=0,
        remedy="pass a file that machtrace audit run or merge wrote with -o",
    )
