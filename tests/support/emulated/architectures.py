"""The emulated arm64, which signs return addresses."""

from __future__ import annotations

from unicorn import arm64_const as arm64

from machtrace.model.arch import Arch
from machtrace.targets.emulator.cpu import new_cpu
from machtrace.targets.emulator.shadow_stack import is_call, is_return
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
"""The last byte of ``brk``, ``svc`` and their like."""

# (CRn, CRm, op0, op1, op2): how unicorn names a system register.
_SCTLR_EL1 = (1, 0, 3, 0, 0)
_SCTLR_KEYS = 1 << 31 | 1 << 30 | 1 << 27 | 1 << 13
"""EnIA, EnIB, EnDA and EnDB."""
_KEYS = tuple((2, crm, 3, 0, op2) for crm in (1, 2) for op2 in range(4))
"""Halves of the keys IA, IB, DA and DB."""
_PACIA = 0xDAC10020
"""``pacia x0, x1``; its kin for the other keys differ in bits 10 and 11."""
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
        kept = self.uc.context_save()
        self.write(0, value)
        self.write(1, discriminator)
        self.uc.emu_start(_SCRATCH, _SCRATCH + 4, count=1)
        found = self.read(0)
        self.uc.context_restore(kept)
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
