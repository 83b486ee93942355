"""An arm64 CPU of unicorn's, set up as a process finds it, and its registers as a walk reads them.

The CPU signs return addresses (FEAT_PAuth), as those of Apple's do since the A12; unicorn starts
at EL1 with EL2 and EL3 above it, which have to let it.
"""

from __future__ import annotations

from typing import TypeAlias

from unicorn import arm64_const as arm64
from unicorn.unicorn_const import UC_ARCH_ARM64, UC_MODE_ARM

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc, UcContext, UcError

from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet

Cpu: TypeAlias = Uc
CpuError: TypeAlias = UcError
CpuContext: TypeAlias = UcContext
"""All registers of the CPU, saved while another thread runs."""

NOWHERE = 0
"""An address that no thread comes to."""

_X = tuple(getattr(arm64, f"UC_ARM64_REG_X{number}") for number in range(29))
_V = range(72, 80)
"""DWARF numbers of v8 to v15, whose low halves calls preserve."""
_GENERAL = (*range(29), *_V)
_REGISTERS = (
    arm64.UC_ARM64_REG_PC,
    arm64.UC_ARM64_REG_SP,
    arm64.UC_ARM64_REG_FP,
    arm64.UC_ARM64_REG_LR,
    *_X,
    *(getattr(arm64, f"UC_ARM64_REG_D{number - 64}") for number in _V),
)

_CARRY = 1 << 29

# (CRn, CRm, op0, op1, op2): how unicorn names a system register.
_SCR_EL3 = (1, 1, 3, 6, 0)
_HCR_EL2 = (1, 1, 3, 4, 0)
_SCTLR_EL1 = (1, 0, 3, 0, 0)
_APIA_KEY_LO_EL1 = (2, 1, 3, 0, 0)
_APIA_KEY_HI_EL1 = (2, 1, 3, 0, 1)
_SCR_BITS = 1 << 0 | 1 << 10 | 1 << 16 | 1 << 17
"""NS, RW, APK and API: not secure, AArch64 below, no traps for keys and for their use."""
_HCR_BITS = 1 << 31 | 1 << 40 | 1 << 41
"""RW, APK and API."""
_SCTLR_ENIA = 1 << 31
_KEY = (0x4D616368_74726163, 0x656D756C_61746564)
"""Real kernels draw one for each process; here the same run is to give the same signatures."""


def new_cpu() -> Cpu:
    """Create a CPU without memory that signs with its A key."""
    cpu = Uc(UC_ARCH_ARM64, UC_MODE_ARM, cpu=arm64.UC_CPU_ARM64_MAX)
    for register, bits in (
        (_SCR_EL3, _SCR_BITS),
        (_HCR_EL2, _HCR_BITS),
        (_APIA_KEY_LO_EL1, _KEY[0]),
        (_APIA_KEY_HI_EL1, _KEY[1]),
        (_SCTLR_EL1, cpu.reg_read(arm64.UC_ARM64_REG_CP_REG, _SCTLR_EL1) | _SCTLR_ENIA),
    ):
        cpu.reg_write(arm64.UC_ARM64_REG_CP_REG, (*register, bits))
    return cpu


def start_at(cpu: Cpu, entry: int, stack: int, arguments: tuple[int, ...]) -> None:
    """Set the registers that a new thread begins with; the others are as they are."""
    cpu.reg_write(arm64.UC_ARM64_REG_PC, entry)
    cpu.reg_write(arm64.UC_ARM64_REG_SP, stack)
    for number, argument in enumerate(arguments):
        cpu.reg_write(_X[number], argument)


def system_call(cpu: Cpu) -> tuple[int, tuple[int, ...]]:
    """Return the number in x16, signed, and x0 to x7."""
    number, *arguments = cpu.reg_read_batch((_X[16], *_X[:8]))
    return (number ^ 1 << 63) - (1 << 63), tuple(arguments)


def return_from_system_call(cpu: Cpu, value: int) -> None:
    """Store ``value`` as the result of a call, and clear the error flag."""
    cpu.reg_write(_X[0], value % (1 << 64))
    cpu.reg_write(arm64.UC_ARM64_REG_NZCV, cpu.reg_read(arm64.UC_ARM64_REG_NZCV) & ~_CARRY)


def program_counter(cpu: Cpu) -> int:
    """Return the program counter, an :data:`Avma`."""
    value: int = cpu.reg_read(arm64.UC_ARM64_REG_PC)
    return value


def stack_pointer(context: CpuContext) -> int:
    """Return the stack pointer in ``context``, an :data:`Avma`."""
    value: int = context.reg_read(arm64.UC_ARM64_REG_SP)
    return value


def registers_of(context: CpuContext) -> RegisterSet:
    """Return the registers in ``context`` that unwinding may read."""
    pc, sp, fp, lr, *general = context.reg_read_batch(_REGISTERS)
    return RegisterSet.of(
        Arch.ARM64,
        pc=pc,
        sp=sp,
        fp=fp,
        lr=lr,
        general=dict(zip(_GENERAL, general, strict=True)),
    )
