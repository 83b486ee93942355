"""Go's table of functions: every name, and lines.

An input is the table's section.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from fuzz.mutation import Mutation, write_number
from fuzz.target import ContractError, Target
from machtrace.formats.gopclntab import GoFunctions
from tests.support.writers.pclntab import MAGICS, BuiltFunction, go_pclntab

_TEXT = 0x100001000
_LOOKUPS = 200


def run(data: bytes) -> None:
    """Read the table; look up names, and lines at the start and the end of functions."""
    functions = GoFunctions(memoryview(data), "fuzz", text_start=_TEXT)
    if len(functions) > len(data):
        raise ContractError(f"{len(functions)} functions in {len(data)} bytes")
    for row in range(0, len(functions), max(1, len(functions) // _LOOKUPS)):
        start, end = int(functions.starts[row]), int(functions.ends[row])
        if start >= end:
            raise ContractError(f"a function from {start:#x} to {end:#x}")
        functions.name(row)
        for address in (start, (start + end) // 2, end - 1):
            functions.location(row, address)


def _seeds() -> Sequence[bytes]:
    functions = [
        BuiltFunction(
            f"main.f{number}",
            0x40 + 4 * number,
            f"/src/{number % 3}.go",
            ((7, 0), (9, 16), (8, 32)),
        )
        for number in range(12)
    ]
    return [
        go_pclntab(
            functions,
            release=release,
            text_start=_TEXT if size == 8 else 0x1000,  # noqa: PLR2004 (bytes of a pointer)
            pointer_size=size,
            little_endian=little_endian,
        )
        for release in MAGICS
        for size in (8, 4)
        for little_endian in (True, False)
    ]


def _change_header(data: bytearray, random: Random) -> None:
    """A number of the header: a count, or where a part is."""
    at = 4 * random.randrange(18)
    number = random.choice((0, 1, 8, len(data), random.getrandbits(12), 1 << 31, (1 << 64) - 1))
    write_number(data, at, random.choice((4, 8)), number)


def _change_field(data: bytearray, random: Random) -> None:
    """An aligned word, by a small number: an offset, or an entry."""
    at = random.randrange(max(1, len(data))) & -4
    write_number(data, at, 4, random.choice((random.getrandbits(10), len(data), 0xFFFFFFFF)))


_MUTATIONS: tuple[Mutation, ...] = (_change_header, _change_field, _change_field)

TARGET = Target("pclntab", run, _seeds, _MUTATIONS)
