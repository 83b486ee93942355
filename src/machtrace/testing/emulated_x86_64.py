"""The emulated x86-64."""

from __future__ import annotations

from struct import pack

from unicorn import x86_const as x86
from unicorn.unicorn_const import UC_ARCH_X86, UC_MODE_64

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc

from machtrace.model.arch import Arch
from machtrace.testing.emulated_cpu import EmulatedCpu, Transfer

_NAMES = ("RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP")
_REGISTERS = tuple(
    (number, getattr(x86, f"UC_X86_REG_{name}"))
    for number, name in enumerate((*_NAMES, *(f"R{number}" for number in range(8, 16))))
)
_PREFIXES = bytes((0x2E, 0x3E, 0x66, 0xF2, 0xF3, *range(0x40, 0x50)))
_UD2 = b"\x0f\x0b"
# Opcodes: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2.
_CALL = 0xE8
_RETURNS = (0xC2, 0xC3)
_GROUP_5 = 0xFF
_GROUP_5_TRANSFERS = {2: Transfer.CALL, 4: Transfer.JUMP}
"""By the middle bits of the byte after the opcode."""


class EmulatedX86_64(EmulatedCpu):  # noqa: N801 (the architecture's name)
    """See :class:`EmulatedCpu`."""

    instruction_set = "x86_64"
    longest_instruction = 15
    return_slot = 8

    def __init__(self, arch: Arch = Arch.X86_64) -> None:
        super().__init__(Uc(UC_ARCH_X86, UC_MODE_64), arch, x86.UC_X86_REG_RIP, _REGISTERS)

    def call_from(self, top: int, outside: int) -> None:
        """See :meth:`EmulatedCpu.call_from`."""
        self.uc.mem_write(top - 8, pack("<Q", outside))
        self.write(7, top - 8)

    def transfer(self, code: bytes) -> Transfer:
        """See :meth:`EmulatedCpu.transfer`."""
        code = code.lstrip(_PREFIXES)
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
        import capstone  # type: ignore[import-untyped]

        return capstone.CS_ARCH_X86, capstone.CS_MODE_64
