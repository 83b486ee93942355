"""A linker's map: which object file each function of an image comes from.

The form is that of ld64's ``-map``, which Apple's newer linker and lld write, too: a list of object
files, a list of sections, and for each symbol the address, the size and the object file's number.
Those of ELF's linkers are read, too (:mod:`~machtrace.audit.scan.link_map`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.errors import FileAccessError, FormatError
from machtrace.frozen import dataclass

# --- Maps of linkers of ELF: the object file of each part of the code ---
#
# GNU ld and gold write a part's name, address, size and file, the rest in a line of its own if the
# name is long. lld and mold write columns under a heading, of which mold has no load address; a
# part is ``file:(section)``. Parts of functions are those of ``.text``.

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


# --- A linker's map: which object file each function of an image comes from ---

_MAX_VALUE = 1 << 30
_OBJECT = re.compile(r"\[ *(\d+)\] (.*)\Z")
_SYMBOL = re.compile(r"0x([0-9A-Fa-f]{1,16})\t0x([0-9A-Fa-f]{1,16})\t\[ *(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkMap:
    """The symbols of one image with their object files, ascending by address."""

    source: str
    image: str
    """The path of the linked image; empty if the map does not state it."""
    objects: dict[int, str]
    starts: npt.NDArray[np.uint64]
    """Stated addresses."""
    sizes: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.int64]

    def object_at(self, address: int) -> str | None:
        """Return the object file of a stated address, as the linker spelt it."""
        row = int(self.starts.searchsorted(np.uint64(address), side="right")) - 1
        if row < 0 or address - int(self.starts[row]) >= int(self.sizes[row]):
            return None
        return self.objects.get(int(self.numbers[row]))

    def agrees_with(self, starts: npt.NDArray[np.uint64], low: int, high: int) -> bool:
        """Return whether the map is of the image with functions at ``starts``.

        Args:
            starts: stated addresses of the image's functions, ascending.
            low: the address of the image's code.
            high: its end.
        """
        mine = self.starts[(self.starts >= low) & (self.starts < high)]
        if not len(mine) or not len(starts):
            return False
        rows = starts.searchsorted(mine).clip(max=len(starts) - 1)
        return bool(np.count_nonzero(starts[rows] == mine) * 2 >= len(mine))


def read_link_map(path: Path) -> LinkMap:
    """Read a linker's map.

    Raises:
        FileAccessError: the file cannot be read.
        FormatError: it has no symbols.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_VALUE + 1)
    except (OSError, ValueError) as error:
        reason = f"cannot read the link map: {getattr(error, 'strerror', None) or error}"
        raise FileAccessError(str(path), reason) from None
    return parse_link_map(data[:_MAX_VALUE], str(path))


def parse_link_map(data: bytes, source: str) -> LinkMap:
    """Parse a linker's map; lines that are neither objects nor symbols are skipped.

    Raises:
        FormatError: it has no symbols.
    """
    image, part = "", ""
    objects: dict[int, str] = {}
    rows: list[tuple[int, int, int]] = []
    lines = data.decode("utf-8", "replace").splitlines()
    for line in lines:
        if line.startswith("# "):
            if line.startswith("# Path:"):
                image = line.partition(":")[2].strip()
            elif line.endswith(":"):
                part = line
            continue
        if part == "# Symbols:" and (match := _SYMBOL.match(line)):
            rows.append((int(match[1], 16), int(match[2], 16), int(match[3])))
        elif part == "# Object files:" and (match := _OBJECT.match(line)):
            objects[int(match[1])] = match[2]
    if not rows:
        # Its name is not stated, or is that before the program was renamed by stripping.
        objects, rows = _of_elf(lines)
    if not rows:
        raise FormatError(
            "not a link map: it has no symbols",
            source=source,
            offset=0,
            remedy="pass the file that the linker wrote with -map",
        )
    rows = [row for row in rows if row[2] <= len(objects) + 1]
    rows.sort()
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return LinkMap(
        source=source,
        image=image,
        objects=objects,
        starts=np.array(columns[0], np.uint64),
        sizes=np.array(columns[1], np.uint64),
        numbers=np.array(columns[2], np.int64),
    )


def _of_elf(lines: Sequence[str]) -> tuple[dict[int, str], list[tuple[int, int, int]]]:
    numbers: dict[str, int] = {}
    rows = [
        (part.address, part.size, numbers.setdefault(part.file, len(numbers)))
        for part in elf_parts(lines)
        if part.size
    ]
    return {number: file for file, number in numbers.items()}, rows
