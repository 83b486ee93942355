"""``NT_PRSTATUS``: a thread's general registers in Linux's layouts.

Sources: ``struct user_regs_struct`` of x86-64 and i386 (``sys/user.h``), ``struct user_pt_regs`` of
aarch64 (``asm/ptrace.h``), ``struct pt_regs`` of arm. The size identifies the layout: a 32-bit
thread on a 64-bit kernel has the 32-bit set. For signal frames: ``asm-generic/ucontext.h``,
``asm/ucontext.h`` and ``asm/sigcontext.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from struct import Struct

from machtrace.errors import FormatError
from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.registers import RegisterSet


@dataclass(frozen=True, slots=True)
class RegisterLayout:
    """The layout of one architecture's registers."""

    arch: Arch
    words: Struct
    """All registers, in order."""
    dwarf: tuple[int | None, ...]
    """The DWARF number of each word; None for a register that unwinding does not use."""
    sp: int
    """The index of the stack pointer."""
    pc: int
    """The index of the program counter."""
    signal_sp: int
    """Bytes from ``uc_stack`` of a signal frame to the stack pointer that it saved."""
    block: int | None = None
    """The index of the address of the thread's own block (``pthread_self``)."""
    others: tuple[tuple[str, int], ...] = ()
    """Names and indexes of registers without a DWARF number that people read: flags, and the
    addresses of the thread's own block."""

    def bytes_of(self, registers: RegisterSet) -> bytes:
        """Return ``registers`` in this layout; unknown ones are 0."""
        limit = 1 << (8 * self.words.size // len(self.dwarf))
        words = [0 if n is None else (registers.get(n) or 0) % limit for n in self.dwarf]
        words[self.pc] = registers.pc % limit
        return self.words.pack(*words)


_NONE = (None,)
_LAYOUTS = (
    # r15–r12, rbp, rbx, r11–r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip, cs, eflags, rsp, ss,
    # fs_base; the rest are segments.
    RegisterLayout(
        Arch.X86_64,
        Struct("<27Q"),
        (15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5, None, 16, None, None, 7, *_NONE * 7),
        sp=19,
        pc=16,
        signal_sp=144,
        block=21,
        others=(("rflags", 18), ("fs_base", 21), ("gs_base", 22)),
    ),
    # ebx, ecx, edx, esi, edi, ebp, eax, four segments, orig_eax, eip, cs, eflags, esp, ss.
    RegisterLayout(
        Arch.I386,
        Struct("<17I"),
        (3, 1, 2, 6, 7, 5, 0, *_NONE * 5, 8, None, None, 4, None),
        sp=15,
        pc=12,
        signal_sp=40,
        others=(("eflags", 14),),
    ),
    # x0–x30, sp, pc, pstate.
    RegisterLayout(
        Arch.ARM64,
        Struct("<34Q"),
        (*range(32), 32, None),
        sp=31,
        pc=32,
        signal_sp=416,
        others=(("cpsr", 33),),
    ),
    # r0–r15, cpsr, orig_r0.
    RegisterLayout(
        Arch.ARM,
        Struct("<18I"),
        (*range(16), None, None),
        sp=13,
        pc=15,
        signal_sp=76,
        others=(("cpsr", 16),),
    ),
)
_BY_SIZE = {layout.words.size: layout for layout in _LAYOUTS}


def _in_order(layout: RegisterLayout) -> Callable[[tuple[int, ...]], tuple[int | None, ...]]:
    """Return a function that reorders words for a :class:`RegisterSet`, which is called often."""
    names = len(layout.arch.registers.names)
    at = {number: index for index, number in enumerate(layout.dwarf) if number is not None}
    pick: Callable[[tuple[int, ...]], tuple[int | None, ...]] = itemgetter(
        *(at[number] for number in range(min(names, 1 + max(at))))
    )
    return pick


_IN_ORDER = {layout.arch: _in_order(layout) for layout in _LAYOUTS}
_BY_ARCH = {layout.arch: layout for layout in _LAYOUTS}


def layout_for(arch: Arch) -> RegisterLayout | None:
    """Return the layout of a process's registers; None for systems other than Linux's."""
    return _BY_ARCH.get(arch)


def layout_of(size: int) -> RegisterLayout | None:
    """Return the layout of a register set of ``size`` bytes; None if unknown."""
    return _BY_SIZE.get(size)


def read_other_registers(data: bytes) -> tuple[tuple[str, int], ...]:
    """Return names and values of the registers in ``data`` that have no DWARF number."""
    layout = layout_of(len(data))
    if layout is None:
        return ()
    words = layout.words.unpack(data)
    return tuple((name, words[index]) for name, index in layout.others)


def read_registers(data: bytes, source: str) -> RegisterSet:
    """Parse the registers in the bytes of ``NT_PRSTATUS``.

    Raises:
        FormatError: their size is that of no known architecture.
    """
    layout = layout_of(len(data))
    if layout is None:
        raise FormatError(
            f"{len(data)} bytes of registers are of no known architecture",
            source=source,
            offset=0,
            remedy="capture on x86-64 or arm64",
        )
    words = layout.words.unpack(data)
    return RegisterSet(layout.arch, Avma(words[layout.pc]), _IN_ORDER[layout.arch](words))
