"""Maps of linkers of ELF: the object file of each part of the code.

GNU ld and gold write a part's name, address, size and file, the rest in a line of its own if the
name is long. lld and mold write columns under a heading, of which mold has no load address; a part
is ``file:(section)``. Parts of functions are those of ``.text``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_GNU_STARTS = frozenset({"Linker script and memory map", "Memory map"})
"""Lines after which parts are listed; before are those that were left out."""
_GNU_PART = re.compile(
    r" (\.text[\w.$@*+-]*)? +0x([0-9a-fA-F]{1,16}) +0x([0-9a-fA-F]{1,16}) (\S.*)\Z"
)
_GNU_NAME = re.compile(r" \.text[\w.$@*+-]*\Z")
_HEADING = re.compile(r" *VMA( +LMA)? +Size Align Out +In +Symbol\Z")
_COLUMNS = {
    True: re.compile(r" *([0-9a-f]{1,16}) +[0-9a-f]{1,16} +([0-9a-f]{1,16}) +\d+ +(\S.*)\Z"),
    False: re.compile(r" *(?:0x)?([0-9a-f]{1,16}) +(?:0x)?([0-9a-f]{1,16}) +\d+ +(\S.*)\Z"),
}
_PLACE = re.compile(r"(.*):\(\.text[^()]*\)\Z")


class Part(NamedTuple):
    """A part of the code."""

    address: int
    size: int
    file: str


def elf_parts(lines: Iterable[str]) -> Iterator[Part]:
    """Yield the parts of the code that a map lists; none if it has neither form."""
    columns: re.Pattern[str] | None = None
    is_gnu = has_name = False
    for line in lines:
        if columns is not None:
            match = columns.match(line)
            place = None if match is None else _PLACE.match(match[3])
            if match is not None and place is not None:
                yield Part(int(match[1], 16), int(match[2], 16), place[1])
        elif is_gnu:
            match = _GNU_PART.match(line)
            if match is not None and (match[1] or has_name):
                yield Part(int(match[2], 16), int(match[3], 16), match[4])
            has_name = _GNU_NAME.match(line) is not None
        elif line in _GNU_STARTS:
            is_gnu = True
        elif (heading := _HEADING.match(line)) is not None:
            columns = _COLUMNS[heading[1] is not None]
