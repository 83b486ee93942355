"""Signals, delivered to a program in the emulator as Darwin's kernel delivers them.

The registers go into a ``struct mcontext`` on the stack, below the red zone, and ``_sigtramp``
is started with a pointer to the ``ucontext`` that leads to it; ``sigreturn`` ends it. Sources: xnu,
``bsd/dev/arm/unix_signal.c`` and ``bsd/dev/i386/unix_signal.c`` (``sendsig``); the macOS headers
``sys/_types/_ucontext.h``, ``arm/_mcontext.h`` and ``i386/_mcontext.h``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from struct import calcsize, pack

from unicorn.unicorn_py3.unicorn import UcContext

from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from tests.support.emulated.cpu import EmulatedCpu
from tests.support.emulated.true_stack import TrueFrame, TrueStack

TRAMPOLINE, HANDLER, STACK = "__sigtramp", "_handle", "_alternate_stack"
"""Symbols that a program with signals has; the last it may have."""
_STACK_SIZE = 16384
"""Size of ``alternate_stack``, in bytes."""
_RED_ZONE = 128
_MAX_NESTED = 2
"""Signals in progress; the second interrupts the first one's handler."""
_SIGNALS = 31
_UC_FLAVOR = 30
_SIGRETURN = 184
_ROOM_FOR_ARGUMENTS = 32
_NOWHERE = 0xFFFFFFFF
"""The return address of ``_sigtramp``, which never returns."""


@dataclass(frozen=True, slots=True)
class SignalAbi:
    """How an architecture's kernel starts a handler."""

    mcontext_size: int
    thread_state: int
    """Where registers begin in it."""
    registers: tuple[int | None, ...]
    """DWARF numbers in the thread state's order; None is pc."""
    is_context_first: bool
    """From low to high: siginfo, ucontext, mcontext; else the other way round."""
    arguments: tuple[int, ...]
    """DWARF numbers of the registers that arguments are in; none where they are on the stack."""
    system_call: bytes
    number: tuple[int, int]
    """(DWARF number, value) of the register that selects ``sigreturn``."""
    siginfo_size: int = 104
    ucontext_size: int = 56
    """Its last two words are the size of the mcontext and a pointer to it."""
    word: str = "Q"
    """As ``struct`` calls it."""


_ARM64 = SignalAbi(
    mcontext_size=816,
    thread_state=16,
    registers=(*range(32), None),
    is_context_first=True,
    arguments=(0, 1, 2, 3, 4, 5),
    system_call=bytes.fromhex("011000d4"),
    number=(16, _SIGRETURN),
)
ABIS: Mapping[Arch, SignalAbi] = {
    Arch.ARM64: _ARM64,
    Arch.ARM64E: _ARM64,
    Arch.X86_64: SignalAbi(
        mcontext_size=712,
        thread_state=16,
        registers=(0, 3, 2, 1, 5, 4, 6, 7, *range(8, 16), None),
        is_context_first=False,
        arguments=(5, 4, 1, 2, 8, 9),
        system_call=bytes.fromhex("0f05"),
        number=(0, 0x2000000 + _SIGRETURN),
    ),
    Arch.I386: SignalAbi(
        mcontext_size=600,
        thread_state=12,
        # eax, ebx, ecx, edx, edi, esi, ebp, esp; ss and eflags, which no walk reads; eip.
        registers=(0, 3, 1, 2, 7, 6, 5, 4, 8, 8, None),
        is_context_first=False,
        arguments=(),
        system_call=bytes.fromhex("cd80"),
        number=(0, _SIGRETURN),
        siginfo_size=64,
        ucontext_size=32,
        word="I",
    ),
}


class SignalDelivery:
    """Delivers a signal before each instruction that runs for the first time.

    Every second signal is handled on the program's own ``alternate_stack``, if that is free.
    """

    def __init__(self, cpu: EmulatedCpu, symbols: Mapping[str, int]) -> None:
        self._cpu = cpu
        self._abi = ABIS[cpu.arch]
        self._trampoline = symbols[TRAMPOLINE]
        handler = symbols[HANDLER]
        self._handler = cpu.signed(handler, 0, 0) if cpu.arch is Arch.ARM64E else handler
        stack = symbols.get(STACK)
        self._alternate = None if stack is None else range(stack, stack + _STACK_SIZE)
        self._seen: set[int] = set()
        self._interrupted: list[tuple[Avma, UcContext]] = []
        self.delivered = 0

    def wants(self, address: Avma) -> bool:
        """Return whether the CPU is to stop before ``address`` and be diverted."""
        if self._is_sigreturn(address):
            return True
        return len(self._interrupted) < _MAX_NESTED and address not in self._seen

    def divert(self, address: Avma, stack: TrueStack) -> Avma:
        """Return the address at which the CPU, now at ``address``, continues instead.

        It ends a signal where ``address`` is at ``sigreturn``; else it delivers one.
        """
        if self._is_sigreturn(address):
            back, context = self._interrupted.pop()
            self._cpu.uc.context_restore(context)
            stack.resume()
            return back
        self._seen.add(address)
        self._deliver(address, stack)
        return Avma(self._trampoline)

    def _is_sigreturn(self, address: Avma) -> bool:
        size = len(self._abi.system_call)
        if bytes(self._cpu.uc.mem_read(address, size)) != self._abi.system_call:
            return False
        register, value = self._abi.number
        return self._cpu.read(register) == value

    def _deliver(self, address: Avma, stack: TrueStack) -> None:
        cpu, abi = self._cpu, self._abi
        raw = cpu.raw_registers()
        sp = cpu.sp
        self._interrupted.append((address, cpu.uc.context_save()))
        captured = partial(cpu.with_registers, raw, pc=address, sp=sp)
        stack.interrupt(TrueFrame(address, sp, captured, is_interrupted=True))
        self.delivered += 1
        top = self._stack_top(sp) - _RED_ZONE
        sizes = (abi.siginfo_size, abi.ucontext_size, abi.mcontext_size)
        if abi.is_context_first:
            information = (top - sum(sizes)) & -16
            context, saved = information + abi.siginfo_size, information + sum(sizes[:2])
            start = information
        else:
            context = top - abi.ucontext_size
            information = context - abi.siginfo_size
            saved = information - abi.mcontext_size
            room = 0 if abi.arguments else _ROOM_FOR_ARGUMENTS
            start = ((saved - room) & -16) - calcsize(abi.word)  # where a return address would be
        signal = 1 + self.delivered % _SIGNALS
        self._write(information, pack("<I", signal), abi.siginfo_size)
        end = pack(f"<2{abi.word}", abi.mcontext_size, saved)
        self._write(context, end.rjust(abi.ucontext_size, b"\0"), abi.ucontext_size)
        registers = cpu.register_set(raw)
        values = [address if n is None else registers.get(n) or 0 for n in abi.registers]
        state = bytes(abi.thread_state) + pack(f"<{len(values)}{abi.word}", *values)
        self._write(saved, state, abi.mcontext_size)
        cpu.write(cpu.arch.registers.sp, start)
        wanted = (self._handler, _UC_FLAVOR, signal, information, context, 0x70CE)
        if abi.arguments:
            for register, value in zip(abi.arguments, wanted, strict=True):
                cpu.write(register, value)
        else:
            on_stack = pack(f"<{1 + len(wanted)}{abi.word}", _NOWHERE, *wanted)
            self._write(start, on_stack, _ROOM_FOR_ARGUMENTS)

    def _stack_top(self, sp: int) -> int:
        alternate = self._alternate
        if alternate is None or sp in alternate or self.delivered % 2:
            return sp
        return alternate.stop + _RED_ZONE

    def _write(self, address: int, data: bytes, size: int) -> None:
        self._cpu.uc.mem_write(address, data.ljust(size, b"\0"))
