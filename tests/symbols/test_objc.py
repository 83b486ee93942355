"""Names of Objective-C methods in the symbol map of a stripped image."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.function_starts import parse_function_starts
from machtrace.model.address import ImageOffset
from machtrace.model.arch import Arch
from machtrace.model.symbol import Certainty, Symbol
from machtrace.symbols.macho.table import macho_symbol_table
from machtrace.symbols.objc import class_name
from tests.support.compilers.executables import compile_macho
from tests.support.writers.chained_fixups import IMAGE_SVMA, TEXT_OFFSET
from tests.support.writers.function_lists import with_listed_functions
from tests.support.writers.metadata import ListKind, ObjcMetadata

PROGRAM = """
__attribute__((objc_root_class)) @interface Shape { int side; }
+ (int)count; - (int)area; - (void)setWidth:(int)w height:(int)h; @end
@interface Shape (Drawing) - (void)draw; + (int)drawn; @end
int counted;
@implementation Shape
+ (int)count { return counted; }
- (int)area { return side * counted; }
- (void)setWidth:(int)w height:(int)h { side = w * h; }
@end
@implementation Shape (Drawing)
- (void)draw { counted++; }
+ (int)drawn { return counted + 23; }
@end
void *_objc_empty_cache;
int objc_msgSend(void *self, ...) { return 0; }
int main(void) { return [Shape count] + [Shape drawn]; }
"""


@pytest.fixture(scope="module", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def twins(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A program with its symbols, and stripped."""
    strip = shutil.which("llvm-strip-19") or shutil.which("llvm-strip")
    if strip is None or find_spec("ziglang") is None:
        pytest.skip("llvm-strip or ziglang is not installed; they make the two programs")
    folder = tmp_path_factory.mktemp("twins")
    source = folder / "shapes.m"
    source.write_text(PROGRAM)
    whole = compile_macho([source], folder / "shapes", arch=request.param, options=("-O1",))
    stripped = folder / "stripped"
    subprocess.run([strip, "-x", "-S", whole, "-o", stripped], check=True, timeout=60)
    return whole, stripped


def symbols(contents: MachOFileContents, offsets: list[int]) -> dict[int, Symbol | None]:
    """Return the symbols at the offsets."""
    table = macho_symbol_table(contents)
    return {offset: table.find(ImageOffset(offset)) for offset in offsets}


@pytest.mark.peer
def test_stripped_methods_have_their_names(twins):
    """With the same extent, and Objective-C metadata as their source."""
    whole, stripped = twins
    named = MachOFileContents(whole.read_bytes(), "whole")
    starts = parse_function_starts(named).offsets.tolist()
    if not starts:  # zig's linker omits them on request
        starts = [int(start) for start in macho_symbol_table(named).starts]
    without = with_listed_functions(stripped.read_bytes(), starts)
    before, after = symbols(named, starts), symbols(without, starts)
    methods = {at: item for at, item in before.items() if item and item.name[:2] in ("-[", "+[")}
    assert len(methods) == 5
    for at, method in methods.items():
        stripped_method = after[at]
        assert stripped_method is not None
        assert (method.name, method.offset, method.size) == (
            stripped_method.name,
            stripped_method.offset,
            stripped_method.size,
        )
        assert stripped_method.linkage_name == stripped_method.name
        assert stripped_method.certainty in (Certainty.OBJC, Certainty.EXACT)
    certainties = {item.certainty for at, item in after.items() if at in methods and item}
    assert Certainty.OBJC in certainties


def test_folded_methods_have_all_names():
    """A linker that folds equal functions leaves one for several methods."""
    metadata = ObjcMetadata()
    code = IMAGE_SVMA + TEXT_OFFSET
    for name in ("First", "_TtC4Game6Player"):
        metadata.add_class(name, metadata.methods(ListKind.RELATIVE, {"run": code}), None)
    made = with_listed_functions(metadata.image(metadata.sections()), [TEXT_OFFSET])
    found = macho_symbol_table(made).find(ImageOffset(TEXT_OFFSET + 4))
    assert found is not None
    assert found.certainty is Certainty.OBJC
    assert {"-[First run]", "-[Game.Player run]"} == {found.name, *found.aliases}


def test_pointers_that_cannot_be_followed_are_reported():
    """Metadata names nothing then; the table has the reason."""
    metadata = ObjcMetadata()
    code = IMAGE_SVMA + TEXT_OFFSET
    metadata.add_class("First", metadata.methods(ListKind.RELATIVE, {"run": code}), None)
    data = bytearray(metadata.image(metadata.sections()))
    fixups = MachOFileContents(bytes(data), "made").image.chained_fixups
    assert fixups is not None
    data[fixups.offset + 4 : fixups.offset + 8] = b"\xff" * 4  # where the starts of chains are
    table = macho_symbol_table(MachOFileContents(bytes(data), "made"))

    assert table.find(ImageOffset(TEXT_OFFSET + 4)) is None
    (problem,) = table.problems
    assert isinstance(problem, MachOError)
    assert "fixups" in str(problem)


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("NSString", "NSString"),
        ("_TtC4Game6Player", "Game.Player"),
        ("_TtCC4Game6Player5Piece", "Game.Player.Piece"),
        ("_TtCs5Thing", "Swift.Thing"),
        ("_TtC4Game", "_TtC4Game"),
        ("_TtC4Game99Player", "_TtC4Game99Player"),
        ("_TtC4Game6Player5Piece", "_TtC4Game6Player5Piece"),
        ("_TtC4GameP33_0123456789ABCDEF0123456789ABCDEF6Player",) * 2,
        ("_TtGC4Game6PlayerSi_", "_TtGC4Game6PlayerSi_"),
    ],
)
def test_swift_classes_have_the_runtimes_names(mangled, name):
    """Names that consist of identifiers; others stay as they are."""
    assert class_name(mangled) == name
