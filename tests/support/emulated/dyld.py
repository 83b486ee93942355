"""The work of dyld for a program of the lab before it runs."""

from __future__ import annotations

from struct import pack, unpack

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.stubs import parse_indirect_symbols
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.arch import Arch

_BINDER = "dyld_stub_binder"
_STARTS = {Arch.X86_64: (16, 10, 1), Arch.I386: (12, 10, 1)}
"""Bytes of ``__stub_helper`` before the first helper, of each, and before the number in it."""
_ARM64_STARTS = (24, 12, 8)


def symbols_of(contents: MachOFileContents) -> dict[str, int]:
    """Stated addresses of what a program defines, by name."""
    table = parse_symbols(contents)
    return {
        table.name(row): int(table.n_value[row])
        for row in table.is_in_section.nonzero()[0].tolist()
    }


def bound_lazily(contents: MachOFileContents) -> dict[int, bytes]:
    """Lets a program that brings its own ``dyld_stub_binder`` bind its stubs when first called.

    Stubs lead to ``_provides_X`` where they are for ``_outside_X``; how, the program reads in its
    ``bindings``: pairs of a stub's pointer and its target. The linker numbers no helpers of what
    it looks up in all images, so they get the numbers of their places here.
    """
    symbols = symbols_of(contents)
    image = contents.image
    pointers = image.section("__DATA", "__la_symbol_ptr")
    helper = image.section("__TEXT", "__stub_helper")
    got = next(section for section in image.sections if section.name == "__got")
    assert pointers is not None and helper is not None  # noqa: PT018
    start, size, number = _STARTS.get(image.arch, _ARM64_STARTS)
    word = image.arch.pointer_size
    code = "Q" if word == 8 else "I"
    patches: dict[int, bytes] = {got.address: pack(f"<{code}", symbols[_BINDER])}
    targets = _targets(contents, pointers.reserved1, pointers.size // word)
    bindings = b""
    stored = contents.read_svma(pointers.address, pointers.size)
    to_helpers = unpack(f"<{len(targets)}{code}", stored)
    for index, (name, its_helper) in enumerate(zip(targets, to_helpers, strict=True)):
        bindings += pack(f"<2{code}", pointers.address + word * index, symbols[name])
        assert (its_helper - helper.address - start) % size == 0
        patches[int(its_helper) + number] = pack("<I", index)
    patches[symbols["_bindings"]] = bindings
    return patches


def _targets(contents: MachOFileContents, first: int, count: int) -> list[str]:
    """Return the targets of pointers by their indirect symbols, by the program's own convention."""
    table = parse_symbols(contents)
    rows = parse_indirect_symbols(contents)[first : first + count].tolist()
    return [table.name(row).replace("_outside_", "_provides_") for row in rows]
