"""The exports trie, as linkers write it (``mach-o/loader.h``: ``dyld_info_command``)."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import commonprefix

_OFFSET_SIZE = 3
"""Bytes of each distance to a node: LEB128 may have more than it needs."""


def write_exports_trie(symbols: Mapping[str, int]) -> bytes:
    """A trie of names with their offsets from the header; empty without any."""
    return bytes(_Writer(symbols).nodes) if symbols else b""


class _Writer:
    """Appends nodes; a node is behind its parent, which learns where."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self.nodes = bytearray()
        self._add(dict(symbols))

    def _add(self, symbols: dict[str, int]) -> int:
        at = len(self.nodes)
        offset = symbols.pop("", None)
        terminal = b"" if offset is None else b"\0" + uleb(offset)  # a regular symbol
        self.nodes += uleb(len(terminal)) + terminal
        edges = _edges(symbols)
        self.nodes.append(len(edges))
        places: list[tuple[int, dict[str, int]]] = []
        for edge, names in edges.items():
            self.nodes += edge.encode() + b"\0"
            places.append((len(self.nodes), {n.removeprefix(edge): v for n, v in names.items()}))
            self.nodes += bytes(_OFFSET_SIZE)
        for place, names in places:
            child = self._add(names)
            self.nodes[place : place + _OFFSET_SIZE] = _padded(child)
        return at


def _edges(symbols: dict[str, int]) -> dict[str, dict[str, int]]:
    """The names, by what those with the same first letter have in common."""
    by_letter: dict[str, dict[str, int]] = {}
    for name in sorted(symbols):
        by_letter.setdefault(name[0], {})[name] = symbols[name]
    # Letter by letter is what is wanted.
    return {commonprefix(list(names)): names for names in by_letter.values()}  # noqa: RUF071


def uleb(value: int) -> bytes:
    """An unsigned LEB128."""
    encoded = bytearray()
    while value >= 0x80:  # noqa: PLR2004 (its highest bit says that more follows)
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _padded(value: int) -> bytes:
    parts = [value >> 7 * i & 0x7F for i in range(_OFFSET_SIZE)]
    return bytes([part | 0x80 for part in parts[:-1]] + parts[-1:])
