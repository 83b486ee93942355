"""Names as symbol tables spell them, and as users read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from machtrace.demangler import demangle
from machtrace.formats.macho.structs import REDACTED_NAME
from machtrace.model.address import ImageOffset
from machtrace.model.symbol import Certainty, Symbol, unnamed

REDACTED = REDACTED_NAME.decode()
"""The placeholder of a removed name."""
MAX_LENGTH = 1 << 16
"""The largest number of bytes of a name that are read."""
_ALIASES_LENGTH = 1 << 20
"""The largest number of characters of all names at one address."""
_TEMPORARY = re.compile(r"ltmp\d+\Z|L")
"""Names that the assembler creates, as Mach-O's symbol tables spell them."""

Spelt: TypeAlias = tuple[str, bool, Certainty]
"""A linkage name, whether it begins with an underscore that users do not read, and its certainty.
"""


def human_name(linkage_name: str, *, leading_underscore: bool) -> str:
    """Return the name for users: demangled, else without the underscore that it may begin with."""
    human = demangle(linkage_name)
    if human != linkage_name:
        return human
    if leading_underscore and linkage_name.startswith("_"):
        return linkage_name[1:]
    return linkage_name


def best_first(names: Iterable[Spelt]) -> list[Spelt]:
    """Return the names at one address without placeholders, an assembler's last."""
    lasting: list[Spelt] = []
    temporary: list[Spelt] = []
    room = _ALIASES_LENGTH
    for spelt in names:
        name, is_macho, _ = spelt
        if not name or name == REDACTED:
            continue
        (temporary if is_macho and _TEMPORARY.match(name) else lasting).append(spelt)
        room -= len(name)
        if room < 0:
            break
    return lasting + temporary


def symbol_of(names: list[Spelt], offset: ImageOffset, size: int) -> Symbol:
    """Return the function at ``offset`` with the first of ``names``; unnamed if there are none."""
    if not names:
        return unnamed(offset, size)
    linkage_name, underscore, certainty = names[0]
    name = human_name(linkage_name, leading_underscore=underscore)
    others = dict.fromkeys(human_name(one, leading_underscore=mark) for one, mark, _ in names)
    others.pop(name)
    return Symbol(
        name=name,
        linkage_name=linkage_name,
        offset=offset,
        size=size,
        certainty=certainty,
        aliases=tuple(others),
    )
