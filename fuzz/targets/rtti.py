"""Type information and vtables of C++: every virtual method, and what it is called.

An input is a Mach-O.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from random import Random

import numpy as np

from fuzz.mutation import Mutation, write_number
from fuzz.programs import ROOT, cached, part_of
from fuzz.target import ContractError, Target
from machtrace.errors import MachtraceError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.symbols.rtti import rtti_names

_SOURCE = ROOT / "tests" / "symbols" / "classes.cpp"
_OPTIONS = ("-std=c++20", "-O1", "-shared", "-nostdlib", "-nostdlib++", "-fno-exceptions", "-w")
_LINKING = ("-fno-sanitize=undefined", "-Wl,-undefined,dynamic_lookup")
_NAMES = 200
_SECTIONS = frozenset({"__const", "__data", "__got"})


def run(data: bytes) -> None:
    """Name the virtual methods at the starts that the symbol table has."""
    contents = MachOFileContents(data, "fuzz")
    symbols = parse_symbols(contents)
    base = np.uint64(contents.image.header_svma)
    starts = symbols.n_value[np.flatnonzero(symbols.is_code)] - base
    names = rtti_names(contents, lambda: parse_pointers(contents), np.sort(starts), symbols)
    if len(names.starts) > len(data):
        raise ContractError(f"{len(names.starts)} methods in {len(data)} bytes")
    for row in range(0, len(names.starts), max(1, len(names.starts) // _NAMES)):
        if not isinstance(names.linkage_name(row), str):
            raise ContractError(f"row {row} has no name")


def _seeds() -> Sequence[bytes]:
    seeds = []
    for arch in ("aarch64", "x86_64"):
        output = cached(f"classes-{arch}.dylib")
        if not output.exists():
            part = part_of(output)
            command = [sys.executable, "-m", "ziglang", "c++", "-target", f"{arch}-macos"]
            command += [*_OPTIONS, *_LINKING, str(_SOURCE), "-o", str(part)]
            subprocess.run(command, check=True, timeout=240)  # noqa: S603 (our own compiler)
            part.replace(output)
        seeds.append(output.read_bytes())
    return seeds


def _change_class(data: bytearray, random: Random) -> None:
    """A word of a class's data: a pointer, a count, an offset."""
    try:
        sections = [
            section
            for section in MachOFileContents(bytes(data), "fuzz").image.sections
            if section.name in _SECTIONS and section.size
        ]
    except MachtraceError:
        return
    if sections:
        section = random.choice(sections)
        at = section.offset + (random.randrange(section.size) & -4)
        numbers = (0, 1, 2, random.getrandbits(12), section.address, 0xFFFFFFFF, 0x80000000)
        write_number(data, at, random.choice((4, 8)), random.choice(numbers))


_MUTATIONS: tuple[Mutation, ...] = (_change_class,) * 4

TARGET = Target("rtti", run, _seeds, _MUTATIONS)
