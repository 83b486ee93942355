"""Metadata of Objective-C and Swift: every function that it leads to, and what it is called.

An input is a Mach-O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from fuzz.mutation import Mutation, write_number
from fuzz.target import ContractError, Target
from machtrace.errors import MemoryReadError
from machtrace.formats.macho.contents import MachOContents, MachOFileContents, MachOMemoryContents
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.formats.macho.metadata.swift_types import ContextKind
from machtrace.model.address import Avma, Svma
from machtrace.symbols.objc import objc_names, objc_stub_names
from machtrace.symbols.swift import swift_names
from machtrace.targets.emulator import PROGRAM
from tests.support.writers.chained_fixups import DATA_OFFSET, IMAGE_SVMA, TEXT_OFFSET
from tests.support.writers.metadata import ListKind, ObjcMetadata
from tests.support.writers.swift_metadata import SwiftMetadata

_BASE = Svma(IMAGE_SVMA + DATA_OFFSET)
_LOADED = Avma(IMAGE_SVMA + 0x7C4000)
_MAX_LOADED = 1 << 24
_NAMES = 40


@dataclass(frozen=True, slots=True)
class _Memory:
    data: bytes

    def read(self, address: Avma, size: int) -> bytes:
        at = address - _LOADED
        if at < 0 or at + size > len(self.data):
            raise MemoryReadError(address, size)
        return self.data[at : at + size]


def run(data: bytes) -> None:
    """Find the functions, in the file and as it would lie in memory, and name some of them."""
    _try(MachOFileContents(data, "fuzz"), len(data))
    _try(MachOMemoryContents(_Memory(data), _LOADED, "fuzz"), max(len(data), _MAX_LOADED))


def _try(contents: MachOContents, size: int) -> None:
    pointers = parse_pointers(contents)
    for names in (
        objc_names(contents, pointers, selector_base=_BASE),
        objc_stub_names(contents, pointers),
        swift_names(contents, pointers),
    ):
        if len(names.starts) > size:
            raise ContractError(f"{len(names.starts)} functions in {size} bytes")
        for row in range(0, len(names.starts), max(1, len(names.starts) // _NAMES)):
            if not isinstance(names.linkage_name(row), str):
                raise ContractError(f"row {row} has no name")


def _code(number: int) -> int:
    return IMAGE_SVMA + TEXT_OFFSET + 16 * number


def _objc(kind: ListKind) -> bytes:
    metadata = ObjcMetadata(selector_base=_BASE)
    methods = metadata.methods(kind, {"first": _code(0), "second:": _code(1)})
    if kind is ListKind.DIRECT and methods is not None:
        methods = metadata.list_of_lists(methods, methods)
    shape = metadata.add_class("Shape", methods, metadata.methods(kind, {"make": _code(2)}))
    metadata.add_class("_TtC4Game6Player", metadata.methods(kind, {"play": _code(3)}), None)
    metadata.add_category("Own", shape, metadata.methods(kind, {"third": _code(4)}), None)
    metadata.add_category("Far", "_OBJC_CLASS_$_NSString", methods, None)
    return metadata.image(metadata.sections(), is_signed=kind is not ListKind.ABSOLUTE)


def _swift() -> bytes:
    metadata = SwiftMetadata()
    module = metadata.module("Game")
    board = metadata.add_type(ContextKind.STRUCT, "Board", module, _code(0))
    inner = metadata.extension(metadata.anonymous(module), of=board)
    metadata.add_type(ContextKind.ENUM, "Piece", inner, _code(1), c_name="PieceRef")
    metadata.add_type(ContextKind.ENUM, "Word", metadata.extension(module, of="SS"), _code(2))
    methods = [(kind | 0x10 * (kind % 2), _code(kind + 3)) for kind in range(8)]
    player = metadata.add_class("Player", module, _code(12), methods, parameters=2)
    metadata.add_class("Other", module, _code(13), [(0x50, _code(14))], is_resilient=True)
    protocol = metadata.protocol("Playable", module, [1, 3, 0x21])
    metadata.add_conformance(player, protocol, [_code(1), _code(2), None])
    metadata.add_resilient_conformance(board, "_$sSQMp", {"_$sSQ2eeoiySbx_xtFZTq": _code(20)})
    return metadata.image(metadata.sections())


def _seeds() -> Sequence[bytes]:
    return [PROGRAM.read_bytes(), *map(_objc, ListKind), _swift(), _swift()]


def _change_number(data: bytearray, random: Random) -> None:
    """A 32-bit number of the metadata: flags, a count, a distance."""
    at = DATA_OFFSET + 4 * random.randrange(512)
    if at + 4 <= len(data):
        old = int.from_bytes(data[at : at + 4], "little")
        choices = (0, 1, 0xFFFF, 0xFFFFFFFF, 0x80000000, old + 4, old - 8, old ^ 1, old * 16)
        write_number(data, at, 4, random.choice(choices))


def _move_pointer(data: bytearray, random: Random) -> None:
    """A pointer made to lead to another record."""
    at = DATA_OFFSET + 8 * random.randrange(256)
    if at + 8 <= len(data):
        write_number(data, at, 4, DATA_OFFSET + 4 * random.randrange(512))


def _copy_record(data: bytearray, random: Random) -> None:
    """A record where another was."""
    size = 4 << random.randrange(5)
    source, target = (DATA_OFFSET + 4 * random.randrange(512) for _ in range(2))
    if max(source, target) + size <= len(data):
        data[target : target + size] = data[source : source + size]


_MUTATIONS: tuple[Mutation, ...] = (
    _change_number,
    _change_number,
    _change_number,
    _move_pointer,
    _move_pointer,
    _copy_record,
)

TARGET = Target("objc", run, _seeds, _MUTATIONS)
