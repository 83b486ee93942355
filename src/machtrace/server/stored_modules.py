"""Images of the symbol store by the identifiers of other systems' symbolicators.

A debug id is a UUID and an age, which is 0 but for PDB files. A Mach-O image's UUID is its own. An
ELF image's is made of the first 16 bytes of its build id, whose first three fields are read as
little-endian numbers, as Breakpad does. A code id is an image's own identifier in hexadecimal.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import UUID

from machtrace.images.store_layout import Identifier, parse_identifier
from machtrace.symbolstore.store import SymbolStore, identifiers_of

_DEBUG_ID = re.compile(
    r"([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})"
    r"(?:-?([0-9a-f]{1,8}))?",
    re.IGNORECASE,
)
_UUID_DIGITS = 32


class DebugId(NamedTuple):
    """The identifier of a debug file."""

    uuid: UUID
    age: int

    def __str__(self) -> str:
        return f"{self.uuid}-{self.age:x}" if self.age else str(self.uuid)


class StoredModule(NamedTuple):
    """An image of which the store has files."""

    identifier: Identifier
    arch: str | None


def parse_debug_id(text: str) -> DebugId | None:
    """Return a debug id, with or without dashes; None if it is none."""
    match = _DEBUG_ID.fullmatch(text)
    if match is None:
        return None
    *fields, age = match.groups()
    return DebugId(UUID("".join(fields)), int(age, 16) if age else 0)


def stored_module(
    store: SymbolStore, debug_id: DebugId | None, code_id: str = ""
) -> StoredModule | None:
    """Return the stored image with these identifiers; None if the store has none.

    Args:
        store: the symbols.
        debug_id: of the image.
        code_id: in hexadecimal; may be empty.
    """
    named = [parse_identifier(code_id)] if code_id else []
    if debug_id is not None:
        named += [debug_id.uuid, *_of_elf(store, debug_id.uuid)]
    for identifier in named:
        files = [] if identifier is None else store.files_of(identifier)
        if files:
            # A build id of 16 bytes reads as a UUID: the file has the kind of its identifier.
            own = identifiers_of(files[0].path) or [files[0].identifier]
            return StoredModule(own[0], files[0].arch)
    return None


def _of_elf(store: SymbolStore, uuid: UUID) -> list[Identifier | None]:
    """Return the stored build ids that begin with the bytes that ``uuid`` was made of."""
    digits = uuid.bytes_le.hex()
    folder = store.root / digits[:2]
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
    return [
        parse_identifier(digits[:2] + name)
        for name in names
        if (digits[:2] + name)[:_UUID_DIGITS].ljust(_UUID_DIGITS, "0") == digits
    ]
