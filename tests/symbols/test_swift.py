"""Swift's functions in stripped images: synthetic metadata, by the ABI's headers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import MachtraceError, MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.formats.macho.metadata.swift_types import ContextKind
from machtrace.model.address import Avma, ImageOffset
from machtrace.model.symbol import Certainty
from machtrace.symbols.macho.table import macho_symbol_table
from machtrace.symbols.swift import swift_names
from tests.support.writers.chained_fixups import DATA_OFFSET, IMAGE_SVMA, TEXT_OFFSET
from tests.support.writers.function_lists import with_listed_functions
from tests.support.writers.swift_metadata import SwiftMetadata

INSTANCE, ASYNC_METHOD, ASYNC_REQUIREMENT = 0x10, 0x40, 0x20
METHOD, INIT, GETTER, SETTER, MODIFY, READ = range(6)


def code(number: int) -> int:
    """Return the address of a function."""
    return IMAGE_SVMA + TEXT_OFFSET + 16 * number


def names(image: bytes) -> dict[int, str]:
    """Return names by number of function."""
    contents = MachOFileContents(image, "made")
    functions = swift_names(contents, parse_pointers(contents))
    assert functions.certainty is Certainty.SWIFT
    return {
        (int(start) - TEXT_OFFSET) // 16: functions.linkage_name(row)
        for row, start in enumerate(functions.starts)
    }


def game() -> SwiftMetadata:
    """Write a module with a type of each kind, and the metadata of the other tests."""
    metadata = SwiftMetadata()
    module = metadata.module("Game")
    board = metadata.add_type(ContextKind.STRUCT, "Board", module, code(0))
    metadata.add_type(ContextKind.ENUM, "Piece", board, code(1))
    hidden = metadata.anonymous(module)
    metadata.add_type(ContextKind.STRUCT, "Secret", hidden, code(2))
    metadata.add_type(ContextKind.STRUCT, "Move", metadata.extension(module, of=board), code(3))
    metadata.add_type(ContextKind.STRUCT, "Word", metadata.extension(module, of="SS"), code(4))
    imported = metadata.module("__C")
    metadata.add_type(ContextKind.STRUCT, "CVBuffer", imported, code(5), c_name="CVBufferRef")
    return metadata


@pytest.mark.parametrize("is_signed", [True, False])
def test_metadata_accessors_are_named_after_their_types(is_signed):
    """Nested and private types, and types in extensions of this module's, others' and C's types."""
    metadata = game()
    assert names(metadata.image(metadata.sections(), is_signed=is_signed)) == {
        0: "type metadata accessor for Game.Board",
        1: "type metadata accessor for Game.Board.Piece",
        2: "type metadata accessor for Game.Secret",
        3: "type metadata accessor for (extension in Game):Game.Board.Move",
        4: "type metadata accessor for (extension in Game):Swift.String.Word",
        5: "type metadata accessor for __C.CVBufferRef",
    }


class Memory:
    """An image in an address space."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data, self.start = data, start

    def read(self, address: Avma, size: int) -> bytes:
        """Read bytes of the image."""
        at = address - self.start
        if at < 0 or at + size > len(self.data):
            raise MemoryReadError(address, size)
        return self.data[at : at + size]


def test_types_have_the_same_names_in_memory():
    """Loading does not change the metadata, since its pointers are relative."""
    metadata = game()
    metadata.add_class("Player", metadata.module("Game"), code(10), METHODS, parameters=1)
    data = metadata.image(metadata.sections())
    contents = MachOMemoryContents(Memory(data, 0x7F0000000), Avma(0x7F0000000), "loaded")
    loaded = swift_names(contents, parse_pointers(contents))
    in_file = MachOFileContents(data, "made")
    expected = swift_names(in_file, parse_pointers(in_file))
    assert expected.starts.tolist() == loaded.starts.tolist()
    for row in range(len(loaded.starts)):
        assert expected.linkage_name(row) == loaded.linkage_name(row)


METHODS = [
    (METHOD | INSTANCE, code(1)),
    (INIT, code(2)),
    (GETTER | INSTANCE, code(3)),
    (SETTER | INSTANCE, code(4)),
    (MODIFY | INSTANCE, code(5)),
    (METHOD, code(6)),
    (METHOD | INSTANCE | ASYNC_METHOD, code(7)),
]
IN_VTABLE = {
    1: "Game.Player.{method 0}",
    2: "Game.Player.{init 1}",
    3: "Game.Player.{getter 2}",
    4: "Game.Player.{setter 3}",
    5: "Game.Player.{modify 4}",
    6: "Game.Player.{static method 5}",
    7: "Game.Player.{method 6}",
}


@pytest.mark.parametrize("parameters", [0, 1, 4, 5])
@pytest.mark.parametrize("is_resilient", [False, True])
def test_methods_are_numbered_in_the_vtable(parameters, is_resilient):
    """Any fields may precede a class's vtable; an async method's code is behind its record."""
    metadata = SwiftMetadata()
    module = metadata.module("Game")
    metadata.add_class(
        "Player", module, code(0), METHODS, parameters=parameters, is_resilient=is_resilient
    )
    found = names(metadata.image(metadata.sections()))
    assert found == {0: "type metadata accessor for Game.Player"} | IN_VTABLE


@pytest.mark.parametrize("is_retroactive", [False, True])
def test_witnesses_of_another_images_protocol_have_its_requirements_names(is_retroactive):
    """Only functions: associated types have witnesses, too."""
    metadata = game()
    metadata.add_resilient_conformance(
        metadata.types[0],
        "_$sSQMp",
        {"_$sSQ2eeoiySbx_xtFZTq": code(20), "_$sSTTL": code(21)},
        is_retroactive=is_retroactive,
    )
    named = names(metadata.image(metadata.sections()))
    assert named[20] == (
        "protocol witness for static Swift.Equatable.== infix(A, A) -> Swift.Bool"
        " in conformance Game.Board : Swift.Equatable"
    )
    assert 21 not in named


def test_witnesses_of_own_protocols_are_numbered():
    """Only functions of the program itself, by their index in the protocol."""
    metadata = game()
    protocol = metadata.protocol(
        "Playable",
        metadata.module("Game"),
        [0, 7, 1 | INSTANCE, 3 | INSTANCE, 2, 4, 1 | ASYNC_REQUIREMENT],
    )
    record = metadata.add(bytes(8))
    metadata.write_relative(record, code(36))
    witnesses = [code(30), code(31), code(32), code(33), code(34), None, record]
    metadata.add_conformance(metadata.types[1], protocol, witnesses)
    named = names(metadata.image(metadata.sections()))
    start, end = (
        "protocol witness for Game.Playable.",
        " in conformance Game.Board.Piece : Game.Playable",
    )
    assert {number: name for number, name in named.items() if number >= 30} == {
        32: start + "{method 2}" + end,
        33: start + "{getter 3}" + end,
        34: start + "{init 4}" + end,
        36: start + "{static method 6}" + end,
    }


def test_a_type_of_unknown_module_has_no_name():
    """Its contexts cycle; the others have their names."""
    metadata = game()
    odd = metadata.add_type(ContextKind.STRUCT, "Odd", metadata.types[0], code(9))
    other = metadata.add_type(ContextKind.STRUCT, "Other", odd, code(10))
    metadata.write_relative(odd + 4, other)
    found = names(metadata.image(metadata.sections()))
    assert found[9] == found[10] == ""
    assert found[0] == "type metadata accessor for Game.Board"


def test_the_symbol_map_has_the_names():
    """Each within its own function, with Swift's metadata as the source."""
    metadata = game()
    metadata.add_class("Player", metadata.module("Game"), code(10), METHODS)
    image = metadata.image(metadata.sections())
    starts = [TEXT_OFFSET + 16 * number for number in range(16)]
    table = macho_symbol_table(with_listed_functions(image, starts))
    symbol = table.find(ImageOffset(TEXT_OFFSET + 16 * 3 + 4))
    assert symbol is not None
    assert re.match(r"Game\.Player|type metadata accessor for", symbol.name)
    assert symbol.certainty is Certainty.SWIFT


def _made() -> bytes:
    metadata = game()
    module = metadata.module("Game")
    player = metadata.add_class("Player", module, code(10), METHODS, parameters=2)
    metadata.add_conformance(player, metadata.protocol("P", module, [1, 3]), [code(1), code(2)])
    metadata.add_resilient_conformance(player, "_$sSQMp", {"_$sSQ2eeoiySbx_xtFZTq": code(20)})
    return metadata.image(metadata.sections())


MADE = _made()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(DATA_OFFSET, len(MADE) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=20,
    )
)
def test_altered_metadata_gives_names_or_an_error(changes):
    """Every name is text."""
    data = bytearray(MADE)
    for at, value in changes:
        data[at] = value
    try:
        found = names(bytes(data))
    except MachtraceError:
        return
    assert all(isinstance(name, str) for name in found.values())
