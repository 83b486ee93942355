"""Contents of symbol stores in tests: small images, fat files, archives."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_X86_64, FileType
from machtrace.symbolstore.adding import InputFile, Stored, SymbolAdder, input_files
from machtrace.symbolstore.archive import UnpackLimits
from machtrace.symbolstore.contained_images import Skipped, SkipReason
from machtrace.symbolstore.store import SymbolStore
from tests.support.writers.macho import BuiltSlice, ThinFile, fat_file

ARM = UUID("82d13d98-219e-3040-b62a-07a297007a7c")
"""UUID of :data:`APP` and :data:`DSYM`."""
INTEL = UUID("23516be4-29be-350c-91c9-f36e7999f0f1")
"""UUID of :data:`INTEL_APP`."""
APP = ThinFile(uuid=ARM, filetype=FileType.EXECUTE).build()
DSYM = ThinFile(uuid=ARM, filetype=FileType.DSYM, code=bytes(128)).build()
INTEL_APP = ThinFile(uuid=INTEL, cputype=CPU_TYPE_X86_64, filetype=FileType.EXECUTE).build()
_ALIGNMENT = 0x1000


def fat(arm: bytes, intel: bytes) -> bytes:
    """Return a fat file of arm64 and x86_64."""
    at, rows, contents = _ALIGNMENT, [], []
    for kind, data in (((CPU_TYPE_ARM64, 0), arm), ((CPU_TYPE_X86_64, 3), intel)):
        rows.append(BuiltSlice(*kind, at, len(data)))
        contents.append((at, data))
        at += -(-len(data) // _ALIGNMENT) * _ALIGNMENT
    return fat_file(rows, contents)


def zipped(members: Mapping[str, bytes], *, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive's bytes."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return sink.getvalue()


def add(
    store: SymbolStore,
    *places: Path,
    limits: UnpackLimits | None = None,
    follow_links: bool = False,
) -> tuple[list[Stored], list[Skipped]]:
    """Add all that is at ``places``; what was stored, and what was skipped."""
    adder = SymbolAdder(store, limits)
    stored: list[Stored] = []
    skipped: list[Skipped] = []
    for place in places:
        for file in input_files(place, follow_links=follow_links):
            for outcome in adder.add(file) if isinstance(file, InputFile) else (file,):
                if isinstance(outcome, Stored):
                    stored.append(outcome)
                else:
                    skipped.append(outcome)
    return stored, skipped


def reasons(skipped: list[Skipped]) -> list[SkipReason]:
    """Return the reason of each, in order."""
    return [one.reason for one in skipped]


def everything_in(folder: Path) -> list[str]:
    """Return the paths of all files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def names_in(folder: Path) -> set[str]:
    """Return the names of a folder's entries."""
    return {path.name for path in folder.iterdir()}
