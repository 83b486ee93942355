"""Displaced instructions of hooks: they do what they did, and refusals."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.agent import displaced
from tests.agent.displaced import CODE, Machine, build_displacer, compare, functions_of

pytestmark = [pytest.mark.peer, pytest.mark.emulated]

LIBRARIES = {
    "x86_64": [Path("/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib")],
    "arm64": [
        Path("/usr/aarch64-linux-gnu/lib"),
        Path("/lib/aarch64-linux-gnu"),
    ],
}
SYNTHETIC = {
    "x86_64": (
        "488d3d00010000 c3",  # lea rdi, [rip + 256]
        "8b0500000080 90",  # of which the target is too far
        "7405 4885c0 7403 c3 90909090",  # je over what is replaced
        "7420 90 4885c0 c3",
        "909090 eb20 c3",
        "e91b000000",
        "0f8410000000 c3",
        "55 4889e5 e800010000 5d c3",  # push; mov; call
        "f30f1efa 55 4889e5 5d c3",  # endbr64
        "f30f1efa 31c0 c3 6690",  # shorter than a jump, and padding
        "488b0510000000 c3",
        "833d1000000001 c3",  # an immediate behind the displacement
        "c6051000000007 c3",
        "66c705100000000708 c3",
        "48c7051000000007000000 c3",
        "0f1005100000 00 c3",
        "64488b042528000000 c3",  # the stack guard
        "48b80102030405060708 c3",
        "660f1f840000000000 c3",
        "490fbae40a 0f92c0 c3",
    ),
    "arm64": (
        "00080010 c0035fd6",  # adr x0, #256
        "00000090 c0035fd6",  # adrp
        "200100f0 c0035fd6",
        "40000058 c0035fd6 0102030405060708",  # ldr x0
        "40000018 c0035fd6 0102030405060708",  # ldr w0
        "40000098 c0035fd6 0102030405060788",  # ldrsw x0
        "40000 01c c0035fd6 0102030405060788".replace(" 0", "0", 1),  # ldr s0
        "4000005c c0035fd6 0102030405060788",  # ldr d0
        "4000009c c0035fd6 01020304050607880102030405060788",  # ldr q0
        "400000d8 c0035fd6",  # prfm
        "800000b4 200080d2 c0035fd6 1f2003d5 400080d2",  # cbz x0
        "800000b5 200080d2 c0035fd6 1f2003d5 400080d2",  # cbnz x0
        "80000036 200080d2 c0035fd6 1f2003d5 400080d2",  # tbz w0, #0
        "8000f8b7 200080d2 c0035fd6 1f2003d5 400080d2",  # tbnz x0, #63
        "80000054 200080d2 c0035fd6 1f2003d5 400080d2",  # b.eq
        "04000014 200080d2 c0035fd6 1f2003d5 400080d2",  # b
        "3f2303d5 fd7bbfa9 fd030091 c0035fd6",  # paciasp
        "5f2403d5 00080010 c0035fd6",  # bti c
    ),
}
REFUSED = {
    "x86_64": {
        "31c0 c3": "short",
        "eb20 90909090 c3": "short",
        "31c0 c3 4889c8 c3": "short",
        "ff d0 90909090 c3": "instruction",
        "b801000000 0f05 c3": "",
        "90 0f05 c3 90909090": "instruction",
        "e2fe 909090 c3": "instruction",
        "55 4889e5 90 eb f9 c3": "target",
        "4889f8 803800 4083c001 75f7 c3": "target",
    },
    "arm64": {
        "": "short",
        "3f2303d5": "short",
        "00003fd6 c0035fd6": "instruction",
        "01000094 c0035fd6": "instruction",
        "010000d4 c0035fd6": "instruction",
        "01144038 e1ffff35 c0035fd6": "target",
    },
}


@pytest.fixture(scope="module", params=["x86_64", "arm64"])
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


def library_of(arch: str, name: str) -> Path:
    for folder in LIBRARIES[arch]:
        if (folder / name).exists():
            return folder / name
    pytest.skip(f"no {name} for {arch}")


def test_displaced_instructions_do_what_they_did(built: Path, machine: Machine) -> None:
    library = build_displacer(built, machine.arch)
    for text in SYNTHETIC[machine.arch]:
        code = bytes.fromhex(text)
        size = len(code) - len(code) % 4 if machine.arch == "arm64" else len(code)
        if text.startswith("f30f1efa 31c0"):
            size -= 2
        reason, clean = compare(machine, library, code + bytes(512), size, CODE, range(12))
        expected = "distance" if text.startswith("8b05") else ""
        assert reason == expected, text
        assert clean or reason, text


def test_functions_that_cannot_be_hooked_are_refused(built: Path, machine: Machine) -> None:
    library = build_displacer(built, machine.arch)
    for text, reason in REFUSED[machine.arch].items():
        code = bytes.fromhex(text)
        assert displaced.displace(library, code + bytes(32), len(code), CODE)[0] == reason, text


@pytest.mark.parametrize("name", ["libc.so.6", "libm.so.6"])
def test_functions_of_libraries_do_what_they_did(built: Path, machine: Machine, name: str) -> None:
    library = build_displacer(built, machine.arch)
    functions = list(functions_of(library_of(machine.arch, name), CODE))
    random.Random(1).shuffle(functions)  # noqa: S311
    outcomes: Counter[str] = Counter()
    runs = 0
    for address, code, size in functions[:400]:
        if b"\xd9\x74\x24" in code[:16]:
            continue  # fnstenv stores the address of an instruction
        reason, clean = compare(machine, library, code, size, address, range(2))
        outcomes[reason] += 1
        runs += clean
    assert outcomes[""] > 0.9 * outcomes.total()
    assert runs > outcomes[""]


def test_lengths_are_those_of_a_disassembler(built: Path) -> None:
    capstone: Any = pytest.importorskip("capstone")
    library = build_displacer(built, "x86_64")
    reader = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    known = unknown = 0
    for name in ("libc.so.6", "libm.so.6"):
        functions = list(functions_of(library_of("x86_64", name), CODE))
        random.Random(2).shuffle(functions)  # noqa: S311
        for address, code, size in functions[:1500]:
            at = 0
            for _, length, _, _ in reader.disasm_lite(code[:size], address):
                rest = code[at : at + 16]
                actual = library.machtrace_instruction_length(rest, len(rest))
                assert actual in (0, length), rest.hex()
                known += actual == length
                unknown += actual == 0
                at += length
    assert unknown < known / 10_000
