"""Instruction analysis of ELF images, compared with the compiler's call-frame information."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import capstone
import pytest

from machtrace.formats.elf.contents import ElfFileContents
from machtrace.formats.elf.symtab import parse_dynamic_symbols
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.unwinder.rules import AtCfa, InRegister, Recovery, RegisterOffset, UnwindRule
from machtrace.unwinder.sources.cfi import CallFrameRules
from machtrace.unwinder.sources.of_image import image_rules
from tests.support.compilers.executables import compile_elf

pytestmark = pytest.mark.peer

PROGRAMS = Path(__file__).parents[2] / "lab" / "programs"
OPTIONS = ("-shared", "-fPIC", "-ffreestanding", "-fno-builtin", "-w", "-g0")
WITHOUT_FRAME_POINTER = ("-fomit-frame-pointer", "-Xclang", "-mframe-pointer=none")
TABLES = (
    ("-fasynchronous-unwind-tables",),
    ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions"),
)


def functions(contents: ElfFileContents) -> dict[str, tuple[int, int]]:
    """Return (address, size) of each function by its name."""
    symbols = parse_dynamic_symbols(contents)
    rows = symbols.is_function.nonzero()[0].tolist()
    return {
        symbols.name(row): (int(symbols.addresses[row]), int(symbols.sizes[row]))
        for row in rows
        if symbols.sizes[row]
    }


def instructions(contents: ElfFileContents, start: int, size: int) -> Iterator[int]:
    """Return the offsets of instructions in a function, by capstone."""
    if contents.image.arch is Arch.ARM64:
        yield from range(0, size, 4)
        return
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    code = bytes(contents.read_svma(Svma(start), size))
    yield from (int(instruction.address) for instruction in decoder.disasm(code, 0))


def agree(rule: UnwindRule, expected: UnwindRule, lr: int | None, saved_lr: set[Recovery]) -> bool:
    """Return whether ``rule`` leads to the same caller; a saved register may still be unchanged.

    ``saved_lr``: where the function's table has the return address, at any instruction.
    """
    unsaved = None if lr is None else InRegister(lr)
    returns_to = {expected.return_address, unsaved}
    if expected.return_address == unsaved:
        returns_to |= saved_lr
    if rule.cfa != expected.cfa or rule.return_address not in returns_to:
        return False
    said = dict(rule.registers)
    return all(
        said.get(register, saved) == saved
        for register, saved in expected.registers
        if isinstance(saved, AtCfa)
    )


@pytest.mark.parametrize("name", ["frames", "switches"])
@pytest.mark.parametrize("optimisation", ["-O1", "-O2", "-Os"])
@pytest.mark.parametrize("target", ["x86_64-linux-musl", "aarch64-linux-musl"])
def test_analysis_leads_to_the_callers_of_the_tables(
    target: str, optimisation: str, name: str, tmp_path: Path
):
    """At each instruction of the same code, analysed without its tables."""
    described, bare = (
        ElfFileContents(
            compile_elf(
                [PROGRAMS / f"{name}.c"],
                tmp_path / f"{name}{len(tables)}.so",
                target=target,
                options=(*OPTIONS, *WITHOUT_FRAME_POINTER, optimisation, *tables),
            ).read_bytes(),
            name,
        )
        for tables in TABLES
    )
    truth = CallFrameRules.of_elf(described)
    arch = bare.image.arch
    sources = image_rules(bare, arch).sources
    assert truth is not None
    places = functions(bare)
    compared = 0
    for function, (start, size) in functions(described).items():
        other = places[function][0]
        rows = {
            into: truth.rule_for(Svma(start + into), interrupted=True)
            for into in instructions(described, start, size)
        }
        saved_lr = {row.return_address for row in rows.values() if row is not None}
        for into, expected in rows.items():
            if expected is None:
                continue
            asked = (source.rule_for(Svma(other + into), interrupted=True) for source in sources)
            rule = next((rule for rule in asked if rule is not None), None)
            assert rule is not None, f"{function} + {into}"
            assert isinstance(expected.cfa, RegisterOffset)
            assert isinstance(rule.cfa, RegisterOffset)
            if rule.cfa.register == expected.cfa.register:
                compared += 1
                assert agree(rule, expected, arch.registers.lr, saved_lr), (
                    f"{function} + {into}: {rule}"
                )
    assert compared > 100
