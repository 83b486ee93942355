"""SymCaches: mutated indices of debug information, queried for all of their contents."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

import numpy as np

from fuzz.mutation import Mutation, write_number
from fuzz.programs import debug_programs
from fuzz.target import ContractError, Target
from machtrace.lines.index import DebugIndex
from machtrace.lines.index_builder import build_index
from machtrace.lines.symcache import SymCache
from machtrace.model.address import ImageOffset
from tests.support.compilers.debug_programs import debug_file

_HEADER_SIZE = 80
_COUNTS_OFFSET = 44
_ASKED = 20


def run(data: bytes) -> None:
    """Open the index; read every name and path, and look some offsets up."""
    tables = SymCache(data)
    for number in range(tables.function_count):
        tables.function_name(number)
    for number in range(tables.file_count):
        tables.file_path(number)
    ask(DebugIndex(tables), tables.columns.range_starts)


def ask(index: DebugIndex, starts: np.typing.NDArray[np.uint32]) -> None:
    """Look some of ``starts`` up, one by one and in columns, which must agree."""
    step = max(1, len(starts) // _ASKED)
    wide = starts[::step].astype(np.uint64)
    offsets = np.concatenate([wide, wide + np.uint64(1), np.array([0, 1 << 63], np.uint64)])
    single = [index.inlined(ImageOffset(offset)) for offset in offsets.tolist()]
    columns = index.columns(offsets)
    chains = index.chains(columns.location)
    sizes = np.diff(chains.first).tolist()
    if sizes != [len(frames) for frames in single]:
        raise ContractError(f"chains of {sizes} calls, {[len(frames) for frames in single]}")


@cache
def _seeds() -> Sequence[bytes]:
    return [bytes(build_index(debug_file(path))) for path in debug_programs()]


def _change_count(data: bytearray, random: Random) -> None:
    """How many rows there are of one kind."""
    if len(data) >= _HEADER_SIZE:
        at = _COUNTS_OFFSET + 4 * random.randrange(5)
        number = int.from_bytes(data[at : at + 4], "little")
        write_number(data, at, 4, random.choice((0, 1, number - 1, number + 1, 0xFFFFFFFF)))


def _change_word(data: bytearray, random: Random) -> None:
    """A number of a row: by none, by a small one, or by its neighbour."""
    if len(data) > _HEADER_SIZE + 8:
        at = _HEADER_SIZE + 4 * random.randrange((len(data) - _HEADER_SIZE) // 4 - 1)
        near = int.from_bytes(data[at + 4 : at + 8], "little")
        choices = (0xFFFFFFFF, 0xFFFFFFFE, random.getrandbits(6), near, len(data))
        write_number(data, at, 4, random.choice(choices))


_MUTATIONS: tuple[Mutation, ...] = (_change_count, *[_change_word] * 8)

TARGET = Target("symcache", run, _seeds, _MUTATIONS)
