"""Linked images as Apple's linkers write them: chained fixups, function starts, signed slots.

The available linker writes opcodes. Sources: ``mach-o/fixup-chains.h``, and what Apple's linker
makes for arm64e: slots of calls are in ``__auth_got``, signed with key IA and their addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack, pack_into, unpack_from

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.formats.macho.load_commands import (
    LC_DYLD_CHAINED_FIXUPS,
    LC_DYLD_EXPORTS_TRIE,
    LC_DYLD_INFO_ONLY,
    LC_FUNCTION_STARTS,
    LC_SEGMENT_64,
)
from tests.support.emulated.dyld import symbols_of

_PAGE = 0x4000
_HEADER = 32
_NONE = 0xFFFF
_UNKNOWN = 0x7FFF
_ARM64E_USERLAND24, _PTR_64_OFFSET = 12, 6
_LAZY, _NON_LAZY = 7, 6
Signing = tuple[int, int, bool]
"""Key, discriminator, and whether the address is mixed in."""


def with_chained_fixups(data: bytes, signed: Mapping[int, Signing] | None = None) -> bytes:
    """Return an image with chains in place of opcodes.

    Args:
        data: a linked image of arm64 or x86_64.
        signed: by Svma, how pointers are signed; with it, the format is that of arm64e.
    """
    contents = MachOFileContents(data, "image")
    image = contents.image
    pointers = parse_pointers(contents)
    changed = bytearray(data)
    words: dict[int, int] = {}
    rebases, binds = pointers.rebases, pointers.binds
    for place, target in zip(rebases.places.tolist(), rebases.targets.tolist(), strict=True):
        words[place] = target - image.header_svma | _signing(signed, place)
    for place, symbol in zip(binds.places.tolist(), binds.symbols.tolist(), strict=True):
        words[place] = symbol | (1 << 63 if signed is None else 1 << 62) | _signing(signed, place)
    segments = image.segments
    starts: dict[int, bytes] = {}
    for number, segment in enumerate(segments):
        places = sorted(place for place in words if 0 <= place - segment.vmaddr < segment.vmsize)
        if not places:
            continue
        pages = -(-segment.vmsize // _PAGE)
        firsts = [_NONE] * pages
        for place, following in zip(places, [*places[1:], 0], strict=True):
            offset = place - segment.vmaddr
            page = offset // _PAGE
            if firsts[page] == _NONE:
                firsts[page] = offset % _PAGE
            distance = following - place
            if following == 0 or (following - segment.vmaddr) // _PAGE != page:
                distance = 0
            word = words[place] | distance // (4 if signed is None else 8) << 51
            pack_into("<Q", changed, segment.fileoff + offset, word)
        number_of_format = _PTR_64_OFFSET if signed is None else _ARM64E_USERLAND24
        starts[number] = pack(
            "<I2HQIH", 22 + 2 * pages, _PAGE, number_of_format,
            segment.vmaddr - image.header_svma, 0, pages,
        ) + pack(f"<{pages}H", *firsts)  # fmt: skip
    payload = _payload(len(segments), starts, binds.names)
    _replace_commands(changed, _append(changed, payload), len(payload))
    return bytes(changed)


def _signing(signed: Mapping[int, Signing] | None, place: int) -> int:
    if signed is None or place not in signed:
        return 0
    key, discriminator, is_diverse = signed[place]
    return 1 << 63 | key << 49 | is_diverse << 48 | discriminator << 32


def _payload(segment_count: int, starts: Mapping[int, bytes], names: Sequence[str]) -> bytes:
    offsets, tables = [0] * segment_count, b""
    first = 4 + 4 * segment_count
    first += -first % 8
    for number, table in starts.items():
        offsets[number] = first + len(tables)
        tables += table + bytes(-len(table) % 8)
    in_image = pack(f"<{1 + segment_count}I", segment_count, *offsets).ljust(first, b"\0") + tables
    records, strings = b"", b"\0"
    for name in names:
        records += pack("<I", 0xFE | len(strings) << 9)
        strings += name.encode() + b"\0"
    imports = _HEADER + len(in_image)
    header = pack("<7I", 0, _HEADER, imports, imports + len(records), len(names), 1, 0)
    return header.ljust(_HEADER, b"\0") + in_image + records + strings


def _replace_commands(data: bytearray, offset: int, size: int) -> None:
    for at, command in _commands(data):
        if command == LC_DYLD_INFO_ONLY:
            exports, exports_size = unpack_from("<2I", data, at + 40)
            pack_into("<4I", data, at, LC_DYLD_CHAINED_FIXUPS, 16, offset, size)
            # Of the rest: the exports, and a command that is unknown.
            pack_into("<4I", data, at + 16, LC_DYLD_EXPORTS_TRIE, 16, exports, exports_size)
            pack_into("<4I", data, at + 32, _UNKNOWN, 16, 0, 0)
    (count,) = unpack_from("<I", data, 16)
    pack_into("<I", data, 16, count + 2)


def _commands(data: bytearray) -> list[tuple[int, int]]:
    """Offsets and numbers of the load commands."""
    at, result = 32, []
    for _ in range(unpack_from("<I", data, 16)[0]):
        command, length = unpack_from("<2I", data, at)
        result.append((at, command))
        at += length
    return result


def _append(data: bytearray, payload: bytes) -> int:
    """Append to __LINKEDIT; the offset."""
    data += bytes(-len(data) % 8)
    offset = len(data)
    data += payload
    for at, command in _commands(data):
        if command == LC_SEGMENT_64 and data[at + 8 : at + 18] == b"__LINKEDIT":
            (start,) = unpack_from("<Q", data, at + 40)
            pack_into("<Q", data, at + 48, len(data) - start)
            pack_into("<Q", data, at + 32, -(-(len(data) - start) // _PAGE) * _PAGE)
    return offset


def with_function_starts(data: bytes) -> bytes:
    """Return an image with the table that the available linker leaves empty."""
    contents = MachOFileContents(data, "image")
    code = [range(section.address, section.end) for section in contents.image.code_sections]
    starts = sorted({v for v in symbols_of(contents).values() if any(v in one for one in code)})
    table, last = b"", int(contents.image.header_svma)
    for start in starts:
        distance, last = start - last, start
        while distance >= 128:
            table += bytes([distance & 127 | 128])
            distance >>= 7
        table += bytes([distance])
    changed = bytearray(data)
    offset = _append(changed, table + b"\0")
    for at, command in _commands(changed):
        if command == LC_FUNCTION_STARTS:
            pack_into("<2I", changed, at + 8, offset, len(table) + 1)
    return bytes(changed)


def with_authenticating_stubs(data: bytes) -> tuple[bytes, list[int]]:
    """Let stubs of arm64 authenticate what they load; also return the Svmas of their slots.

    They are an instruction shorter than Apple's, which load the slot's address into x17 by two; so
    an image with more than 32 slots is left as it is.
    """
    contents = MachOFileContents(data, "image")
    stubs = contents.image.section("__TEXT", "__stubs")
    slots = contents.image.section("__DATA", "__la_symbol_ptr")
    if stubs is None or slots is None or slots.size > 256:
        return data, []
    changed = bytearray(data)
    for at in range(stubs.offset, stubs.offset + stubs.size, 12):
        adrp, load, _ = unpack_from("<3I", data, at)
        offset = (load >> 10 & 0xFFF) * 8
        # adrp x17, …; ldr x16, [x17, #offset]!; braa x16, x17
        pack_into("<3I", changed, at, adrp & ~31 | 17, 0xF8400E30 | offset << 12, 0xD71F0A11)
    at = bytes(changed).index(b"__la_symbol_ptr\0__DATA")
    changed[at : at + 16] = b"__auth_got".ljust(16, b"\0")
    (flags,) = unpack_from("<I", changed, at + 64)
    pack_into("<I", changed, at + 64, flags & ~0xFF | _NON_LAZY)
    return bytes(changed), list(range(slots.address, slots.address + slots.size, 8))
