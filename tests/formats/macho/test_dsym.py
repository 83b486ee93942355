"""dSYMs: a symbol table before the segments, and sections without bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from machtrace.errors import MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.header import FileType
from machtrace.formats.macho.load_commands import LC_SEGMENT_64, LC_SYMTAB
from machtrace.formats.macho.tables.symtab import parse_symbols

pytestmark = pytest.mark.peer


@pytest.fixture(scope="session")
def pair(lld: Callable[..., Path], llvm: Callable[..., str]) -> tuple[Path, Path]:
    """A library and its dSYM, by dsymutil."""
    library = lld("with_dsym.dylib", "arm64", compiler=("-g",))
    bundle = library.with_suffix(".dSYM")
    llvm("dsymutil", library, "-o", bundle)
    return library, bundle / "Contents/Resources/DWARF" / library.name


def test_the_symbols_of_a_dsym_equal_the_librarys(pair: tuple[Path, Path]):
    """Names, addresses, and which of them are code."""
    library, debug = (MachOFileContents(path.read_bytes(), str(path)) for path in pair)
    order = [command.cmd for command in debug.image.commands]
    ours, theirs = parse_symbols(debug), parse_symbols(library)

    def code(symbols: object) -> set[tuple[str, int]]:
        rows = np.flatnonzero(symbols.is_code)  # type: ignore[attr-defined]
        names = symbols.names(rows)  # type: ignore[attr-defined]
        return set(zip(names, symbols.n_value[rows].tolist(), strict=True))  # type: ignore[attr-defined]

    assert order.index(LC_SYMTAB) < order.index(LC_SEGMENT_64)
    assert debug.image.header.filetype is FileType.DSYM
    assert debug.image.uuid == library.image.uuid
    assert debug.image.header_svma == library.image.header_svma
    assert code(ours) == code(theirs)
    assert {name for name, _ in code(ours)} == {"_g", "_also_g", "_helper"}


def test_a_dsym_has_no_instructions(pair: tuple[Path, Path]):
    debug = MachOFileContents(pair[1].read_bytes(), "dSYM")
    text = debug.image.section("__TEXT", "__text")
    info = debug.image.section("__DWARF", "__debug_info")
    assert text is not None
    assert info is not None

    assert text in debug.image.code_sections
    with pytest.raises(MemoryReadError):
        debug.read_svma(text.address, text.size)
    assert len(debug.read_svma(info.address, info.size)) == info.size
    assert info not in debug.image.code_sections
