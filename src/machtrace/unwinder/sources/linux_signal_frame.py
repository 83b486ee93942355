"""Rules for the trampolines of Linux signal handlers, where no table marks them.

A handler returns to a few instructions that call ``sigreturn``. glibc marks them as a signal frame
in its call-frame information; musl, Go and others do not. The kernel identifies them by their
address only, debuggers by their bytes. The stack holds ``struct rt_sigframe``
(``arch/*/kernel/signal*.c``) with a ``struct ucontext`` (``asm-generic/ucontext.h``) and in that a
``struct sigcontext`` (``asm/sigcontext.h``).
"""

from __future__ import annotations

from machtrace.errors import MemoryReadError
from machtrace.frozen import dataclass
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import ImageContents
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import AtCfa, Claims, RegisterOffset, UnwindRule


@dataclass(frozen=True, slots=True)
class _Trampoline:
    """One variant of the code, and the distance from sp to the registers at each instruction."""

    code: bytes
    instructions: tuple[tuple[int, int], ...]
    """The offset of each instruction in :attr:`code`, and the distance from sp to the first saved
    register there."""
    registers: tuple[int | None, ...]
    """DWARF numbers in the order of ``struct sigcontext``; None is a register that is not
    tracked."""
    pc: int
    """The program counter's index in that order."""
    word: int
    """Bytes of a saved register."""

    def rule(self, arch: Arch, distance: int) -> UnwindRule:
        saved = tuple(
            (number, AtCfa(distance + index * self.word))
            for index, number in enumerate(self.registers)
            if number is not None
        )
        return UnwindRule(
            RegisterOffset(arch.registers.sp, 0),
            AtCfa(distance + self.pc * self.word),
            tuple(sorted(saved, key=lambda one: one[0])),
            is_signal_frame=True,
        )


# r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
_X86_64_REGISTERS = (*range(8, 16), 5, 4, 6, 3, 1, 0, 2, 7, None)
_X86_64_PC = 16
_X86_64_DISTANCE = 40
"""``uc_flags``, ``uc_link`` and ``uc_stack`` precede the registers."""

# gs, fs, es, ds, edi, esi, ebp, esp, ebx, edx, ecx, eax, trapno, err, eip.
_I386_REGISTERS = (*(None,) * 4, 7, 6, 5, 4, 3, 2, 1, 0, None, None, None)
_I386_PC = 14
_I386_RT_DISTANCE = 160
"""After the return address: ``sig``, two pointers, 128 bytes of ``siginfo``, and 20 of ``uc``."""

_ARM64_REGISTERS = (*range(32), None)
_ARM64_PC = 32
_ARM64_DISTANCE = 312
"""128 bytes of ``siginfo``, 176 of ``ucontext``, and ``fault_address``."""

# r0 to r10, fp, ip, sp, lr, pc.
_ARM_REGISTERS = (*range(15), None)
_ARM_PC = 15
_ARM_DISTANCE = 32
"""``ucontext`` up to ``uc_mcontext``, and ``trap_no``, ``error_code`` and ``oldmask``."""
_ARM_RT_DISTANCE = 128 + _ARM_DISTANCE


def _x86_64(code: str, *offsets: int) -> _Trampoline:
    distances = tuple((offset, _X86_64_DISTANCE) for offset in offsets)
    return _Trampoline(bytes.fromhex(code), distances, _X86_64_REGISTERS, _X86_64_PC, 8)


def _i386(code: str, *distances: tuple[int, int]) -> _Trampoline:
    return _Trampoline(bytes.fromhex(code), distances, _I386_REGISTERS, _I386_PC, 4)


def _arm(code: str, distance: int, second: int) -> _Trampoline:
    distances = ((0, distance), (second, distance))
    return _Trampoline(bytes.fromhex(code), distances, _ARM_REGISTERS, _ARM_PC, 4)


_TRAMPOLINES = {
    Arch.X86_64: (
        _x86_64("48c7c00f000000 0f05", 0, 7),  # mov rax, 15; syscall
        _x86_64("b80f000000 0f05", 0, 5),  # mov eax, 15; syscall
    ),
    Arch.I386: (
        _i386("b8ad000000 cd80", (0, _I386_RT_DISTANCE), (5, _I386_RT_DISTANCE)),
        _i386("58 b877000000 cd80", (0, 4), (1, 0), (6, 0)),  # pop eax; mov eax, 119; int 0x80
    ),
    Arch.ARM64: (
        _Trampoline(  # mov x8, #139; svc #0
            bytes.fromhex("681180d2 010000d4"),
            ((0, _ARM64_DISTANCE), (4, _ARM64_DISTANCE)),
            _ARM64_REGISTERS,
            _ARM64_PC,
            8,
        ),
    ),
    Arch.ARM: (
        _arm("7770a0e3 000000ef", _ARM_DISTANCE, 4),  # mov r7, #119; svc 0
        _arm("ad70a0e3 000000ef", _ARM_RT_DISTANCE, 4),  # mov r7, #173; svc 0
        _arm("7727 00df", _ARM_DISTANCE, 2),
        _arm("ad27 00df", _ARM_RT_DISTANCE, 2),
    ),
}


class LinuxSignalRules:
    """The trampolines of one ELF image. A :class:`~machtrace.unwinder.rules.RuleSource`.

    It must be queried first: a handler returns to the trampoline's first instruction, so the lookup
    address before it may belong to another function.
    """

    __slots__ = ("_arch", "_contents", "_trampolines")

    trust = FrameTrust.SIGNAL_FRAME
    claims = Claims.EVERYWHERE

    def __init__(self, contents: ImageContents, arch: Arch) -> None:
        self._contents = contents
        self._arch = arch
        self._trampolines = _TRAMPOLINES.get(arch, ())

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`~machtrace.unwinder.rules.RuleSource.rule_for`. Raises nothing."""
        at = lookup if interrupted else Svma(lookup + 1)
        for trampoline in self._trampolines:
            for offset, distance in trampoline.instructions:
                if (interrupted or not offset) and self._is_at(Svma(at - offset), trampoline.code):
                    return trampoline.rule(self._arch, distance)
        return None

    def _is_at(self, start: Svma, code: bytes) -> bool:
        try:
            return bytes(self._contents.read_svma(start, len(code))) == code
        except MemoryReadError:
            return False
