"""Rust names of the older mangling: those of C++ in form, with a hash as their last part.

``_ZN4core3fmt5Write9write_str17h0123456789abcdefE``: characters that linkers may not like are
written ``$LT$``, ``$u7b$`` and so on, ``::`` within a part as ``..`` (rustc,
``rustc_symbol_mangling/src/legacy.rs``).
"""

from __future__ import annotations

import re

_PREFIX = re.compile("_{1,2}ZN")
_HASH = re.compile("h[0-9a-f]{16}")
_ESCAPE = re.compile(r"\$(?:([A-Z]{1,2})|u([0-9a-f]{1,6}))\$")
_LETTERS = {
    "SP": "@",
    "BP": "*",
    "RF": "&",
    "LT": "<",
    "GT": ">",
    "LP": "(",
    "RP": ")",
    "C": ",",
}
_COPY = re.compile(r"\.llvm\.[0-9A-F@]+\Z")
_MIN_DIGITS = 5
"""Different digits that a hash has at least: what is of fewer is a C++ name that looks so."""


def demangle_rust_legacy(name: str, *, simplified: bool) -> str | None:
    """A name of Rust's older mangling as people write it; None where it is none. Raises nothing.

    Args:
        name: with the underscores that its platform puts first.
        simplified: without the hash and what follows the name.
    """
    prefix = _PREFIX.match(name)
    if prefix is None or "17h" not in name:
        return None
    parts, at = _parts(name, prefix.end())
    if len(parts) < 2 or name[at : at + 1] != "E" or not _HASH.fullmatch(parts[-1]):  # noqa: PLR2004
        return None
    if len(set(parts[-1][1:])) < _MIN_DIGITS:
        return None
    rest = _COPY.sub("", name[at + 1 :])
    if rest and rest[0] != ".":
        return None
    shown = [_decoded(part) for part in (parts[:-1] if simplified else parts)]
    text = "::".join(shown)
    return text if simplified or not rest else f"{text} ({rest})"


def _parts(name: str, at: int) -> tuple[list[str], int]:
    parts = []
    while "1" <= name[at : at + 1] <= "9":
        digits = at
        while "0" <= name[at : at + 1] <= "9":
            at += 1
        if at - digits > 7:  # noqa: PLR2004 (no name is longer)
            break
        length = int(name[digits:at])
        if at + length > len(name):
            break
        parts.append(name[at : at + length])
        at += length
    return parts, at


def _decoded(part: str) -> str:
    if part.startswith("_$"):
        part = part[1:]
    return _ESCAPE.sub(_character, part.replace("..", "::"))


def _character(escape: re.Match[str]) -> str:
    letters, digits = escape.groups()
    if letters is not None:
        return _LETTERS.get(letters, escape[0])
    code = int(digits, 16)
    if code > 0x10FFFF or not chr(code).isprintable():  # noqa: PLR2004 (the last of Unicode)
        return escape[0]
    return chr(code)
