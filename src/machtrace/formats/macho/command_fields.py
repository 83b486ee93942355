"""The fields of load commands as text, under the names of ``mach-o/loader.h``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from machtrace.formats.macho.build_version import (
    BUILD_VERSION_COMMANDS,
    Version,
    parse_build_version,
)
from machtrace.formats.macho.load_commands import (
    LC_ATOM_INFO,
    LC_CODE_SIGNATURE,
    LC_DATA_IN_CODE,
    LC_DYLD_CHAINED_FIXUPS,
    LC_DYLD_EXPORTS_TRIE,
    LC_DYLD_INFO,
    LC_DYLD_INFO_ONLY,
    LC_DYLIB_CODE_SIGN_DRS,
    LC_DYSYMTAB,
    LC_ENCRYPTION_INFO,
    LC_ENCRYPTION_INFO_64,
    LC_FILESET_ENTRY,
    LC_FUNCTION_STARTS,
    LC_FUNCTION_VARIANT_FIXUPS,
    LC_FUNCTION_VARIANTS,
    LC_ID_DYLIB,
    LC_ID_DYLINKER,
    LC_LAZY_LOAD_DYLIB,
    LC_LINKER_OPTIMIZATION_HINT,
    LC_LOAD_DYLIB,
    LC_LOAD_DYLINKER,
    LC_LOAD_UPWARD_DYLIB,
    LC_LOAD_WEAK_DYLIB,
    LC_MAIN,
    LC_NOTE,
    LC_REEXPORT_DYLIB,
    LC_RPATH,
    LC_SEGMENT,
    LC_SEGMENT_64,
    LC_SEGMENT_SPLIT_INFO,
    LC_SOURCE_VERSION,
    LC_SYMTAB,
    LC_UUID,
    LoadCommand,
)
from machtrace.formats.macho.structs import (
    DYLD_INFO_COMMAND,
    DYLIB_COMMAND,
    DYSYMTAB_COMMAND,
    ENCRYPTION_INFO_COMMAND,
    ENTRY_POINT_COMMAND,
    FILESET_ENTRY_COMMAND,
    LINKEDIT_DATA_COMMAND,
    NOTE_COMMAND,
    SEGMENT_COMMAND,
    SEGMENT_COMMAND_64,
    SOURCE_VERSION_COMMAND,
    STRING_COMMAND,
    SYMTAB_COMMAND,
    UUID_COMMAND,
    Layout,
)

Fields = dict[str, int | str]

_LC_DYLD_ENVIRONMENT = 0x27
_LC_TARGET_TRIPLE = 0x39


def command_fields(command: LoadCommand, source: str) -> Fields:
    """Return a load command's fields without ``cmd`` and ``cmdsize``; none for unknown commands.

    Strings replace their offsets, and versions have dots.

    Raises:
        MachOError: the command is shorter than its fields.
    """
    if command.cmd in BUILD_VERSION_COMMANDS:
        version = parse_build_version(command, source)
        return {
            "platform": version.platform.value,
            "minos": str(version.minos),
            "sdk": str(version.sdk),
        }
    reader = _READERS.get(command.cmd)
    return {} if reader is None else reader(command, source)


def _plain(layout: Layout[Any]) -> Callable[[LoadCommand, str], Fields]:
    def read(command: LoadCommand, source: str) -> Fields:
        row = command.unpack(layout, source)._asdict()
        return {name: value for name, value in row.items() if name not in ("cmd", "cmdsize")}

    return read


def _segment(command: LoadCommand, source: str) -> Fields:
    layout = SEGMENT_COMMAND_64 if command.cmd == LC_SEGMENT_64 else SEGMENT_COMMAND
    return {"segname": _text(command.unpack(layout, source).segname)}


def _string(command: LoadCommand, source: str) -> Fields:
    return {"name": command.text(command.unpack(STRING_COMMAND, source).name)}


def _dylib(command: LoadCommand, source: str) -> Fields:
    row = command.unpack(DYLIB_COMMAND, source)
    return {
        "name": command.text(row.name),
        "current_version": str(Version.unpack(row.current_version)),
        "compatibility_version": str(Version.unpack(row.compatibility_version)),
    }


def _uuid(command: LoadCommand, source: str) -> Fields:
    return {"uuid": str(UUID(bytes=command.unpack(UUID_COMMAND, source).uuid)).upper()}


def _source_version(command: LoadCommand, source: str) -> Fields:
    packed = command.unpack(SOURCE_VERSION_COMMAND, source).version
    parts = [packed >> 40, *(packed >> shift & 0x3FF for shift in (30, 20, 10, 0))]
    while len(parts) > 2 and parts[-1] == 0:  # noqa: PLR2004 - 1.0 keeps its zero
        parts.pop()
    return {"version": ".".join(map(str, parts))}


def _note(command: LoadCommand, source: str) -> Fields:
    row = command.unpack(NOTE_COMMAND, source)
    return {"data_owner": _text(row.data_owner), "offset": row.offset, "size": row.size}


def _fileset_entry(command: LoadCommand, source: str) -> Fields:
    row = command.unpack(FILESET_ENTRY_COMMAND, source)
    entry = command.text(row.entry_id)
    return {"entry_id": entry, "vmaddr": row.vmaddr, "fileoff": row.fileoff}


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")


_READERS: dict[int, Callable[[LoadCommand, str], Fields]] = {
    LC_SEGMENT: _segment,
    LC_SEGMENT_64: _segment,
    LC_SYMTAB: _plain(SYMTAB_COMMAND),
    LC_DYSYMTAB: _plain(DYSYMTAB_COMMAND),
    LC_DYLD_INFO: _plain(DYLD_INFO_COMMAND),
    LC_DYLD_INFO_ONLY: _plain(DYLD_INFO_COMMAND),
    LC_MAIN: _plain(ENTRY_POINT_COMMAND),
    LC_ENCRYPTION_INFO: _plain(ENCRYPTION_INFO_COMMAND),
    LC_ENCRYPTION_INFO_64: _plain(ENCRYPTION_INFO_COMMAND),
    LC_UUID: _uuid,
    LC_SOURCE_VERSION: _source_version,
    LC_NOTE: _note,
    LC_FILESET_ENTRY: _fileset_entry,
    **dict.fromkeys(
        (
            LC_ID_DYLIB,
            LC_LOAD_DYLIB,
            LC_LOAD_WEAK_DYLIB,
            LC_REEXPORT_DYLIB,
            LC_LAZY_LOAD_DYLIB,
            LC_LOAD_UPWARD_DYLIB,
        ),
        _dylib,
    ),
    **dict.fromkeys(
        (LC_RPATH, LC_LOAD_DYLINKER, LC_ID_DYLINKER, _LC_DYLD_ENVIRONMENT, _LC_TARGET_TRIPLE),
        _string,
    ),
    **dict.fromkeys(
        (
            LC_CODE_SIGNATURE,
            LC_SEGMENT_SPLIT_INFO,
            LC_FUNCTION_STARTS,
            LC_DATA_IN_CODE,
            LC_DYLIB_CODE_SIGN_DRS,
            LC_LINKER_OPTIMIZATION_HINT,
            LC_DYLD_EXPORTS_TRIE,
            LC_DYLD_CHAINED_FIXUPS,
            LC_ATOM_INFO,
            LC_FUNCTION_VARIANTS,
            LC_FUNCTION_VARIANT_FIXUPS,
        ),
        _plain(LINKEDIT_DATA_COMMAND),
    ),
}
