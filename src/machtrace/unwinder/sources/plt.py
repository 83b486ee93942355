"""Rules for an ELF image's stubs, where call-frame information omits them, as lld's does.

A stub of the procedure linkage table jumps to the function of another image. With lazy binding the
first call takes another path: the stub pushes a number for the loader, and code at the section's
start pushes what the loader needs and jumps into it (x86-64 psABI and i386 psABI, section 5.2; *ELF
for the Arm 64-bit Architecture*, "Program Linkage Table").
"""

from __future__ import annotations

from struct import unpack

from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.headers import Section
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import AtCfa, Claims, RegisterOffset, UnwindRule, link_register_rule

_SECTIONS = frozenset({".plt", ".plt.sec", ".plt.got", ".iplt"})
_X86 = frozenset({Arch.X86_64, Arch.I386})
_X86_STUBS = (8, 16, 32)
"""Bytes in a stub, by its section's ``sh_entsize``."""
_X86_STUB = 16
"""The default where the section states none."""

_X86_INSTRUCTIONS = (
    # First bytes, size, and whether it pushes a word; jumps have run when they are left.
    (b"\x68", 5, True),
    (b"\xff\x35", 6, True),
    (b"\xff\xb3", 6, True),
    (b"\xf3\x0f\x1e", 4, False),
    (b"\xf2\xff\x25", 7, False),
    (b"\xff\x25", 6, False),
    (b"\xff\xa3", 6, False),
    (b"\xf2\xe9", 6, False),
    (b"\xe9", 5, False),
)
_X86_RESOLVER = (b"\xff\x35", b"\xff\xb3")
"""The first bytes of the code at the section's start: a push from the global offset table."""

_ARM64_UNCHANGED = tuple(range(16))
"""The caller-saved registers besides x16 and x17, which stubs use."""
_ARM64_INSTRUCTION = 4
_ARM64_RESOLVER = 32
"""Bytes of the code at the section's start: at most eight instructions."""
_ARM64_PUSH = 0xA9BF7BF0
"""``stp x16, x30, [sp, #-16]!``"""
_ARM64_JUMP = 0xD61F0220
"""``br x17``, which ends the start and every stub."""


class LinkageStubRules:
    """The stubs of one image. A :class:`~machtrace.unwinder.rules.RuleSource`.

    It has rules for interrupted frames only, because stubs call nothing. Call-frame information
    must be queried first.
    """

    __slots__ = ("_arch", "_contents", "_sections")

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(self, contents: ElfContents, sections: tuple[Section, ...]) -> None:
        self._contents = contents
        self._arch = contents.image.arch
        self._sections = sections

    @classmethod
    def of_elf(cls, contents: ElfContents) -> LinkageStubRules | None:
        """Find the stubs; return None without section headers, or stubs of a known form.

        Raises nothing.
        """
        image = contents.image
        known = image.arch in _X86 or image.arch.is_arm64
        if not known or not image.layout.little_endian:
            return None
        sections = tuple(s for s in image.sections if s.name in _SECTIONS and s.is_executable)
        return cls(contents, sections) if sections else None

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`~machtrace.unwinder.rules.RuleSource.rule_for`."""
        if not interrupted:
            return None
        for section in self._sections:
            if section.address <= lookup < section.end:
                find = self._x86 if self._arch in _X86 else self._arm64
                return find(section, lookup)
        return None

    def unchanged_at(self, lookup: Svma, /, *, interrupted: bool) -> tuple[int, ...]:
        """See :class:`~machtrace.unwinder.rules.KnowsScratchRegisters`; of AArch64 alone."""
        is_stub = any(section.address <= lookup < section.end for section in self._sections)
        return _ARM64_UNCHANGED if interrupted and is_stub and self._arch.is_arm64 else ()

    def _x86(self, section: Section, lookup: Svma) -> UnwindRule | None:
        """Count the words pushed since the stub's entry."""
        stub = section.entry_size if section.entry_size in _X86_STUBS else _X86_STUB
        into = (lookup - section.address) % stub
        start = Svma(lookup - into)
        code = bytes(self._contents.read_svma(start, min(stub, section.end - start)))
        # A stub jumps to the section's start after it has pushed its number.
        words = 2 if code.startswith(_X86_RESOLVER) else 1
        at = 0
        while at < into:
            match = next((i for i in _X86_INSTRUCTIONS if code.startswith(i[0], at)), None)
            if match is None:
                return None
            _, size, pushes = match
            at += size
            words += pushes
        pointer = self._arch.pointer_size
        sp = self._arch.registers.sp
        return UnwindRule(RegisterOffset(sp, words * pointer), AtCfa(-pointer))

    def _arm64(self, section: Section, lookup: Svma) -> UnwindRule:
        """Search for the one instruction that pushes, which only the section's start has.

        A stub after a short start differs from it: it is entered by a call, and follows the jump
        that ends the start.
        """
        into = min(lookup - section.address, _ARM64_RESOLVER) // _ARM64_INSTRUCTION
        before = unpack(
            f"<{into}I", self._contents.read_svma(section.address, into * _ARM64_INSTRUCTION)
        )
        if _ARM64_PUSH in before and _ARM64_JUMP not in before:
            sp = self._arch.registers.sp
            return UnwindRule(RegisterOffset(sp, 16), AtCfa(-8))
        return link_register_rule(self._arch)
