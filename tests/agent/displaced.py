"""Displaced instructions of hooks, run in unicorn beside the function as it was."""

from __future__ import annotations

import ctypes
import random
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.agent.build import PROJECT, compiler

MARK = 16
"""Offset of the displaced instructions in an island."""
REASONS = ("", "short", "target", "instruction", "distance")
STUB, ISLAND, CODE = 0x1234_5000_0000, 0x4100_0000, 0x4000_0000
DATA, DATA_SIZE, THREAD, CALLER = 0x5000_0000, 0x10_0000, 0x6000_0000, 0x7000_0000
PAGE = 4096


class Displaced(ctypes.Structure):
    """struct machtrace_displaced of agent/linux/entry.h."""

    _fields_ = (
        ("island", ctypes.c_uint8 * 96),
        ("island_size", ctypes.c_uint32),
        ("offset", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("patch_size", ctypes.c_uint32),
        ("patch", ctypes.c_uint8 * 8),
        ("has_call", ctypes.c_bool),
        ("boundaries", ctypes.c_uint32),
    )


def build_displacer(folder: Path, arch: str) -> ctypes.CDLL:
    """Return the agent's code that displaces instructions, for either architecture on any."""
    output = folder / f"displace-{arch}.so"
    if not output.exists():
        options = ["-O2", "-std=c11", "-fPIC", "-shared", f"-DMACHTRACE_DISPLACE_{arch.upper()}"]
        include = [f"-I{PROJECT / 'agent'}", str(PROJECT / f"agent/linux/entry_{arch}.c")]
        subprocess.run([compiler(), *options, *include, "-o", str(output)], check=True)
    library = ctypes.CDLL(str(output))
    library.machtrace_displace.argtypes = [ctypes.c_char_p, *[ctypes.c_uint64] * 4, ctypes.c_void_p]
    library.machtrace_instruction_length.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    return library


def displace(library: ctypes.CDLL, code: bytes, size: int, address: int) -> tuple[str, Displaced]:
    """Return why a function cannot be hooked, or "", and the code of its hook."""
    result = Displaced()
    reason = library.machtrace_displace(code, address, size, ISLAND, STUB, ctypes.byref(result))
    return REASONS[reason], result


@dataclass(frozen=True)
class Library:
    """The code of an ELF file, and its functions: addresses and sizes."""

    segments: tuple[tuple[int, bytes], ...]
    functions: tuple[tuple[int, int], ...]

    def code(self, address: int, size: int) -> bytes:
        """Return bytes of the code, with 16 behind."""
        for start, data in self.segments:
            if start <= address < start + len(data):
                return data[address - start : address - start + size + 16]
        return b""


def read_library(path: Path) -> Library:
    """Read the executable segments and the functions of the dynamic symbol table."""
    data = path.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 32)
    entry_size, count = struct.unpack_from("<HH", data, 54)
    segments = []
    for index in range(count):
        kind, flags, offset, address, _, size = struct.unpack_from(
            "<IIQQQQ", data, table + index * entry_size
        )
        if kind == 1 and flags & 1:
            segments.append((address, data[offset : offset + size]))
    names = subprocess.run(
        ["nm", "-D", "-S", "--defined-only", str(path)], check=True, capture_output=True, text=True
    )
    rows = [line.split() for line in names.stdout.splitlines()]
    functions = {(int(row[0], 16), int(row[1], 16)) for row in rows if row[2:3] and row[2] in "TWi"}
    return Library(tuple(segments), tuple(sorted(functions)))


class Machine:
    """A processor in unicorn, with memory that registers lead to."""

    def __init__(self, arch: str) -> None:
        """``arch``: x86_64 or arm64."""
        self.unicorn: Any = pytest.importorskip("unicorn")
        constants = pytest.importorskip(
            "unicorn.x86_const" if arch == "x86_64" else "unicorn.arm64_const"
        )
        u = self.unicorn
        self.arch = arch
        if arch == "x86_64":
            self.uc = u.Uc(u.UC_ARCH_X86, u.UC_MODE_64)
            names = [
                "RAX",
                "RBX",
                "RCX",
                "RDX",
                "RSI",
                "RDI",
                "RBP",
                "R8",
                "R9",
                "R10",
                "R11",
                "R12",
                "R13",
                "R14",
                "R15",
            ]
            self.registers = [getattr(constants, f"UC_X86_REG_{name}") for name in names]
            self.scratched = {constants.UC_X86_REG_R11}
            self.sp, self.flags = constants.UC_X86_REG_RSP, constants.UC_X86_REG_EFLAGS
            self.pc = constants.UC_X86_REG_RIP
            self.vectors = [constants.UC_X86_REG_XMM0 + index for index in range(8)]
            self.uc.reg_write(constants.UC_X86_REG_FS_BASE, THREAD)
        else:
            self.uc = u.Uc(u.UC_ARCH_ARM64, u.UC_MODE_ARM)
            self.registers = [constants.UC_ARM64_REG_X0 + index for index in range(29)]
            self.registers += [constants.UC_ARM64_REG_X29, constants.UC_ARM64_REG_X30]
            self.scratched = {self.registers[16], self.registers[17]}
            self.sp, self.flags = constants.UC_ARM64_REG_SP, constants.UC_ARM64_REG_NZCV
            self.pc = constants.UC_ARM64_REG_PC
            self.vectors = [constants.UC_ARM64_REG_Q0 + index for index in range(8)]
            self.uc.reg_write(constants.UC_ARM64_REG_CPACR_EL1, 3 << 20)
            self.uc.reg_write(constants.UC_ARM64_REG_TPIDR_EL0, THREAD)
        self.mapped: set[int] = set()
        for start, size in ((DATA, DATA_SIZE), (THREAD - PAGE, 2 * PAGE), (CALLER, PAGE)):
            self.map(start, size)

    def map(self, start: int, size: int) -> None:
        """Map pages that are not."""
        for page in range(start & -PAGE, start + size, PAGE):
            if page not in self.mapped:
                self.uc.mem_map(page, PAGE)
                self.mapped.add(page)

    def run(self, pc: int, ranges: tuple[tuple[int, int], ...], seed: int) -> tuple[object, ...]:
        """Return the state once the instruction is outside of ranges; or the error."""
        values = random.Random(seed)  # noqa: S311
        fill = values.randbytes(DATA_SIZE // 16) * 16
        self.uc.mem_write(DATA, fill)
        for register in self.registers:
            value = values.choice((0, 1, -1, DATA + 16 * values.randrange(PAGE, 9 * PAGE // 2)))
            self.uc.reg_write(register, value & (1 << 64) - 1)
        for register in self.vectors:
            self.uc.reg_write(register, values.getrandbits(128))
        self.uc.reg_write(self.sp, DATA + DATA_SIZE // 2)
        self.uc.mem_write(DATA + DATA_SIZE // 2, CALLER.to_bytes(8, "little"))
        flags = (
            values.getrandbits(4) << 28 if self.arch == "arm64" else 2 | values.getrandbits(1) << 6
        )
        self.uc.reg_write(self.flags, flags)
        left: list[int] = []
        steps = 0

        def step(uc: Any, address: int, size: int, data: object) -> None:  # noqa: ARG001
            nonlocal steps
            steps += 1
            if steps > 64 or not any(start <= address < end for start, end in ranges):
                left.append(address)
                uc.emu_stop()

        hook = self.uc.hook_add(self.unicorn.UC_HOOK_CODE, step)
        error = 0
        try:
            self.uc.emu_start(pc, 0)
        except self.unicorn.UcError as refused:
            error = refused.errno
        self.uc.hook_del(hook)
        end = left[0] if left else self.uc.reg_read(self.pc)
        state = [self.uc.reg_read(one) for one in self.registers if one not in self.scratched]
        state += [self.uc.reg_read(one) for one in (*self.vectors, self.sp, self.flags)]
        if error and not left:
            return ("error", error)  # it may be in the island, or in a page that is not mapped
        return (end, *state, bytes(self.uc.mem_read(DATA, DATA_SIZE)))


def compare(
    machine: Machine, library: ctypes.CDLL, code: bytes, size: int, address: int, seeds: range
) -> tuple[str, int]:
    """Run a function's first instructions as they were, and hooked.

    Returns why it cannot be hooked, or ""; and how many runs left them without an error.
    """
    reason, hook = displace(library, code, size, address)
    if reason:
        return reason, 0
    machine.map(address, len(code))
    machine.map(ISLAND, 2 * PAGE)
    island = bytes(hook.island)[: hook.island_size].replace(
        STUB.to_bytes(8, "little"), (ISLAND + MARK).to_bytes(8, "little")
    )
    patched = bytearray(code)
    at = hook.offset
    patched[at : at + hook.patch_size] = bytes(hook.patch)[: hook.patch_size]
    own = (address, address + hook.offset + hook.size)
    clean = 0
    for seed in seeds:
        machine.uc.mem_write(address, code)
        before = machine.run(address, (own,), seed)
        machine.uc.mem_write(address, bytes(patched))
        machine.uc.mem_write(ISLAND, island)
        first = (address, address + hook.offset + hook.patch_size)
        after = machine.run(address, (first, (ISLAND, ISLAND + 96)), seed)
        assert before == after, (hex(address), code[:24].hex(), island.hex(), before[:1], after[:1])
        clean += before[0] != "error"
    machine.uc.mem_write(address, code)
    return "", clean


def functions_of(path: Path, address: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield each function's address, its bytes and those behind, and its size."""
    library = read_library(path)
    for start, size in library.functions:
        code = library.code(start, size)
        if size and code:
            yield address + start, code, size
