"""C++ virtual methods by vtables; each name is compared with the symbol removed by stripping."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from machtrace.demangler import demangle
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.symbol import Certainty
from machtrace.symbols.rtti import rtti_names

SOURCE = Path(__file__).with_name("classes.cpp")
OPTIONS = ("-std=c++20", "-O1", "-shared", "-nostdlib", "-nostdlib++", "-fno-exceptions", "-w")
LINKING = ("-fno-sanitize=undefined", "-Wl,-undefined,dynamic_lookup")
EXPECTED = {
    # Destructors are two: the complete one, and the one that frees the object.
    ("Shape::~Shape()", "Shape::{virtual method 0}"),
    ("Shape::~Shape()", "Shape::{virtual method 1}"),
    ("Shape::area()", "Shape::{virtual method 2}"),
    ("Named::name()", "Named::{virtual method 2}"),
    ("Square::~Square()", "Square::{virtual method 0}"),
    ("Square::~Square()", "Square::{virtual method 1}"),
    ("Square::sides()", "Square::{virtual method 3}"),
    ("Square::extra()", "Square::{virtual method 4}"),
    # Label begins as a Square; Named, its second base, has a vtable of its own with thunks.
    ("Label::area()", "Label::{virtual method 2}"),
    ("Label::name()", "Label::{virtual method 5}"),
    ("non-virtual thunk to Label::name()", "Label::{virtual method 2 as Named}"),
    # The only virtual base has one possible offset.
    ("Lazy::sides()", "Lazy::{virtual method 2}"),
    ("virtual thunk to Lazy::sides()", "Lazy::{virtual method 3 as Shape}"),
    ("(anonymous namespace)::Hidden::extra()", "(anonymous namespace)::Hidden::{virtual method 4}"),
    ("Box<int>::take(int)", "Box<int>::{virtual method 0}"),
    ("Box<long>::put()", "Box<long>::{virtual method 1}"),
    # Common has no vtable here, but the methods that First and Second share are Common's.
    ("Common::query()", "Common::{virtual method 1}"),
}
UNNAMED = {
    # Guard has no vtable here: nothing shows which methods Fake has from it.
    *("Fake::begin()", "Guard::query()", "First::begin()"),
    # Oval begins as an Empty, too, which has no virtual methods; the image does not show that.
    "Oval::sides()",
}
"""Functions that may be inherited from a base without a vtable."""


@pytest.fixture(scope="module", params=["aarch64", "x86_64"])
def library(request, tmp_path_factory) -> MachOFileContents:
    """Compile classes.cpp as a library of one architecture, with its symbols."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the library that is read here")
    path = tmp_path_factory.mktemp("rtti") / "classes.dylib"
    target = ("-target", f"{request.param}-macos")
    command = [sys.executable, "-m", "ziglang", "c++", *target, *OPTIONS, *LINKING]
    subprocess.run([*command, SOURCE, "-o", path], check=True, timeout=240)
    return MachOFileContents(path.read_bytes(), "classes.dylib")


def functions(contents: MachOFileContents) -> dict[int, str]:
    """Return the demangled symbol at each function's start, by image offset."""
    symbols = parse_symbols(contents)
    base = contents.image.header_svma
    rows = np.flatnonzero(symbols.is_code).tolist()
    return {int(symbols.n_value[row]) - base: demangle(symbols.name(row)) for row in rows}


@pytest.mark.peer
def test_virtual_methods_are_named_after_the_class_that_defines_them(library):
    """Pairs of (symbol, name): inherited methods have the base's name."""
    truth = functions(library)
    starts = np.array(sorted(truth), np.uint64)
    names = rtti_names(library, lambda: parse_pointers(library), starts, parse_symbols(library))

    named = {(truth[int(at)], names.linkage_name(row)) for row, at in enumerate(names.starts)}
    assert named >= EXPECTED
    assert Certainty.RTTI is names.certainty
    for symbol, name in named:
        owner = name.partition("::{virtual method")[0]
        assert f"{owner}::" in symbol
    assert not UNNAMED & {symbol for symbol, _ in named}
    assert set(truth.values()) >= UNNAMED


@pytest.mark.peer
def test_only_functions_without_other_names_are_named(library):
    truth = functions(library)
    starts = np.array(sorted(truth), np.uint64)
    wanted = np.array([at for at in sorted(truth) if truth[at] == "Square::extra()"], np.uint64)
    names = rtti_names(
        library, lambda: parse_pointers(library), starts, parse_symbols(library), wanted
    )

    assert wanted.tolist() == names.starts.tolist()
    assert names.linkage_name(0) == "Square::{virtual method 4}"


@pytest.mark.peer
def test_without_function_starts_no_method_is_named(library):
    """A pointer in a vtable that leads to no function's start is not a method."""
    starts = np.array([4], np.uint64)

    assert len(rtti_names(library, lambda: parse_pointers(library), starts).starts) == 0


def test_names_by_vtable_are_not_valid_cplusplus():
    """Demangling leaves them unchanged, so they cannot be taken for names from a symbol table."""
    name = "Square::{virtual method 4}"

    assert name == demangle(name) == demangle(name, simplified=True)


@pytest.mark.peer
def test_damaged_libraries_give_names_or_none(library):
    """A few bytes of the vtables and type information are changed at a time."""
    data = bytearray(library.data)
    starts = np.array(sorted(functions(library)), np.uint64)
    places = [item for item in library.image.sections if item.name in {"__const", "__data"}]
    random = np.random.default_rng(4)
    for _ in range(60):
        changed = bytearray(data)
        for section in places:
            for at in random.integers(0, max(1, section.size), 6).tolist():
                changed[section.offset + at] = int(random.integers(256))
        contents = MachOFileContents(bytes(changed), "damaged")
        names = rtti_names(
            contents, lambda item=contents: parse_pointers(item), starts, parse_symbols(contents)
        )
        assert all(isinstance(names.linkage_name(row), str) for row in range(len(names.starts)))
