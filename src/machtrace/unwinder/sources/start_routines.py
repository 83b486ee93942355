"""Rules for code that nobody called: an ELF image's entry point, and what a new thread runs first.

glibc marks both in its call-frame information (an undefined return address); musl and other
libraries do not. Their code shows it: the kernel jumps to the entry point, and a thread's first
function is called behind the ``clone`` system call that created the thread and before the ``exit``
that ends it with the function's result.
"""

from __future__ import annotations

from functools import cached_property

from machtrace.errors import MemoryReadError
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.structs import ElfType
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import Claims, Lost, RegisterOffset, UnwindRule

MAX_ENTRY_LENGTH = 64
"""Bytes up to the first call or jump of an entry point."""
_BEHIND = 32
"""Bytes before the call of a thread's first function that may hold the ``clone`` system call."""
_X86_CLONED = bytes.fromhex("0f05"), bytes.fromhex("31ed")
"""``syscall``, and in the child ``xor ebp, ebp``: the end of the chain of frame pointers."""
_X86_EXITS = (
    bytes.fromhex("89c7 31c0 b03c 0f05"),  # mov edi, eax; xor eax, eax; mov al, 60; syscall
    bytes.fromhex("89c7 b83c000000 0f05"),
)
_ARM64_CLONED = (bytes.fromhex("010000d4"),)  # svc #0
_ARM64_EXITS = (bytes.fromhex("a80b80d2 010000d4"),)  # mov x8, #93; svc #0
_THREAD_STARTS = {
    Arch.X86_64: (_X86_CLONED, _X86_EXITS),
    Arch.ARM64: (_ARM64_CLONED, _ARM64_EXITS),
}


class StartRoutineRules:
    """The start routines of one ELF image. A :class:`~machtrace.unwinder.rules.RuleSource`."""

    __slots__ = ("__dict__", "_arch", "_contents", "_rule")

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(self, contents: ElfContents, arch: Arch) -> None:
        self._contents = contents
        self._arch = arch
        self._rule = UnwindRule(RegisterOffset(arch.registers.sp, 0), Lost())

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`~machtrace.unwinder.rules.RuleSource.rule_for`. Raises nothing."""
        if lookup in self._entry:
            return self._rule
        is_start = not interrupted and self._starts_a_thread(lookup + 1)
        return self._rule if is_start else None

    @cached_property
    def _entry(self) -> range:
        """The entry point, up to its first call or jump."""
        image = self._contents.image
        entry = image.header.entry
        if not entry or image.type is ElfType.RELOCATABLE:
            return range(0)
        try:
            code = bytes(self._contents.read_svma(Svma(entry), MAX_ENTRY_LENGTH))
        except MemoryReadError:
            return range(0)
        return range(entry, entry + self._straight(code))

    def _straight(self, code: bytes) -> int:
        """Return the bytes up to the first call or jump, with it; 0 without one."""
        if self._arch.is_arm64:
            for at in range(0, len(code), 4):
                # Branches, exceptions and system instructions.
                if code[at + 3] & 0x1C == 0x14:  # noqa: PLR2004 - the encoding's op0
                    return at + 4
            return 0
        if self._arch.is_arm:
            return 0
        from machtrace.unwinder.arch.x86.analysis import MODES
        from machtrace.unwinder.arch.x86.decoder import Decoder
        from machtrace.unwinder.code.effects import Call, IndirectJump, Jump, Return, Trap

        decoder, at = Decoder(MODES[self._arch]), 0
        while at < len(code):
            length, effects = decoder.decode(code, at)
            at += length
            if any(
                isinstance(effect, (Call, IndirectJump, Jump, Return, Trap)) for effect in effects
            ):
                return at
        return 0

    def _starts_a_thread(self, return_address: int) -> bool:
        start = _THREAD_STARTS.get(self._arch)
        if start is None:
            return False
        cloned, exits = start
        try:
            longest = max(map(len, exits))
            after = bytes(self._contents.read_svma(Svma(return_address), longest))
            if not after.startswith(exits):
                return False
            before = bytes(self._contents.read_svma(Svma(return_address - _BEHIND), _BEHIND))
        except MemoryReadError:
            return False
        return all(code in before for code in cloned)
