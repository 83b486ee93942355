"""The emulated 32-bit arm."""

from __future__ import annotations

from unicorn import arm_const as arm
from unicorn.unicorn_const import UC_ARCH_ARM, UC_MODE_ARM

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc

from machtrace.model.arch import ARM_DOUBLES, Arch
from tests.support.emulated.cpu import EmulatedCpu, Transfer
from machtrace.unwinder.arch.arm32 import arm as arm_instructions
from machtrace.unwinder.arch.arm32 import thumb
from machtrace.unwinder.code.effects import Call, IndirectJump, Jump, Return

_SP, _LR = 13, 14
_ARM_REGISTERS = (
    *((number, getattr(arm, f"UC_ARM_REG_R{number}")) for number in range(13)),
    (_SP, arm.UC_ARM_REG_SP),
    (_LR, arm.UC_ARM_REG_LR),
    *((ARM_DOUBLES[number], getattr(arm, f"UC_ARM_REG_D{number}")) for number in range(8, 16)),
)
_THUMB_STATE = 1 << 5
"""Of the status register (*Arm Architecture Reference Manual*, B1.3.3)."""
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
        """See :meth:`EmulatedCpu.start_address`; of an entry's, the lowest bit says what it is."""
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
        import capstone  # type: ignore[import-untyped]

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
