"""Objective-C methods in compilers' and linkers' output, compared with its symbol table."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import MachtraceError, MemoryReadError
from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
from machtrace.formats.macho.fixups.pointers import parse_pointers
from machtrace.formats.macho.load_commands import LC_ENCRYPTION_INFO_64
from machtrace.formats.macho.metadata.objc import parse_objc_methods
from machtrace.formats.macho.metadata.objc_stubs import parse_objc_stubs
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.address import Avma, Svma
from tests.support.linker32.linker import link_macho
from tests.support.writers.chained_fixups import (
    DATA_OFFSET,
    IMAGE_SVMA,
    PAGE_SIZE,
    TEXT_OFFSET,
)
from tests.support.writers.metadata import ListKind, ObjcMetadata

Compile = Callable[..., Path]
Llvm = Callable[..., str]

SHAPES = """
__attribute__((objc_root_class)) @interface Shape { int side; }
+ (int)count; - (int)area; - (void)setWidth:(int)w height:(int)h; @end
@interface Square : Shape
- (int)area; - (int)hash:(int)x; + (int)load; @end
@interface Shape (Drawing) - (void)draw; + (int)drawn; @end
int counted;
@implementation Shape
+ (int)count { return counted; }
- (int)area { return side * counted; }
- (void)setWidth:(int)w height:(int)h { side = w * h; }
@end
@implementation Square
- (int)area { [self draw]; return [super area] + 7 + [self hash:3]; }
+ (int)load { return 3 * counted; }
- (int)hash:(int)x { return x * counted + 11; }
@end
@implementation Shape (Drawing)
- (void)draw { counted++; }
+ (int)drawn { return counted + 23; }
@end
"""
IMPORTED = """
@interface NSString @end
@interface NSString (Extra) - (int)extraLength; + (int)extraCount; @end
@implementation NSString (Extra)
- (int)extraLength { return counted * 17; }
+ (int)extraCount { return counted * 19; }
@end
"""
ALONE = """
int objc_msgSend(void *self, ...) { return 0; }
int objc_msgSendSuper2(void *self, ...) { return 0; }
int _objc_empty_cache;
int main(void) { return counted; }
"""
SENDS = """
.globl _caller
_caller:
    bl _objc_msgSend$draw
    bl "_objc_msgSend$setWidth:height:"
    ret
"""
LLD = ("-platform_version", "macos", "13.0", "14.2", "-dylib", "-undefined", "dynamic_lookup")


@pytest.fixture(scope="module")
def shapes(zig: Compile) -> Callable[..., Path]:
    """The classes as an object file."""

    def compiled(target: str, more: str = IMPORTED, *options: str) -> Path:
        name = f"shapes-{target}{len(more)}{''.join(options)}.o"
        return zig(name, SHAPES + more, target, "-c", "-w", "-x", "objective-c", *options)

    return compiled


def named(contents: MachOFileContents, **arguments: int) -> dict[int, set[str]]:
    """Return the names of the methods at each address in metadata."""
    methods = parse_objc_methods(contents, parse_pointers(contents), **arguments)
    actual: dict[int, set[str]] = {}
    for row, at in enumerate(methods.rows.implementations.tolist()):
        owner = methods.owner(row)
        sign = "+" if methods.is_class_method[row] else "-"
        category = "" if owner.category is None else f"({owner.category})"
        name = f"{sign}[{owner.class_name}{category} {methods.selector(row)}]"
        actual.setdefault(at & ~1, set()).add(name)
    return actual


def in_symbol_table(contents: MachOFileContents) -> dict[int, set[str]]:
    """Return the names of the methods at each address in the symbol table."""
    symbols = parse_symbols(contents)
    actual: dict[int, set[str]] = {}
    for row in np.flatnonzero(symbols.is_code).tolist():
        if re.match(r"[-+]\[", symbols.name(row)):
            actual.setdefault(int(symbols.n_value[row]), set()).add(symbols.name(row))
    return actual


LINKS = {
    "relative lists, chained": ("arm64", "-objc_relative_method_lists"),
    "absolute lists, chained": ("arm64", "-no_objc_relative_method_lists"),
    "absolute lists, opcodes": ("arm64", "-no_fixup_chains", "-no_objc_relative_method_lists"),
    "relative lists, opcodes": ("arm64", "-no_fixup_chains", "-objc_relative_method_lists"),
    "x86_64, opcodes": ("x86_64", "-no_fixup_chains"),
    "x86_64, chained": ("x86_64", "-fixup_chains"),
}


@pytest.mark.peer
@pytest.mark.parametrize("options", LINKS.values(), ids=LINKS)
def test_methods_equal_those_of_the_symbol_table(shapes, llvm, tmp_path, options):
    arch, *rest = options
    library = tmp_path / "shapes.dylib"
    unit = shapes(f"{arch}-apple-macos13.0")
    llvm("ld64.lld", "-arch", arch, *LLD, *rest, "-o", library, unit)
    contents = MachOFileContents(library.read_bytes(), "shapes")
    assert in_symbol_table(contents) == named(contents)
    assert len(named(contents)) == 10


@pytest.mark.peer
def test_methods_of_a_lazily_bound_image_are_read(zig, shapes):
    """Zig's linker binds lazily."""
    target = "x86_64-macos.13.0"
    unit = shapes("x86_64-apple-macos13.0")
    library = zig("libshapes.dylib", "", target, "-shared", str(unit))
    contents = MachOFileContents(library.read_bytes(), "shapes")
    assert in_symbol_table(contents) == named(contents)
    assert len(named(contents)) == 10


@pytest.mark.peer
@pytest.mark.parametrize("options", [(), ("-mthumb",)])
def test_32_bit_methods_equal_those_of_the_symbol_table(shapes, options):
    unit = shapes("armv7-apple-ios9.0", ALONE, *options)
    contents = MachOFileContents(link_macho([unit.read_bytes()]), "shapes")
    assert in_symbol_table(contents) == named(contents)
    assert len(named(contents)) == 8


@pytest.mark.peer
@pytest.mark.parametrize("size", ["-objc_stubs_fast", "-objc_stubs_small"])
def test_stubs_of_messages_are_named_as_the_linker_does(zig, shapes, llvm, tmp_path, size):
    """Both kinds: 32 bytes, and 12."""
    library = tmp_path / "stubs.dylib"
    sends = zig("sends.o", SENDS, "arm64-apple-macos13.0", "-c", "-x", "assembler")
    unit = shapes("arm64-apple-macos13.0")
    llvm("ld64.lld", "-arch", "arm64", *LLD, size, "-o", library, unit, sends)
    contents = MachOFileContents(library.read_bytes(), "stubs")
    stubs = parse_objc_stubs(contents, parse_pointers(contents))
    symbols = parse_symbols(contents)
    expected = {
        int(symbols.n_value[row]): symbols.name(row)
        for row in np.flatnonzero(symbols.is_code).tolist()
        if symbols.name(row).startswith("_objc_msgSend$")
    }
    assert len(expected) == 2
    assert {
        at: f"_objc_msgSend${stubs.selector(row)}"
        for row, at in enumerate(stubs.addresses.tolist())
    } == expected
    assert set(stubs.sizes.tolist()) == {32 if size.endswith("fast") else 12}


def code(number: int) -> int:
    """Return the address of a function."""
    return IMAGE_SVMA + TEXT_OFFSET + 16 * number


def made(kind: ListKind, *, selector_base: int = 0) -> ObjcMetadata:
    """Write a class with methods, and categories of it and of another image's class."""
    metadata = ObjcMetadata(selector_base=selector_base)
    methods = metadata.methods(kind, {"first": code(0), "second:": code(1)})
    shape = metadata.add_class("Shape", methods, metadata.methods(kind, {"make": code(2)}))
    metadata.add_category("Own", shape, metadata.methods(kind, {"third": code(3)}), None)
    metadata.add_category(
        "Far", "_OBJC_CLASS_$_NSString", None, metadata.methods(kind, {"fourth": code(4)})
    )
    return metadata


EXPECTED = {
    code(0): {"-[Shape first]"},
    code(1): {"-[Shape second:]"},
    code(2): {"+[Shape make]"},
    code(3): {"-[Shape(Own) third]"},
    code(4): {"+[NSString(Far) fourth]"},
}


def image(metadata: ObjcMetadata, categories: str = "__objc_catlist") -> bytes:
    """Build the metadata in an image of arm64e, with every pointer signed."""
    return metadata.image(metadata.sections(categories))


@pytest.mark.parametrize("kind", [ListKind.ABSOLUTE, ListKind.RELATIVE])
@pytest.mark.parametrize("categories", ["__objc_catlist", "__objc_catlist2"])
def test_signed_pointers_of_arm64e_are_followed(kind, categories):
    """In lists of both kinds, and in the list of categories of Swift's stubs of classes."""
    contents = MachOFileContents(image(made(kind), categories=categories), "made")
    assert named(contents) == EXPECTED


@pytest.mark.parametrize("kind", [ListKind.DIRECT, ListKind.DIRECT_WITH_TYPES])
def test_selectors_of_a_shared_cache_are_relative_to_its_base(kind):
    """Without the base such methods have no name."""
    base = IMAGE_SVMA + DATA_OFFSET + 0x40
    contents = MachOFileContents(image(made(kind, selector_base=base)), "made")
    assert named(contents, selector_base=base) == EXPECTED
    assert named(contents) == {}


def test_lists_of_lists_are_read():
    """A shared cache has them for classes to which other images add methods."""
    metadata = ObjcMetadata()
    lists = [
        metadata.methods(ListKind.RELATIVE, {"added": code(7)}),
        metadata.methods(ListKind.ABSOLUTE, {"first": code(0)}),
    ]
    metadata.add_class("Shape", metadata.list_of_lists(*lists), None)
    contents = MachOFileContents(image(metadata), "made")
    assert named(contents) == {code(7): {"-[Shape added]"}, code(0): {"-[Shape first]"}}


@pytest.mark.peer
def test_object_files_name_no_methods(shapes):
    """Their pointers are addends of relocations, and lead nowhere."""
    unit = shapes("x86_64-apple-macos13.0")
    assert named(MachOFileContents(unit.read_bytes(), "shapes.o")) == {}


def test_encrypted_metadata_names_no_methods():
    """In an application from the store, names and lists of methods may be encrypted in the file."""
    data = bytearray(image(made(ListKind.RELATIVE)))
    at = struct.unpack_from("<I", data, 20)[0] + 32
    command = struct.pack("<6I", LC_ENCRYPTION_INFO_64, 24, DATA_OFFSET, PAGE_SIZE, 1, 0)
    data[at : at + len(command)] = command
    struct.pack_into("<2I", data, 16, struct.unpack_from("<I", data, 16)[0] + 1, at - 32 + 24)
    assert named(MachOFileContents(bytes(data), "made")) == {}
    struct.pack_into("<I", data, at + 16, 0)  # no longer marked encrypted
    assert named(MachOFileContents(bytes(data), "made")) == EXPECTED


class Memory:
    """Parts of an address space."""

    def __init__(self, parts: dict[int, bytes]) -> None:
        self.parts = parts

    def read(self, address: Avma, size: int) -> bytes:
        """Read bytes of one part."""
        for start, data in self.parts.items():
            if start <= address and address + size <= start + len(data):
                return data[address - start : address - start + size]
        raise MemoryReadError(address, size)


SLIDE = 0x2A4000
HEAP = 0x600000000000
SIGNATURE = 0x7F << 48


def test_classes_realised_by_the_runtime_are_read():
    """Slid and signed pointers; a class's data on the heap, itself or with an extension."""
    metadata = made(ListKind.RELATIVE)
    data = bytearray(image(metadata))
    for place, target in metadata.pointers.items():
        slid = target + SLIDE | (SIGNATURE if place % 16 else 0)
        struct.pack_into("<Q", data, DATA_OFFSET + place, slid)
    shape = metadata.classes[0] - IMAGE_SVMA
    metaclass = metadata.pointers[shape - DATA_OFFSET] - IMAGE_SVMA
    heap = bytearray(PAGE_SIZE)
    for number, at in enumerate((shape, metaclass)):
        read_only = struct.unpack_from("<Q", data, at + 32)[0] & ~7
        writable = HEAP + 0x100 * number
        struct.pack_into("<Q", data, at + 32, writable | 2 | SIGNATURE)
        struct.pack_into("<I", heap, 0x100 * number, 1 << 31)
        if number:  # with an extension, which has the rest
            struct.pack_into("<Q", heap, 0x100 * number + 8, HEAP + 0x800 | 1)
            struct.pack_into("<Q", heap, 0x800, read_only)
        else:
            struct.pack_into("<Q", heap, 8, read_only)
    memory = Memory({IMAGE_SVMA + SLIDE: bytes(data), HEAP: bytes(heap)})
    contents = MachOMemoryContents(memory, Avma(IMAGE_SVMA + SLIDE), "loaded")
    expected = {at: names for at, names in EXPECTED.items() if at != code(4)}
    assert named(contents) == expected  # whose class is not in this memory


def test_an_invalid_class_does_not_affect_the_others():
    """Its data pointer is invalid."""
    metadata = made(ListKind.RELATIVE)
    odd = metadata.add_class("Odd", metadata.methods(ListKind.RELATIVE, {"x": code(9)}), None)
    metadata.pointers[odd - IMAGE_SVMA - DATA_OFFSET + 32] = IMAGE_SVMA + 0x7FFFFFF0
    assert named(MachOFileContents(image(metadata), "made")) == EXPECTED


def test_lists_beyond_the_image_are_skipped():
    """However many classes have them, the bytes read are bounded by the image's size."""
    metadata = ObjcMetadata()
    huge = metadata.add(struct.pack("<2I", 0x80000000 | 12, 0x0FFFFFFF))
    whole = metadata.add(struct.pack("<2I", 0x80000000 | 12, 1000))
    for number in range(100):
        metadata.add_class(f"Class{number}", huge if number % 2 else whole, None)
    contents = MachOFileContents(image(metadata), "made")
    methods = parse_objc_methods(contents, parse_pointers(contents))
    assert len(methods) <= len(contents.data) // 12


MADE = image(made(ListKind.ABSOLUTE))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(DATA_OFFSET, len(MADE) - 1), st.integers(0, 255)),
        min_size=1,
        max_size=20,
    )
)
def test_altered_metadata_gives_names_or_an_error(changes):
    """Every name is text, at an address in the image."""
    data = bytearray(MADE)
    for at, value in changes:
        data[at] = value
    contents = MachOFileContents(bytes(data), "altered")
    try:
        found = named(contents)
    except MachtraceError:
        return
    assert all(isinstance(name, str) for names in found.values() for name in names)


@pytest.mark.peer
def test_an_image_without_metadata_has_no_methods(lld_arm64):
    contents = MachOFileContents(lld_arm64.read_bytes(), "lld")
    pointers = parse_pointers(contents)
    assert len(parse_objc_methods(contents, pointers)) == 0
    assert len(parse_objc_stubs(contents, pointers)) == 0


@pytest.mark.peer
def test_pointers_have_the_addresses_of_their_words(lld_x86_64, llvm):
    listed = "".join(
        llvm("llvm-objdump", "--macho", option, lld_x86_64) for option in ("--bind", "--lazy-bind")
    )
    rows = re.findall(r"^__\S+\s+__\S+\s+(0x\w+)\s.*?(\S+)$", listed, re.MULTILINE)
    found = parse_pointers(MachOFileContents(lld_x86_64.read_bytes(), "lld"))
    assert rows
    assert {(int(at, 16), name) for at, name in rows} == {
        (at, found.symbol(Svma(at))) for at in found.binds.places.tolist()
    }
