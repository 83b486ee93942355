"""The emulated arm64, which signs return addresses.

The emulated 32-bit arm.

The emulated CPUs of Intel's kind: x86-64 and i386.
"""

from __future__ import annotations

from unicorn import arm64_const as arm64
from unicorn import arm_const as arm
from unicorn import x86_const as x86
from unicorn.unicorn_const import UC_ARCH_ARM, UC_ARCH_X86, UC_MODE_32, UC_MODE_64, UC_MODE_ARM
from unicorn.unicorn_py3.unicorn import Uc

from machtrace.model.arch import ARM_DOUBLES, Arch
from machtrace.targets.emulator.cpu import new_cpu
from machtrace.targets.emulator.machine import is_call, is_return
from machtrace.unwinder.arch.arm32 import arm as arm_instructions
from machtrace.unwinder.arch.arm32 import thumb
from machtrace.unwinder.code.effects import Call, IndirectJump, Jump, Return
from tests.support.emulated.cpu import EmulatedCpu, Transfer

_ARM64_REGISTERS = (
    *((number, getattr(arm64, f"UC_ARM64_REG_X{number}")) for number in range(31)),
    (31, arm64.UC_ARM64_REG_SP),
    *((64 + number, getattr(arm64, f"UC_ARM64_REG_D{number}")) for number in range(8, 16)),
)
# Masks and values of encodings: *Arm Architecture Reference Manual*, C4.1, branches.
_BR = (0xFEFFF000, 0xD61F0000)
"""``br``, and the authenticating ``braa``, ``brab``, ``braaz`` and ``brabz``."""
_EXCEPTIONS = 0xD4
"""The last byte of ``brk``, ``svc`` and similar instructions."""

# (CRn, CRm, op0, op1, op2): how unicorn names a system register.
_SCTLR_EL1 = (1, 0, 3, 0, 0)
_SCTLR_KEYS = 1 << 31 | 1 << 30 | 1 << 27 | 1 << 13
"""EnIA, EnIB, EnDA and EnDB."""
_KEYS = tuple((2, crm, 3, 0, op2) for crm in (1, 2) for op2 in range(4))
"""Halves of the keys IA, IB, DA and DB."""
_PACIA = 0xDAC10020
"""``pacia x0, x1``; those for the other keys differ in bits 10 and 11."""
_SCRATCH = 0x10000
"""Below all that a program has."""


class EmulatedArm64(EmulatedCpu):
    """See :class:`EmulatedCpu`."""

    instruction_set = "arm64"
    longest_instruction = 4
    return_slot = 0

    def __init__(self, arch: Arch = Arch.ARM64) -> None:
        super().__init__(new_cpu(), arch, arm64.UC_ARM64_REG_PC, _ARM64_REGISTERS)
        self._signing = 0
        if arch is Arch.ARM64E:
            for number, register in enumerate(_KEYS):
                value = (*register, 0x5EED_0000_4B45_5900 + number)
                self.uc.reg_write(arm64.UC_ARM64_REG_CP_REG, value)
            enabled = self.uc.reg_read(arm64.UC_ARM64_REG_CP_REG, _SCTLR_EL1) | _SCTLR_KEYS
            self.uc.reg_write(arm64.UC_ARM64_REG_CP_REG, (*_SCTLR_EL1, enabled))

    def signed(self, value: int, key: int, discriminator: int) -> int:
        """See :meth:`EmulatedCpu.signed`."""
        if not self._signing:
            self._signing = _SCRATCH
            self.uc.mem_map(_SCRATCH, 0x1000)
        code = (_PACIA | key << 10).to_bytes(4, "little")
        self.uc.mem_write(_SCRATCH, code)
        saved = self.uc.context_save()
        self.write(0, value)
        self.write(1, discriminator)
        self.uc.emu_start(_SCRATCH, _SCRATCH + 4, count=1)
        found = self.read(0)
        self.uc.context_restore(saved)
        return found

    def call_from(self, top: int, outside: int) -> None:
        """See :meth:`EmulatedCpu.call_from`."""
        self.write(30, outside)
        self.write(31, top)

    def transfer(self, code: bytes) -> Transfer:
        """See :meth:`EmulatedCpu.transfer`."""
        word = int.from_bytes(code, "little")
        if is_call(word):
            return Transfer.CALL
        if is_return(word):
            return Transfer.RETURN
        mask, value = _BR
        return Transfer.JUMP if word & mask == value else Transfer.NONE

    def is_trap(self, code: bytes) -> bool:
        """See :meth:`EmulatedCpu.is_trap`."""
        return code[3] == _EXCEPTIONS

    def decoder(self, address: int) -> tuple[int, int]:
        """See :meth:`EmulatedCpu.decoder`."""
        del address
        import capstone  # type: ignore[import-untyped]

        return capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM


# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.


_SP, _LR = 13, 14
_ARM_REGISTERS = (
    *((number, getattr(arm, f"UC_ARM_REG_R{number}")) for number in range(13)),
    (_SP, arm.UC_ARM_REG_SP),
    (_LR, arm.UC_ARM_REG_LR),
    *((ARM_DOUBLES[number], getattr(arm, f"UC_ARM_REG_D{number}")) for number in range(8, 16)),
)
_THUMB_STATE = 1 << 5
"""Bit of the status register (*Arm Architecture Reference Manual*, B1.3.3)."""
_FLOATING_POINT_ON = 1 << 30
_ALL_COPROCESSORS = 0xF << 20
_UDF_ARM, _UDF_ARM_COUNTS = 0xE7F000F0, 0xFFF000F0
_UDF_THUMB = 0xDE
_NEVER = 15
"""In place of a condition: an instruction that has none."""


class EmulatedArm(EmulatedCpu):
    """See :class:`EmulatedCpu`.

    What an instruction is depends on the state that the CPU is in, so it is only right about the
    one that is to run next.
    """

    instruction_set = "arm"
    longest_instruction = 4
    return_slot = 0

    def __init__(self, arch: Arch = Arch.ARMV7) -> None:
        uc = Uc(UC_ARCH_ARM, UC_MODE_ARM)
        super().__init__(uc, arch, arm.UC_ARM_REG_PC, _ARM_REGISTERS)
        uc.ctl_set_cpu_model(arm.UC_CPU_ARM_CORTEX_A15)
        access = uc.reg_read(arm.UC_ARM_REG_C1_C0_2)
        uc.reg_write(arm.UC_ARM_REG_C1_C0_2, access | _ALL_COPROCESSORS)
        uc.reg_write(arm.UC_ARM_REG_FPEXC, _FLOATING_POINT_ON)

    @property
    def is_thumb(self) -> bool:
        """Whether it runs Thumb instructions now."""
        return bool(self.uc.reg_read(arm.UC_ARM_REG_CPSR) & _THUMB_STATE)

    def start_address(self, address: int) -> int:
        """See :meth:`EmulatedCpu.start_address`; the lowest bit selects the instruction set."""
        return address | self.is_thumb

    def call_from(self, top: int, outside: int) -> None:
        """See :meth:`EmulatedCpu.call_from`."""
        self.write(_LR, outside)
        self.write(_SP, top)
        status = self.uc.reg_read(arm.UC_ARM_REG_CPSR) & ~_THUMB_STATE
        self.uc.reg_write(arm.UC_ARM_REG_CPSR, status)

    def transfer(self, code: bytes) -> Transfer:
        """See :meth:`EmulatedCpu.transfer`."""
        if self.is_thumb:
            first, second = (int.from_bytes(code[at : at + 2], "little") for at in (0, 2))
            effects = thumb.decode(first, second).effects
        else:
            decoded = arm_instructions.decode(int.from_bytes(code, "little"))
            if not _holds(decoded.condition, self.uc.reg_read(arm.UC_ARM_REG_CPSR)):
                return Transfer.NONE
            effects = decoded.effects
        match effects[-1] if effects else None:
            case Call():
                return Transfer.CALL
            case Return():
                return Transfer.RETURN
            case Jump() | IndirectJump() if self.read(_LR) & -2 == self.program_counter + len(code):
                return Transfer.CALL  # mov lr, pc; b …
            case IndirectJump():
                return Transfer.JUMP
            case _:
                return Transfer.NONE

    def is_trap(self, code: bytes) -> bool:
        """See :meth:`EmulatedCpu.is_trap`."""
        if self.is_thumb:
            return code[1] == _UDF_THUMB
        return int.from_bytes(code, "little") & _UDF_ARM_COUNTS == _UDF_ARM

    def decoder(self, address: int) -> tuple[int, int]:
        """See :meth:`EmulatedCpu.decoder`."""
        del address
        import capstone

        mode = capstone.CS_MODE_THUMB if self.is_thumb else capstone.CS_MODE_ARM
        return capstone.CS_ARCH_ARM, mode


def _holds(condition: int, status: int) -> bool:
    """Whether an instruction with a condition runs (*Arm Architecture Reference Manual*, A8.3)."""
    negative, zero, carry, overflow = (bool(status >> bit & 1) for bit in (31, 30, 29, 28))
    holds = (
        zero,
        carry,
        negative,
        overflow,
        carry and not zero,
        negative == overflow,
        negative == overflow and not zero,
        True,
    )[condition >> 1]
    return holds if condition & 1 == 0 or condition == _NEVER else not holds


# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.


_NAMES_64 = (
    *("RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP"),
    *(f"R{number}" for number in range(8, 16)),
)
_NAMES_32 = ("EAX", "ECX", "EDX", "EBX", "ESP", "EBP", "ESI", "EDI")
"""In the order of DWARF's numbers."""
_PREFIXES_32 = bytes((0x2E, 0x3E, 0x66, 0xF2, 0xF3))
_PREFIXES_64 = bytes((*_PREFIXES_32, *range(0x40, 0x50)))
_UD2 = b"\x0f\x0b"
# Opcodes: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2.
_CALL = 0xE8
_RETURNS = (0xC2, 0xC3)
_GROUP_5 = 0xFF
_GROUP_5_TRANSFERS = {2: Transfer.CALL, 4: Transfer.JUMP}
"""By the middle bits of the byte after the opcode."""


class EmulatedX86(EmulatedCpu):
    """See :class:`EmulatedCpu`."""

    longest_instruction = 15

    def __init__(self, arch: Arch) -> None:
        is_64 = arch is not Arch.I386
        names = _NAMES_64 if is_64 else _NAMES_32
        super().__init__(
            Uc(UC_ARCH_X86, UC_MODE_64 if is_64 else UC_MODE_32),
            arch,
            x86.UC_X86_REG_RIP if is_64 else x86.UC_X86_REG_EIP,
            [(number, getattr(x86, f"UC_X86_REG_{name}")) for number, name in enumerate(names)],
        )
        self._is_64 = is_64
        self._prefixes = _PREFIXES_64 if is_64 else _PREFIXES_32
        self.instruction_set = "x86_64" if is_64 else "i386"
        self.return_slot = arch.pointer_size

    def call_from(self, top: int, outside: int) -> None:
        """See :meth:`EmulatedCpu.call_from`."""
        slot = top - self.return_slot
        self.uc.mem_write(slot, outside.to_bytes(self.return_slot, "little"))
        self.write(self.arch.registers.sp, slot)

    def transfer(self, code: bytes) -> Transfer:
        """See :meth:`EmulatedCpu.transfer`."""
        code = code.lstrip(self._prefixes)
        if code[0] == _CALL:
            return Transfer.CALL
        if code[0] in _RETURNS:
            return Transfer.RETURN
        if code[0] == _GROUP_5:
            return _GROUP_5_TRANSFERS.get(code[1] >> 3 & 7, Transfer.NONE)
        return Transfer.NONE

    def is_trap(self, code: bytes) -> bool:
        """See :meth:`EmulatedCpu.is_trap`."""
        return code.startswith(_UD2)

    def decoder(self, address: int) -> tuple[int, int]:
        """See :meth:`EmulatedCpu.decoder`."""
        del address
        import capstone

        mode = capstone.CS_MODE_64 if self._is_64 else capstone.CS_MODE_32
        return capstone.CS_ARCH_X86, mode
