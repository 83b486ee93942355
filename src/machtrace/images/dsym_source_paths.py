"""Where the sources of a dSYM are now, as the property list beside its DWARF says.

``Contents/Resources/<UUID>.plist`` of a bundle (LLDB's *Symbols on macOS*, "Embedding UUID property
lists inside the dSYM bundles"; how its versions differ is in LLDB's ``SymbolVendorMacOSX.cpp``).
"""

from __future__ import annotations

import os
from uuid import UUID

from machtrace.images.search_record import Outcome, SearchRecord
from machtrace.images.source_paths import NOT_MOVED, SourcePaths

_LARGEST = 4 << 20
"""Bytes of a property list that is read; real ones take some kilobytes."""
_REMAPPED_SINCE = 2
"""The DBGVersion from which on DBGSourcePathRemapping is meant."""
_AS_IT_IS_SINCE = 3
"""Before, its paths ended in two components that say nothing."""


def dsym_source_paths(dwarf_path: str, uuid: UUID, record: SearchRecord) -> SourcePaths:
    """The replacements for the paths in a bundle's DWARF file; none where the bundle has none.

    Args:
        dwarf_path: of the file; links are followed to the bundle that it is in.
        uuid: of the slice that is used.
        record: takes what is wrong with the list.
    """
    folder, dwarf = os.path.split(os.path.dirname(os.path.realpath(dwarf_path)))  # noqa: PTH120
    if dwarf != "DWARF":
        return NOT_MOVED
    path = os.path.join(folder, f"{str(uuid).upper()}.plist")  # noqa: PTH118
    try:
        if os.path.getsize(path) > _LARGEST:  # noqa: PTH202
            record.add(path, Outcome.MALFORMED, f"more than {_LARGEST} bytes")
            return NOT_MOVED
        with open(path, "rb") as file:  # noqa: PTH123
            data = file.read(_LARGEST)
    except FileNotFoundError:
        return NOT_MOVED
    except OSError as error:
        record.add(path, Outcome.UNREADABLE, error.strerror or "")
        return NOT_MOVED
    import plistlib
    from xml.parsers.expat import ExpatError

    try:
        document = plistlib.loads(data)
    except (ValueError, ExpatError, ArithmeticError, LookupError, TypeError, AttributeError,
            RecursionError, MemoryError) as error:  # fmt: skip
        # What plistlib raises of lists that are none is not written down anywhere.
        record.add(path, Outcome.MALFORMED, str(error))
        return NOT_MOVED
    return SourcePaths(_replacements(document))


def _replacements(document: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(document, dict):
        return ()
    pairs: list[tuple[object, object]] = []
    version = _version(document.get("DBGVersion"))
    remapping = document.get("DBGSourcePathRemapping")
    if isinstance(remapping, dict) and version >= _REMAPPED_SINCE:
        pairs += remapping.items()
    if version < _AS_IT_IS_SINCE:
        pairs += [(_cut(recorded), _cut(now)) for recorded, now in pairs]
    pairs.append((document.get("DBGBuildSourcePath"), document.get("DBGSourcePath")))
    return tuple(
        (recorded.rstrip("/"), now.rstrip("/"))
        for recorded, now in pairs
        if isinstance(recorded, str) and isinstance(now, str) and recorded.rstrip("/") and now
    )


def _version(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 1  # noqa: PLR2004


def _cut(path: object) -> str:
    """Without its last two components; empty where it has no more."""
    if not isinstance(path, str):
        return ""
    return "/".join(path.rstrip("/").split("/")[:-2])
