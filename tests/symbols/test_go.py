"""Go's functions and lines from the pclntab of stripped programs, in all releases' layouts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.gopclntab import GoFunctions
from machtrace.model.address import Svma
from machtrace.model.symbol import Certainty
from machtrace.symbols.go import elf_go_names, go_names
from tests.support.writers.pclntab import MAGICS, BuiltFunction, go_pclntab

TEXT = 0x100001000
FUNCTIONS = [
    BuiltFunction("runtime.text", 0x20, "runtime/asm.s", ((7, 0),)),
    BuiltFunction("main.main", 0x40, "/src/main.go", ((10, 0), (12, 0x10), (11, 0x30))),
    BuiltFunction("main.(*Shape[...]).Area", 0x10, "/src/shape.go", ((300, 0),)),
]
LAYOUTS = [(release, size) for release in MAGICS for size in (8, 4)]


def table(release: int, size: int = 8, *, little_endian: bool = True) -> bytes:
    """Build a table of all of FUNCTIONS; 32-bit programs have lower addresses."""
    text = TEXT if size == 8 else TEXT & 0xFFFFFFF
    return go_pclntab(
        FUNCTIONS, release=release, text_start=text, pointer_size=size, little_endian=little_endian
    )


@pytest.mark.parametrize("little_endian", [True, False])
@pytest.mark.parametrize(("release", "size"), LAYOUTS)
def test_functions_are_named_with_their_bounds(release, size, little_endian):
    """Each begins where the previous one ends, from the start of the text."""
    text = TEXT if size == 8 else TEXT & 0xFFFFFFF
    data = memoryview(table(release, size, little_endian=little_endian))
    functions = GoFunctions(data, "table", text_start=text)

    assert [function.name for function in FUNCTIONS] == [functions.name(row) for row in range(3)]
    assert [text, text + 0x20, text + 0x60] == functions.starts.tolist()
    assert [text + 0x20, text + 0x60, text + 0x70] == functions.ends.tolist()


@pytest.mark.parametrize(("release", "size"), LAYOUTS)
def test_every_instruction_has_its_line(release, size):
    """The line holds until the next one begins; files are distinct."""
    text = TEXT if size == 8 else TEXT & 0xFFFFFFF
    functions = GoFunctions(memoryview(table(release, size)), "table", text_start=text)
    main = text + 0x20

    lines = [functions.location(1, main + offset) for offset in (0, 0xC, 0x10, 0x2C, 0x30, 0x3C)]
    assert [("/src/main.go", line) for line in (10, 10, 12, 12, 11, 11)] == lines
    assert functions.location(2, text + 0x60) == ("/src/shape.go", 300)
    assert functions.location(1, main + 0x40) is None


def contents(data: bytes, *, module: bytes = b"") -> SimpleNamespace:
    """The parts of an image that are searched for the table."""
    sections = [
        section("__text", TEXT, 0x1000),
        section("__gopclntab", 0x100100000, len(data)),
        *([section("__go_module", 0x100200000, len(module))] if module else []),
    ]
    blocks = {0x100100000: data, 0x100200000: module}

    def read(address: int, size: int) -> memoryview:
        for start, block in blocks.items():
            if start <= address and address + size <= start + len(block):
                return memoryview(block)[address - start : address - start + size]
        raise MemoryReadError(address, size)

    image = SimpleNamespace(
        sections=sections,
        header=SimpleNamespace(is_64=True),
        header_svma=Svma(0x100000000),
        section_at=lambda at: next((one for one in sections if at in one), None),
    )
    return SimpleNamespace(image=image, source="image", read_svma=read)


class section:  # noqa: N801 (a value, not a kind of things)
    """A section by its name and address."""

    def __init__(self, name: str, address: int, size: int) -> None:
        self.name, self.address, self.size = name, address, size

    def __contains__(self, address: int) -> bool:
        return self.address <= address < self.address + self.size


def no_pointers():
    """Fail: called only if fixups hide a pointer."""
    pytest.fail("the pointers of the whole image were read")


@pytest.mark.parametrize("release", MAGICS)
def test_functions_are_relative_to_the_text_section_by_default(release):
    """Go 1.26's table does not state where code begins."""
    names = go_names(contents(table(release)), no_pointers)

    assert names.starts.tolist() == [0x1000, 0x1020, 0x1060]
    assert names.sizes.tolist() == [0x20, 0x40, 0x10]
    assert names.linkage_name(1) == "main.main"
    assert Certainty.PCLNTAB is names.certainty


def test_module_data_states_where_code_begins():
    """In a program with C Go's code is not the section's first."""
    module = bytearray(0x250)
    module[22 * 8 : 23 * 8] = (TEXT + 0x400).to_bytes(8, "little")
    plain = contents(table(26), module=bytes(module))
    assert int(go_names(plain, no_pointers).starts[0]) == 0x1400

    hidden = contents(table(26), module=b"\xff" * 0x250)
    pointers = SimpleNamespace(target=lambda _: Svma(TEXT + 0x800))
    assert int(go_names(hidden, lambda: pointers).starts[0]) == 0x1800


def test_other_programs_have_no_go_names():
    nothing = contents(b"")

    assert len(go_names(nothing, no_pointers).starts) == 0


def elf_program(data, *, name=".gopclntab", text_size=0x1000):
    """Return the contents of an ELF program with a table."""
    sections = [section(".text", TEXT, text_size), section(name, 0x100100000, len(data))]
    image = SimpleNamespace(sections=sections, header_svma=Svma(0x100000000))
    return SimpleNamespace(
        image=image, source="image", read_svma=lambda _, size: memoryview(data)[:size]
    )


@pytest.mark.parametrize(("release", "count"), [(20, 3), (26, 0)])
def test_code_that_begins_nowhere_known_has_no_names(release, count):
    """Libraries of C and Go have Go's code behind C's; Go 1.26's table does not state where."""
    names = elf_go_names(elf_program(table(release), text_size=0x10000))
    assert len(names.starts) == count


def test_the_table_of_an_elf_program_is_found():
    """Position-independent programs have it among relocated data."""
    for name in (".gopclntab", ".data.rel.ro.gopclntab"):
        names = elf_go_names(elf_program(table(26), name=name))

        assert names.starts.tolist() == [0x1000, 0x1020, 0x1060]
        assert names.linkage_name(1) == "main.main"


@pytest.mark.parametrize("release", MAGICS)
def test_a_count_beyond_the_section_is_an_error(release):
    """Nothing is allocated before the check."""
    data = bytearray(table(release))
    data[8:16] = (1 << 60).to_bytes(8, "little")

    with pytest.raises(FormatError, match="do not fit"):
        GoFunctions(memoryview(data), "table", text_start=TEXT)


@pytest.mark.parametrize(
    "data", [b"", b"\xfb\xff", b"\xfb\xff\xff\xff" + bytes(4), b"\xf1\xff\xff\xff\0\0\4\x08"]
)
def test_a_short_table_or_another_magic_is_an_error(data):
    with pytest.raises(FormatError):
        GoFunctions(memoryview(data), "table", text_start=TEXT)


@given(st.sampled_from(LAYOUTS), st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255))))
def test_damaged_tables_give_names_or_a_format_error(layout, changes):
    """Each name and line is looked up."""
    data = bytearray(table(*layout))
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        functions = GoFunctions(memoryview(data), "table", text_start=TEXT)
    except FormatError:
        return
    for row in range(len(functions)):
        functions.name(row)
        functions.location(row, int(functions.starts[row]))
