"""The emulated CPUs of Intel's kind: x86-64 and i386."""

from __future__ import annotations

from unicorn import x86_const as x86
from unicorn.unicorn_const import UC_ARCH_X86, UC_MODE_32, UC_MODE_64

# What ``unicorn`` names the same: type checkers see the classes for Python 2 there.
from unicorn.unicorn_py3.unicorn import Uc

from machtrace.model.arch import Arch
from tests.support.emulated.cpu import EmulatedCpu, Transfer

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
        import capstone  # type: ignore[import-untyped]

        mode = capstone.CS_MODE_64 if self._is_64 else capstone.CS_MODE_32
        return capstone.CS_ARCH_X86, mode
