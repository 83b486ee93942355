"""Rules for Darwin's ``_sigtramp``, which calls signal handlers.

The kernel saves the registers that a signal interrupted in a ``struct mcontext``, and starts
``_sigtramp`` of libsystem_platform with a pointer to the ``ucontext`` that leads to it. Usually no
unwind table describes it: on arm64 there is none, and shared caches drop that of x86-64. Sources:
xnu, ``bsd/dev/arm/unix_signal.c`` and ``bsd/dev/i386/unix_signal.c`` (``sendsig``); the macOS
headers ``sys/_types/_ucontext.h``, ``i386/_mcontext.h`` and ``arm/_mcontext.h``; libplatform,
``_sigtramp``.
"""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.formats.dwarf.operations import BREG0, DEREF, PLUS_UCONST
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.tables.exports_trie import find_export
from machtrace.frozen import dataclass
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import (
    AtExpression,
    Claims,
    RegisterOffset,
    RuleSource,
    UnwindRule,
)

SYMBOL = b"__sigtramp"
_HOME = "libsystem_platform.dylib"
_SYMBOL_LIMIT = 1 << 14
"""Symbols of the largest table searched for one that is not exported; the library has some
hundreds."""
_MAX_LENGTH = 0x400
"""Bytes of the longest function; it has about 100."""


@dataclass(frozen=True, slots=True)
class _SavedRegisters:
    """The location of the registers that the kernel saved."""

    context: tuple[int, ...]
    """The path from the CFA (x86-64: from the ``ucontext``) to ``uc_mcontext``: add, load, add,
    load …"""
    thread_state: int
    """The offset of the registers in the ``mcontext``: after the exception state."""
    registers: tuple[int | None, ...]
    """DWARF numbers in the order of the thread state; None is a register that is not tracked."""
    pc: int
    """The program counter's index in that order."""
    word: int

    def rule(self, cfa: RegisterOffset, start: bytes) -> UnwindRule:
        """Return the rule.

        ``start`` is an expression that computes the start of :attr:`context`.
        """
        for offset in self.context:
            start += _plus(offset) + bytes((DEREF,))

        def saved(index: int) -> AtExpression:
            return AtExpression(start + _plus(self.thread_state + index * self.word))

        registers = [
            (number, saved(at)) for at, number in enumerate(self.registers) if number is not None
        ]
        registers.sort(key=lambda saved_register: saved_register[0])
        return UnwindRule(cfa, saved(self.pc), tuple(registers), is_signal_frame=True)


def _plus(offset: int) -> bytes:
    encoded = bytearray((PLUS_UCONST,))
    while offset > 0x7F:  # noqa: PLR2004 - unsigned LEB128
        encoded.append(offset & 0x7F | 0x80)
        offset >>= 7
    encoded.append(offset)
    return bytes(encoded)


_MCONTEXT_64, _MCONTEXT_32 = 48, 28
"""Offsets of ``uc_mcontext`` in a ``ucontext``."""
_SIGINFO_64 = 104

# At the entry of ``_sigtramp`` the stack pointer is at ``struct user_sigframe64``.
_ARM64 = _SavedRegisters((_SIGINFO_64 + _MCONTEXT_64,), 16, (*range(32), None), 32, 8)
# At ``struct user_sigframe32``, which starts with a pointer to the ``ucontext``.
_ARM = _SavedRegisters((0, _MCONTEXT_32), 12, (*range(15), None), 15, 4)
# The fifth argument. eax, ebx, ecx, edx, edi, esi, ebp, esp, ss, eflags, eip.
_I386 = _SavedRegisters((16, _MCONTEXT_32), 12, (0, 3, 1, 2, 7, 6, 5, 4, None, None, None), 10, 4)
# rax, rbx, rcx, rdx, rdi, rsi, rbp, rsp, r8 to r15, rip.
_X86_64 = _SavedRegisters((_MCONTEXT_64,), 16, (0, 3, 2, 1, 5, 4, 6, 7, *range(8, 16), None), 16, 8)

_BY_FRAME = {
    Arch.ARM64: _ARM64,
    Arch.ARM64E: _ARM64,
    Arch.ARM: _ARM,
    Arch.ARMV7: _ARM,
    Arch.ARMV7S: _ARM,
    Arch.ARMV7K: _ARM,
    Arch.I386: _I386,
}
_ARGUMENT, _SAVED = 8, 3
"""x86-64: ``_sigtramp`` receives the ``ucontext`` in r8, and copies it to rbx."""
_SAVING = bytes.fromhex("4c89c3")
"""``mov rbx, r8``"""


class DarwinSignalRules:
    """The ``_sigtramp`` of one Mach-O. A :class:`RuleSource` that must be queried first."""

    __slots__ = ("_arch", "_bounds", "_contents", "_frames")

    trust = FrameTrust.SIGNAL_FRAME
    claims = Claims.EVERYWHERE

    def __init__(
        self,
        contents: MachOContents,
        arch: Arch,
        bounds: range,
        frames: Sequence[RuleSource],
    ) -> None:
        """``bounds``: of the function, in Svmas; ``frames``: the sources of its canonical frame."""
        self._contents = contents
        self._arch = arch
        self._bounds = bounds
        self._frames = tuple(frames)

    @classmethod
    def of_macho(
        cls, contents: MachOContents, arch: Arch, frames: Sequence[RuleSource]
    ) -> DarwinSignalRules | None:
        """Find the function; return None if the image has no ``_sigtramp``.

        Args:
            contents: the image.
            arch: its architecture.
            frames: the sources of rules for its canonical frame address.

        Raises:
            FormatError: the exports or symbols are malformed.
            MemoryReadError: they were not captured.
        """
        if arch not in _BY_FRAME and arch not in (Arch.X86_64, Arch.X86_64H):
            return None
        start = _find(contents)
        if start is None:
            return None
        # Imported late, because it imports numpy.
        from machtrace.unwinder.functions.bounds import FunctionBounds

        bounds = FunctionBounds.of_macho(contents).at(start)
        end = start + _MAX_LENGTH if bounds is None else min(bounds[1], start + _MAX_LENGTH)
        return cls(contents, arch, range(start, end), frames)

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`."""
        if lookup not in self._bounds:
            return None
        if self._arch in (Arch.X86_64, Arch.X86_64H):
            return self._x86_64(lookup)
        for source in self._frames:
            rule = source.rule_for(lookup, interrupted=interrupted)
            if rule is not None and isinstance(rule.cfa, RegisterOffset):
                return _BY_FRAME[self._arch].rule(rule.cfa, b"")
        return None

    def _x86_64(self, lookup: Svma) -> UnwindRule | None:
        start = Svma(self._bounds.start)
        code = bytes(self._contents.read_svma(start, len(self._bounds)))
        keeping = code.find(_SAVING)
        if keeping < 0:
            return None
        is_kept = lookup - start >= keeping + len(_SAVING)
        context = bytes((BREG0 + (_SAVED if is_kept else _ARGUMENT), 0))
        return _X86_64.rule(RegisterOffset(self._arch.registers.sp, 0), context)


def _find(contents: MachOContents) -> Svma | None:
    """Return the start of ``_sigtramp``; local symbols are searched only in its library."""
    offset = find_export(contents, SYMBOL)
    image = contents.image
    if offset is not None:
        return Svma(image.header_svma + offset)
    if not (image.install_name or contents.source).endswith(_HOME):
        return None
    from machtrace.formats.macho.tables.symtab import parse_symbols

    symbols = parse_symbols(contents)
    if len(symbols) > _SYMBOL_LIMIT:
        return None
    name = SYMBOL.decode()
    for row in symbols.is_code.nonzero()[0].tolist():
        if symbols.name(row) == name:
            return Svma(int(symbols.n_value[row]))
    return None
