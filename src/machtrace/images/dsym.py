"""dSYM bundles: where they are beside binaries, the DWARF files in them, and moved sources.

A bundle ``NAME.dSYM`` holds ``Contents/Resources/DWARF/`` with a Mach-O file for each binary
(``dsymutil``'s manual; LLDB's *Symbols on macOS*). ``Contents/Resources/<UUID>.plist`` states where
sources are now (*Symbols on macOS*, "Embedding UUID property lists inside the dSYM bundles"; how
its versions differ is in LLDB's ``SymbolVendorMacOSX.cpp``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain, islice
from uuid import UUID

from machtrace.errors import FileAccessError
from machtrace.images.debug_file import NOT_MOVED, SourcePaths
from machtrace.images.search_record import Outcome, SearchRecord

_INSIDE = ("Contents", "Resources", "DWARF")
_MAX_FILES = 1024
"""DWARF files of one bundle that are examined; nearly all bundles have one."""
_MAX_ANCESTORS = 64


def is_dsym(path: str) -> bool:
    """Whether ``path`` is a folder with the name or the structure of a dSYM bundle."""
    return os.path.isdir(os.path.join(path, *_INSIDE))  # noqa: PTH112, PTH118


def dwarf_files(bundle: str) -> list[str]:
    """Return the paths of the files in a bundle's DWARF folder, by name."""
    folder = os.path.join(bundle, *_INSIDE)  # noqa: PTH118
    try:
        with os.scandir(folder) as entries:
            # Hidden files are what other systems leave in folders that they copy.
            names = (entry.path for entry in entries if not entry.name.startswith("."))
            return sorted(islice(names, _MAX_FILES))
    except OSError:
        return []


def beside(path: str) -> Iterator[str]:
    """Yield the paths of dSYM bundles and flat ``.dwarf`` files of the binary at ``path``.

    They are beside the binary, and, for ``X.app/Contents/MacOS/X`` and all that an application
    bundles, beside the bundle: ``X.app.dSYM``. An .xcframework has them in ``dSYMs`` there; an
    .xcarchive has ``dSYMs`` beside its ``Products``.
    """
    tried: dict[str, None] = {}
    real = os.path.realpath(path)
    for image_path in dict.fromkeys((path, real)):
        tried.update(dict.fromkeys(_beside(image_path)))
    yield from tried


def _beside(path: str) -> Iterator[str]:
    folder, name = os.path.split(path)
    yield os.path.join(folder, f"{name}.dSYM")  # noqa: PTH118
    yield os.path.join(folder, f"{name}.dwarf")  # noqa: PTH118
    stem = os.path.splitext(name)[0]  # noqa: PTH122
    if stem != name:
        # As CMake and Python's builds name them: libx.dylib, libx.dSYM.
        yield os.path.join(folder, f"{stem}.dSYM")  # noqa: PTH118
    names, folders = [name], []
    for parent in islice(_ancestors(folder), _MAX_ANCESTORS):
        around, bundle = os.path.split(parent)
        if bundle.endswith(".xcarchive"):
            folders.append(os.path.join(parent, "dSYMs"))  # noqa: PTH118
        elif os.path.splitext(bundle)[1]:  # noqa: PTH122
            names.append(bundle)
            folders += [around, os.path.join(around, "dSYMs")]  # noqa: PTH118
    for around in (folder, *folders):
        for one in names:
            yield os.path.join(around, f"{one}.dSYM")  # noqa: PTH118


def _ancestors(folder: str) -> Iterator[str]:
    while folder and folder != os.path.dirname(folder):  # noqa: PTH120
        yield folder
        folder = os.path.dirname(folder)  # noqa: PTH120


def named_in(folder: str, path: str) -> Iterator[str]:
    """Yield dSYM bundles in ``folder`` of the binary that the target has at ``path``."""
    parts = [part for part in path.split("/") if part]
    bundles = [part for part in parts[-_MAX_ANCESTORS:-1] if os.path.splitext(part)[1]]  # noqa: PTH122
    for name in dict.fromkeys(chain(parts[-1:], reversed(bundles))):
        yield os.path.join(folder, f"{name}.dSYM")  # noqa: PTH118
        yield os.path.join(folder, "dSYMs", f"{name}.dSYM")  # noqa: PTH118


_MAX_BYTES = 4 << 20
"""Bytes of a property list that is read; real ones take some kilobytes."""
_REMAPPED_SINCE = 2
"""The first DBGVersion in which DBGSourcePathRemapping is valid."""
_AS_IT_IS_SINCE = 3
"""Before, its paths ended in two meaningless components."""


def dsym_source_paths(dwarf_path: str, uuid: UUID, record: SearchRecord) -> SourcePaths:
    """Return the replacements for the paths in a bundle's DWARF file; empty without any.

    Args:
        dwarf_path: the file's path; links are followed to the bundle that it is in.
        uuid: the UUID of the slice in use.
        record: takes what is wrong with the list.
    """
    folder, dwarf = os.path.split(os.path.dirname(os.path.realpath(dwarf_path)))  # noqa: PTH120
    if dwarf != "DWARF":
        return NOT_MOVED
    path = os.path.join(folder, f"{str(uuid).upper()}.plist")  # noqa: PTH118
    try:
        if os.path.getsize(path) > _MAX_BYTES:  # noqa: PTH202
            record.add(path, Outcome.MALFORMED, f"more than {_MAX_BYTES} bytes")
            return NOT_MOVED
        with open(path, "rb") as file:  # noqa: PTH123
            data = file.read(_MAX_BYTES)
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
    """Return a path without its last two components; empty if it has no more."""
    if not isinstance(path, str):
        return ""
    return "/".join(path.rstrip("/").split("/")[:-2])


def dsym_error(folder: object, count: int) -> FileAccessError:
    """Return the error for a dSYM's folder that does not have one file."""
    if not count:
        error = FileAccessError(str(folder), "the dSYM has no file")
        error.remedy = "copy the dSYM again, as a whole"
        return error
    error = FileAccessError(str(folder), f"the dSYM has {count} files")
    error.remedy = "pass one of them"
    return error
