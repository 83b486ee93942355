"""The emulated i386."""

from __future__ import annotations

from struct import pack

from unicorn import x86_const as x86
from unicorn.unicorn_const import UC_ARCH_X86, UC_MODE_32

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc

from machtrace.model.arch import Arch
from machtrace.testing.emulated_cpu import EmulatedCpu, Transfer

_NAMES = ("EAX", "ECX", "EDX", "EBX", "ESP", "EBP", "ESI", "EDI")
_REGISTERS = tuple(
    (number, getattr(x86, f"UC_X86_REG_{name}")) for number, name in enumerate(_NAMES)
)
_ESP = 4
_PREFIXES = bytes((0x2E, 0x3E, 0x66, 0xF2, 0xF3))
_UD2 = b"\x0f\x0b"
# Opcodes: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 2.
_CALL = 0xE8
_RETURNS = (0xC2, 0xC3)
_GROUP_5 = 0xFF
_GROUP_5_TRANSFERS = {2: Transfer.CALL, 4: Transfer.JUMP}
"""By the middle bits of the byte after the opcode."""


class EmulatedI386(EmulatedCpu):
    """See :class:`EmulatedCpu`."""

    instruction_set = "i386"
    longest_instruction = 15
    return_slot = 4

    def __init__(self, arch: Arch = Arch.I386) -> None:
        super().__init__(Uc(UC_ARCH_X86, UC_MODE_32), arch, x86.UC_X86_REG_EIP, _REGISTERS)

    def call_from(self, top: int, outside: int) -> None:
        """See :meth:`EmulatedCpu.call_from`."""
        self.uc.mem_write(top - 4, pack("<I", outside))
        self.write(_ESP, top - 4)

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

        return capstone.CS_ARCH_X86, capstone.CS_MODE_32
