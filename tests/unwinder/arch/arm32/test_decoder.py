"""ARM and Thumb instructions: random ones as capstone decodes them, and compiled code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import MachtraceError
from machtrace.model.arch import ARM_DOUBLES, Arch
from machtrace.unwinder.arch.arm32 import arm, thumb
from machtrace.unwinder.arch.arm32.function_code import Code, conditions_of
from machtrace.unwinder.arch.arm32.registers import Decoded, expanded
from machtrace.unwinder.code.effects import (
    AddConstant,
    AddRegister,
    Call,
    Effect,
    IndirectJump,
    InsertConstant,
    Jump,
    Load,
    MoveRegister,
    Return,
    SetConstant,
    Store,
    Trap,
    Writes,
)
from tests.support.compilers.executables import compile_elf

capstone = pytest.importorskip("capstone", reason="capstone, the other decoder, is not installed")

PROGRAMS = Path(__file__).parents[3] / "formats" / "dwarf" / "programs"
START = 0x1000
COUNT = 6000
LR, PC = 14, 15
NAMES = {name: {n} for n, name in enumerate(Arch.ARMV7.registers.names) if name != "pc"}
NAMES |= {"sb": {9}, "sl": {10}, "fp": {11}, "ip": {12}}
NAMES |= {f"s{n}": {ARM_DOUBLES[n // 2]} for n in range(32)}
NAMES |= {f"q{n}": {ARM_DOUBLES[2 * n], ARM_DOUBLES[2 * n + 1]} for n in range(16)}
VECTORS = set(ARM_DOUBLES)
TRANSFERS = ("ld", "st", "vld", "vst", "vpop", "vpush", "pop", "push")
"""Instructions whose write to the base register capstone does not always report."""
UNKNOWN = (
    *("mrc", "mrrc", "mcr", "svc", "ldc", "stc", "cdp", "bxns", "blxns", "smc"),
    *("vldm", "vstm", "vpop", "vpush", "fld", "fst", "strt", "strbt", "strht"),
)
"""Instructions of which it knows less than the manual."""
LATER = ("f16", "tt", "dot", "vmmla", "vcmla", "vcadd")
"""Instructions of ARMv8."""


def decoder(*, is_thumb: bool) -> Any:
    """Build capstone's decoder."""
    mode = capstone.CS_MODE_THUMB if is_thumb else capstone.CS_MODE_ARM
    made = capstone.Cs(capstone.CS_ARCH_ARM, mode)
    made.detail = True
    return made


def decoded(code: bytes, *, is_thumb: bool) -> Decoded:
    """Decode with machtrace."""
    if not is_thumb:
        return arm.decode(int.from_bytes(code, "little"))
    return thumb.decode(int.from_bytes(code[:2], "little"), int.from_bytes(code[2:4], "little"))


def written(effects: tuple[Effect, ...]) -> set[int]:
    """Return the written registers."""
    written: set[int] = set()
    for effect in effects:
        match effect:
            case Writes(registers):
                written |= set(registers)
            case AddConstant() | AddRegister() | MoveRegister() | SetConstant() | InsertConstant():
                written.add(effect.destination)
            case Load(registers):
                written |= {register for register in registers if register is not None}
            case Call():
                written.add(LR)
            case _:
                pass
        if isinstance(effect, Load | Store) and effect.write_back:
            written.add(effect.base)
    if effects and isinstance(effects[-1], Return):
        written.discard(LR)
    return written - {PC}


def named(instruction: Any, numbers: Any) -> set[int]:
    """Return capstone's registers by our numbers, without pc."""
    found: set[int] = set()
    for number in numbers:
        found |= NAMES.get(instruction.reg_name(number), set())
    return found


def disagreement(theirs: Any, ours: Decoded) -> str | None:
    """Return the differences between the two."""
    last = ours.effects[-1] if ours.effects else None
    if isinstance(last, Trap):
        return None
    if ours.size != theirs.size:
        return "length"
    read, changed = theirs.regs_access()
    registers, mine = named(theirs, changed), written(ours.effects)
    if isinstance(last, Return):
        registers.discard(LR)
    if theirs.mnemonic.startswith(TRANSFERS):
        ignored = named(theirs, read)
        registers, mine = registers - ignored, mine - ignored
    if not registers & VECTORS or theirs.mnemonic.startswith("vld"):
        # It does not report all of them, and lets lists continue from d31 to d0.
        mine -= VECTORS if not registers & VECTORS else set()
        registers -= VECTORS - mine
    if registers != mine:
        return f"registers {registers ^ mine}"
    goes = isinstance(last, Jump | IndirectJump | Return | Call)
    if goes != (is_branch(theirs) or any(theirs.reg_name(n) == "pc" for n in changed)):
        return "whether it goes elsewhere"
    if isinstance(last, Jump):
        target = (theirs.address + last.distance) & 0xFFFFFFFF
        return None if f"#{target:#x}" in theirs.op_str else f"target {target:#x}"
    return None


def is_branch(instruction: Any) -> bool:
    """Return whether the instruction only branches."""
    name = instruction.mnemonic.partition(".")[0]
    return name.startswith(("b", "cb", "tb")) and not name.startswith(("bic", "bf", "bkpt"))


def random_code(*, is_thumb: bool) -> Iterator[bytes]:
    """Return random words; in Thumb most of them of two halfwords."""
    numbers = random.Random(20)  # noqa: S311 (not for secrets)
    for _ in range(COUNT):
        if is_thumb:
            first = numbers.getrandbits(16)
            if numbers.random() < 0.6:
                first = numbers.randrange(0xE800, 0x10000)
            yield first.to_bytes(2, "little") + numbers.getrandbits(16).to_bytes(2, "little")
        else:
            condition = 0xF if numbers.random() < 0.2 else 0xE
            yield (condition << 28 | numbers.getrandbits(28)).to_bytes(4, "little")


@pytest.mark.parametrize("is_thumb", [False, True])
def test_random_instructions_match_capstone(*, is_thumb: bool) -> None:
    """Length, registers written, whether and where they jump."""
    reader = decoder(is_thumb=is_thumb)
    compared = 0
    for code in random_code(is_thumb=is_thumb):
        theirs = next(reader.disasm(code, START, 1), None)
        if theirs is None or theirs.mnemonic.startswith(UNKNOWN):
            continue
        if any(part in theirs.mnemonic for part in LATER):
            continue
        if "pc" in theirs.op_str and not is_branch(theirs):
            continue  # mostly what the manual calls unpredictable
        ours = decoded(code, is_thumb=is_thumb)
        found = disagreement(theirs, ours)
        assert not found, f"{found}: {code.hex()} {theirs.mnemonic} {theirs.op_str}: {ours}"
        compared += 1
    assert compared > COUNT / 3


@pytest.mark.peer
@pytest.mark.parametrize(
    ("target", "is_thumb"), [("arm-linux-musleabihf", False), ("thumb-linux-musleabihf", True)]
)
def test_compiled_code_is_followed_to_the_last_instruction(
    target: str, tmp_path: Path, *, is_thumb: bool
) -> None:
    """Following jumps reaches the instructions of capstone's linear disassembly."""
    pytest.importorskip("ziglang", reason="ziglang, the compiler, is not installed")
    from machtrace.formats.elf.contents import ElfFileContents
    from machtrace.formats.elf.symtab import parse_symbols

    options = ("-static", "-Wl,-e,begin", "-O2", "-g0")
    sources = [PROGRAMS / "frames.c", PROGRAMS / "start.c"]
    path = compile_elf(sources, tmp_path / "program", target=target, options=options)
    contents = ElfFileContents(path.read_bytes(), "program")
    symbols = parse_symbols(contents)
    reader = decoder(is_thumb=is_thumb)
    compared = 0
    for row in symbols.is_function.nonzero()[0].tolist():
        start, size = int(symbols.addresses[row]), int(symbols.sizes[row])
        if not size:
            continue
        code = bytes(contents.read_svma(start, size))
        ours = Code(code, start, is_thumb=is_thumb).decoded
        for theirs in reader.disasm(code, start):
            if theirs.address - start not in ours:
                break  # constants behind the code
            found = disagreement(theirs, ours[theirs.address - start])
            assert not found, f"{found}: {theirs.mnemonic} {theirs.op_str}"
            compared += 1
    assert compared > 100


def test_constants_are_expanded_as_in_the_manual() -> None:
    """Table A6-11 of the Architecture Reference Manual."""
    expected = {0x0AB: 0xAB, 0x1AB: 0x00AB00AB, 0x2AB: 0xAB00AB00, 0x3AB: 0xABABABAB}
    expected |= {0x42B: 0xAB000000, 0x4AB: 0x55800000, 0xFAB: 0x00000156}
    assert {number: expanded(number) for number in expected} == expected


@pytest.mark.parametrize(
    ("it", "conditions"),
    [
        (0x08, [0]),  # it eq
        (0x0C, [0, 1]),  # ite eq
        (0x04, [0, 0]),  # itt eq
        (0x18, [1]),  # it ne
        (0x14, [1, 0]),  # ite ne
        (0x1C, [1, 1]),  # itt ne
        (0xC3, [12, 12, 12, 13]),  # ittte gt
        (0xB7, [11, 10, 11, 11]),  # itett lt
    ],
)
def test_it_sets_the_conditions_of_the_next_instructions(it: int, conditions: list[int]) -> None:
    """By the mask's bits, compared with the first condition's lowest bit."""
    reader = decoder(is_thumb=True)
    text = next(reader.disasm((0xBF00 | it).to_bytes(2, "little"), START)).mnemonic
    assert len(text) - 1 == len(conditions)
    assert conditions_of(it) == conditions[::-1]


@given(st.binary(max_size=96), st.booleans())
def test_any_bytes_are_decoded_once(code: bytes, is_thumb: bool) -> None:  # noqa: FBT001
    """No two instructions share a byte, wherever jumps lead."""
    try:
        decoded = Code(code, 0x1000, is_thumb=is_thumb).decoded
    except MachtraceError:
        return
    ends = 0
    for at, instruction in sorted(decoded.items()):
        assert at >= ends
        ends = at + instruction.size
