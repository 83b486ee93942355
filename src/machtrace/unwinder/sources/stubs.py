"""Rules for the linker's stubs, which no unwind table describes.

A stub jumps to a function of another image. With lazy binding, the first call jumps to a helper in
``__stub_helper``, which passes the symbol's number to the code at the section's start; that saves
what dyld needs on the stack and jumps into dyld. The forms are those that ld64 and lld write.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack

from machtrace.formats.macho.contents import MachOContents, is_encrypted
from machtrace.formats.macho.segments import S_SYMBOL_STUBS, Section
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.arch.arm64.registers import INSTRUCTION_SIZE
from machtrace.unwinder.code.effects import Effect, IndirectJump
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.rules import AtCfa, Claims, RegisterOffset, UnwindRule, link_register_rule

_STUB_SECTIONS = frozenset({"__stubs", "__auth_stubs", "__objc_stubs"})
_HELPER = "__stub_helper"
_ARM_HEADER = 16 * INSTRUCTION_SIZE
"""Bytes of the longest start of a helper section; it has six or seven instructions."""
_X86_HEADER = 32
_MAX_STUB_LENGTH = 32
"""Bytes of the longest stub; it has 26."""
_X86_HELPER = 10
_X86_PUSH_NUMBER = 0x68
_X86_PUSH_SIZE = 5


class StubRules:
    """The stubs of one image. A :class:`RuleSource`.

    It has rules for interrupted frames only, because stubs call nothing.
    """

    __slots__ = ("_arch", "_contents", "_sections")

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(self, contents: MachOContents, arch: Arch, sections: tuple[Section, ...]) -> None:
        self._contents = contents
        self._arch = arch
        self._sections = sections

    @classmethod
    def of_macho(cls, contents: MachOContents, arch: Arch) -> StubRules | None:
        """Find the stubs of a Mach-O; return None without stubs of a known form."""
        sections = tuple(
            section
            for section in contents.image.sections
            # Before helpers existed, i386 had stubs that dyld overwrote, in __IMPORT.
            if section.type == S_SYMBOL_STUBS
            or (section.segment_name == "__TEXT" and section.name in _STUB_SECTIONS)
            or (
                (section.segment_name, section.name) == ("__TEXT", _HELPER)
                and not is_encrypted(contents, section.address, section.size)
            )
        )
        return cls(contents, arch, sections) if sections else None

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`."""
        if not interrupted:
            return None
        for section in self._sections:
            if lookup in section:
                break
        else:
            return None
        find = self._in_helper if section.name == _HELPER else self._in_stub
        return find(section, lookup)

    def _in_helper(self, section: Section, lookup: Svma) -> UnwindRule | None:
        find = self._arm_helper if self._arch.has_link_register else self._x86_helper
        return find(section, lookup)

    def _in_stub(self, section: Section, lookup: Svma) -> UnwindRule | None:
        if self._arch.has_link_register:
            return link_register_rule(self._arch)
        if self._arch is Arch.I386 and section.type == S_SYMBOL_STUBS and section.reserved2:
            return self._i386_stub(section, lookup)
        return self._pushed(1)

    def origin(self, lookup: Svma) -> str:
        """Describe the section of stubs that ``lookup`` is in."""
        return next(
            (f"stub in {section.name}" for section in self._sections if lookup in section), ""
        )

    def _pushed(self, words: int) -> UnwindRule:
        """Return the rule with the return address and ``words - 1`` others on the stack."""
        word = self._arch.pointer_size
        return UnwindRule(RegisterOffset(self._arch.registers.sp, words * word), AtCfa(-word))

    def _arm_helper(self, section: Section, lookup: Svma) -> UnwindRule | None:
        """Return the rule in a helper of either arm architecture.

        Ld64 writes ARM, not Thumb, code.
        """
        size = min(section.size, _ARM_HEADER) & -INSTRUCTION_SIZE
        data = self._contents.read_svma(section.address, size)
        entry, effects_of = _arm64() if self._arch.is_arm64 else _arm()
        state = entry
        at = int(section.address)
        for word in unpack(f"<{size // INSTRUCTION_SIZE}I", data):
            if at + INSTRUCTION_SIZE > lookup:
                return state.rule()
            effects = effects_of(word)
            if effects and isinstance(effects[-1], IndirectJump):
                break
            for effect in effects:
                state = state.after(effect)
            at += INSTRUCTION_SIZE
        return link_register_rule(self._arch)

    def _i386_stub(self, section: Section, lookup: Svma) -> UnwindRule | None:
        """Return the rule in an i386 stub.

        Old ones compute their own address, and have their own helpers after their jumps. Only that
        jump leads to the helper, so a stub is straight code.
        """
        from machtrace.unwinder.arch.x86.decoder import decode
        from machtrace.unwinder.arch.x86.registers import MODE_32

        into = min((lookup - section.address) % section.reserved2, _MAX_STUB_LENGTH)
        start = Svma(lookup - into)
        code = bytes(self._contents.read_svma(start, min(_MAX_STUB_LENGTH, section.end - start)))
        state, at = MODE_32.entry, 0
        while at < into:
            size, effects = decode(code, at, MODE_32)
            for effect in effects:
                state = state.after(effect)
            at += size
        return state.rule() if at == into else None

    def _x86_helper(self, section: Section, lookup: Svma) -> UnwindRule | None:
        size = min(section.size, _X86_HEADER)
        header = bytes(self._contents.read_svma(section.address, size))
        at = lookup - section.address
        steps = _x86_header(header)
        if steps is None:
            return None
        pushes, end = steps
        if at < end:
            # The helper has pushed a number above the return address before it jumps here.
            return self._pushed(2 + sum(push < at for push in pushes))
        while end < size and header[end] != _X86_PUSH_NUMBER:
            end += 1  # padding
        if at < end:
            return None
        return self._pushed(2 if (at - end) % _X86_HELPER >= _X86_PUSH_SIZE else 1)


_EffectsOf = Callable[[int], tuple[Effect, ...]]


def _arm64() -> tuple[FrameState, _EffectsOf]:
    from machtrace.unwinder.arch.arm64.decoder import decode
    from machtrace.unwinder.arch.arm64.registers import ENTRY

    return ENTRY, lambda word: (decode(word),)


def _arm() -> tuple[FrameState, _EffectsOf]:
    from machtrace.unwinder.arch.arm32.arm import decode
    from machtrace.unwinder.arch.arm32.registers import ARM_DARWIN

    return FrameState.at_entry(ARM_DARWIN, with_volatile=False), lambda word: decode(word).effects


_X86_STEPS = (
    (b"\x4c\x8d\x1d", 7, False),  # lea r11, [rip + …]
    (b"\x41\x53", 2, True),  # push r11
    (b"\x68", 5, True),  # push the address of dyld's cache
)
_X86_JUMP = b"\xff\x25"
_X86_JUMP_SIZE = 6


def _x86_header(code: bytes) -> tuple[list[int], int] | None:
    """Return where a helper section's start pushes, and ends; None for an unknown form."""
    pushes: list[int] = []
    at = 0
    while not code.startswith(_X86_JUMP, at):
        for opcode, size, is_push in _X86_STEPS:
            if code.startswith(opcode, at):
                if is_push:
                    pushes.append(at)
                at += size
                break
        else:
            return None
    return pushes, at + _X86_JUMP_SIZE
