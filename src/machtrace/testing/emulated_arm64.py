"""The emulated arm64, which signs return addresses."""

from __future__ import annotations

from unicorn import arm64_const as arm64

from machtrace.model.arch import Arch
from machtrace.target.emulator_cpu import new_cpu
from machtrace.target.shadow_stack import is_call, is_return
from machtrace.testing.emulated_cpu import EmulatedCpu, Transfer

_REGISTERS = (
    *((number, getattr(arm64, f"UC_ARM64_REG_X{number}")) for number in range(31)),
    (31, arm64.UC_ARM64_REG_SP),
    *((64 + number, getattr(arm64, f"UC_ARM64_REG_D{number}")) for number in range(8, 16)),
)
# Masks and values of encodings: *Arm Architecture Reference Manual*, C4.1, branches.
_BR = (0xFEFFF000, 0xD61F0000)
"""``br``, and the authenticating ``braa``, ``brab``, ``braaz`` and ``brabz``."""
_EXCEPTIONS = 0xD4
"""The last byte of ``brk``, ``svc`` and their like."""


class EmulatedArm64(EmulatedCpu):
    """See :class:`EmulatedCpu`."""

    instruction_set = "arm64"
    longest_instruction = 4
    return_slot = 0

    def __init__(self, arch: Arch = Arch.ARM64) -> None:
        super().__init__(new_cpu(), arch, arm64.UC_ARM64_REG_PC, _REGISTERS)

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
