"""Symbol tables: whole small Mach-O and ELF files, and what is named in them.

An input is a file. Its names are queried in bulk, one by one and without a table; the three must
agree, and the answers must be within the file's own bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from struct import unpack_from

import numpy as np

from fuzz.mutation import Mutation, insert_token, write_number
from fuzz.programs import cached, elf_programs, macho_programs
from fuzz.target import ContractError, Target
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.header import CPU_TYPE_ARM, CPU_TYPE_ARM64, CPU_TYPE_X86_64
from machtrace.formats.macho.structs import N_EXT, N_SECT
from machtrace.formats.object_file import ObjectFile, Signature, signature
from machtrace.model.address import ImageOffset
from machtrace.symbols.elf import elf_symbol_table
from machtrace.symbols.image_symbols import first_symbol
from machtrace.symbols.macho.table import macho_symbol_table
from machtrace.symbols.table import SymbolTable
from tests.support.writers.function_lists import uleb, write_exports_trie
from tests.support.writers.macho import TEXT_OFFSET, BuiltSymbol, ThinFile

_LOOKUPS = 12
_MAX_BYTES = 1 << 17
"""Bytes of a program that is a seed: most mutations of a larger one change nothing that matters."""
_FUNCTIONS = 24
_LAST = 2**64 - 1


def run(data: bytes) -> None:
    """Make the table, and look up what is in it and around it."""
    contents: ObjectFile
    if signature(data) is Signature.ELF:
        contents = ElfFileContents(data, "fuzz")
        table = elf_symbol_table(contents)
    else:
        contents = MachOFileContents(data, "fuzz")
        table = macho_symbol_table(contents)
    early = {offset: first_symbol(contents, offset, tuple) for offset in _offsets(data)[:3]}
    _check(table, data)
    for offset, symbol in early.items():
        if symbol is not None and symbol != table.find(offset):
            raise ContractError(
                f"{offset:#x}: {symbol} without a table, {table.find(offset)} by it"
            )


def _check(table: SymbolTable, data: bytes) -> None:
    if len(table) > len(data):
        raise ContractError(f"{len(table)} functions from {len(data)} bytes")
    starts, ends = table.starts, table.ends
    if (ends < starts).any() or (ends[:-1] > starts[1:]).any():
        raise ContractError("functions overlap")
    offsets = [*_offsets(data), *map(ImageOffset, starts[:_LOOKUPS].tolist())]
    found = table.ids(np.array(offsets, np.uint64)).tolist()
    for offset, index in zip(offsets, found, strict=True):
        symbol = table.find(offset)
        if symbol is None:
            if index >= 0 and ends[index] > starts[index]:
                raise ContractError(f"{offset:#x} is in a function only in bulk")
            continue
        if index < 0 or symbol.offset != starts[index]:
            raise ContractError(f"{offset:#x} is in another function in bulk")
        if not symbol.offset <= offset < symbol.offset + (symbol.size or 0):
            raise ContractError(f"{offset:#x} is named by {symbol}, which does not hold it")
        table.name(index)
        table.linkage_name(index)


def _offsets(data: bytes) -> list[ImageOffset]:
    """Where functions may be, by the words of the file itself."""
    step = max(8, len(data) // _LOOKUPS & -8)
    words = [unpack_from("<I", data, at)[0] for at in range(0, len(data) - 4, step)][:_LOOKUPS]
    fixed = (0, TEXT_OFFSET, TEXT_OFFSET + 17, 1 << 32, _LAST)
    return [ImageOffset(word) for word in (*words, *fixed)]


def _seeds() -> Sequence[bytes]:
    seeds = list(_made())
    programs = [bytes(one.data) for one in macho_programs()]
    programs += [cached(f"elf-{one.source}").read_bytes() for one in elf_programs()]
    seeds += [program for program in programs if len(program) <= _MAX_BYTES]
    return seeds


def _made() -> Sequence[bytes]:
    """Small files in which every byte matters."""
    made = []
    for cputype, is_64 in ((CPU_TYPE_ARM64, True), (CPU_TYPE_X86_64, True), (CPU_TYPE_ARM, False)):
        names = [f"_function{number}" for number in range(_FUNCTIONS)]
        symbols = tuple(
            BuiltSymbol(name, TEXT_OFFSET + 16 * number, n_type=N_SECT | N_EXT * (number % 3 == 0))
            for number, name in enumerate(names)
            if number % 4
        )
        exports = {name: TEXT_OFFSET + 16 * number for number, name in enumerate(names)}
        made.append(
            ThinFile(
                cputype=cputype,
                is_64=is_64,
                code=bytes(16 * _FUNCTIONS),
                symbols=symbols,
                function_starts=uleb(TEXT_OFFSET) + uleb(16) * (_FUNCTIONS - 1) + b"\0",
                exports_trie=write_exports_trie(exports),
            ).build()
        )
    return made


def _change_command(data: bytearray, random: Random) -> None:
    """Change a number in the load commands, which locate all tables."""
    if len(data) > TEXT_OFFSET:
        at = random.randrange(16, TEXT_OFFSET) & -4
        number = random.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, len(data), random.getrandbits(32)))
        write_number(data, at, 4, number)


def _change_end(data: bytearray, random: Random) -> None:
    """A byte of the tables, which are at a file's end."""
    if data:
        at = len(data) - 1 - random.randrange(min(len(data), 2048))
        data[at] = random.getrandbits(8)


_TOKENS = (b"<redacted>\0", b"ltmp0\0", b"\0" * 16, b"\xff" * 16, b"\x0f\x01\x00\x00")
_MUTATIONS: tuple[Mutation, ...] = (
    _change_command,
    _change_command,
    _change_end,
    _change_end,
    insert_token(_TOKENS, unit=4),
)
TARGET = Target("symbol_table", run, _seeds, _MUTATIONS)
