"""Export a store's files in the layouts of other tools."""

from __future__ import annotations

import os
import plistlib
from enum import Enum
from pathlib import Path
from uuid import UUID

from machtrace.atomic_write import same_bytes, settle_link, write_new
from machtrace.errors import FileAccessError
from machtrace.formats.object_file import Signature, signature
from machtrace.frozen import dataclass
from machtrace.images.open_file import open_image_file
from machtrace.images.store_layout import (
    ExportLayout,
    FileKind,
    build_id_path,
    debuginfod_path,
    identifier_text,
    lldb_path,
    plain_name,
    ssqp_path,
    unified_path,
)
from machtrace.symbolstore.store import StoredFile


class ExportResult(Enum):
    """The outcome for a file to export."""

    WRITTEN = "written"
    PRESENT = "already there"
    COLLISION = "something else is there"
    NO_PLACE = "no place in this layout"


@dataclass(frozen=True, slots=True)
class Exported:
    """The outcome for one file."""

    stored: StoredFile
    result: ExportResult
    path: Path | None
    """The path where tools search for it; None if the layout has none."""


def export_file(stored: StoredFile, root: Path, layout: ExportLayout) -> Exported:
    """Write ``stored`` below ``root`` in ``layout``. Existing files are never replaced.

    For LLDB a debug file goes into a dSYM bundle below ``root/dSYMs``, and its path gets a symbolic
    link into that; links are relative, so that the folder can be moved as a whole.

    Raises:
        FileAccessError: it cannot be read or written.
    """
    relative = _relative(stored, layout)
    if relative is None:
        return Exported(stored, ExportResult.NO_PLACE, None)
    path = root / relative
    try:
        if layout is ExportLayout.LLDB and stored.kind is FileKind.DEBUGINFO:
            result = _export_dsym(stored, root, path)
        else:
            result = _write(path, open_image_file(stored.path))
    except FileAccessError:
        raise
    except OSError as error:
        place = str(error.filename or path)
        raise FileAccessError(place, error.strerror or "cannot be written") from error
    return Exported(stored, result, path)


def _relative(stored: StoredFile, layout: ExportLayout) -> str | None:
    identifier, kind = stored.identifier, stored.kind
    is_macho = isinstance(identifier, UUID) and _is_macho(stored)
    match layout:
        case ExportLayout.LLDB:
            return lldb_path(identifier, kind) if is_macho else None
        case ExportLayout.BUILD_ID:
            return None if is_macho else build_id_path(identifier, kind)
        case ExportLayout.DEBUGINFOD:
            return None if is_macho else debuginfod_path(identifier, kind)
        case ExportLayout.SSQP:
            return ssqp_path(identifier, kind, _name(stored), is_macho=is_macho)
        case ExportLayout.UNIFIED:
            return unified_path(identifier, kind)


def _is_macho(stored: StoredFile) -> bool:
    with stored.path.open("rb") as file:
        return signature(file.read(8)) is not Signature.ELF


def _name(stored: StoredFile) -> str:
    return plain_name(stored.name or "") or identifier_text(stored.identifier)


def _export_dsym(stored: StoredFile, root: Path, link: Path) -> ExportResult:
    name = _name(stored)
    bundle = root / "dSYMs" / identifier_text(stored.identifier).upper() / f"{name}.dSYM"
    inside = bundle / "Contents" / "Resources" / "DWARF" / name
    result = _write(inside, open_image_file(stored.path))
    if result is ExportResult.COLLISION:
        return result
    write_new(bundle / "Contents" / "Info.plist", memoryview(_info_plist(name)), None)
    target = os.path.relpath(inside, link.parent)
    if settle_link(target, link):
        return ExportResult.WRITTEN
    is_same = os.path.realpath(link) == os.path.realpath(inside)
    return result if is_same else ExportResult.COLLISION


def _write(path: Path, data: memoryview) -> ExportResult:
    if write_new(path, data, None):
        return ExportResult.WRITTEN
    return ExportResult.PRESENT if same_bytes(path, data) else ExportResult.COLLISION


def _info_plist(name: str) -> bytes:
    """Return a dSYM's property list, with the keys that ``dsymutil`` writes."""
    return plistlib.dumps(
        {
            "CFBundleDevelopmentRegion": "English",
            "CFBundleIdentifier": f"com.apple.xcode.dsym.{name}",
            "CFBundleInfoDictionaryVersion": "6.0",
            "CFBundlePackageType": "dSYM",
            "CFBundleSignature": "????",
            "CFBundleShortVersionString": "1.0",
            "CFBundleVersion": "1",
        }
    )
