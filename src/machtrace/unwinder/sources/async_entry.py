"""The location of a Swift async function's context while no frame record has it.

The context is an argument in a register of its own: x22, or r14 on x86-64 (Swift's *Calling
Convention*; LLVM's ``swiftasync``). The prologue sets the tag in the frame pointer, stores the
record, and stores the context below it; only then the stack shows it. The epilogue removes the
record, and jumps to the caller's continuation while the stored context is still below sp. Functions
without a frame are not tagged, and have no rules here. The instructions are those of LLVM's frame
lowering (``AArch64PrologueEpilogue.cpp``, ``X86FrameLowering.cpp``:
``SwiftAsyncFramePointerMode``).
"""

from __future__ import annotations

from dataclasses import replace
from struct import unpack

from machtrace.errors import MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import ImageContents
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.rules import (
    AsyncContext,
    AtCfa,
    Claims,
    FunctionAt,
    InRegister,
    RuleSource,
    UnwindRule,
)
from machtrace.unwinder.step_budget import DrawsOnBudgets, WalkBudgets

_BEGINNING_SIZE = 96
"""Bytes at a function's start: up to ten pairs of saved registers precede the context."""

_ARM64_TAGGING = frozenset({0xB24403BD, 0xAA1003BD})
"""``orr x29, x29, #1 << 60``; ``orr x29, x29, x16``, where the system defines that word as the
tag."""
_ARM64_STORING = ((0xFFC003FF, 0xF90003F6), (0xFFE00FFF, 0xF80003F6))
"""``str x22, [sp, #n]``; ``stur x22, [sp, #n]``: a mask, and the bits under it."""
_ARM64_NO_CONTEXT = (0xFFC003FF, 0xF90003FF)
"""``str xzr, [sp, #n]``: the function is tagged, but has no context."""
_X86_TAGGING = (b"\x48\x0f\xba\xed\x3c", b"\x48\x0b\x2d")
"""``bts rbp, 60``; ``or rbp, [rip + …]``, the same word."""
_X86_STORING = b"\x55\x41\x56"
"""``push rbp`` and ``push r14``; without a context it is ``push 0``."""
CONTEXT_REGISTERS = {Arch.ARM64: 22, Arch.ARM64E: 22, Arch.X86_64: 14, Arch.X86_64H: 14}
"""DWARF numbers, for architectures with tagged async functions."""


class AsyncEntryRules:
    """Instruction analysis that adds async contexts. A :class:`RuleSource`."""

    __slots__ = ("_arch", "_contents", "_function_at", "_stored", "inner")

    trust = FrameTrust.PROLOGUE
    claims = Claims.EVERYWHERE

    def __init__(
        self, inner: RuleSource, contents: ImageContents, arch: Arch, function_at: FunctionAt
    ) -> None:
        """``inner``: the analysis; ``arch``: one with tagged async functions."""
        self.inner = inner
        self._contents = contents
        self._arch = arch
        self._function_at = function_at
        self._stored: dict[Svma, int | None] = {}

    def draw_on(self, budgets: WalkBudgets) -> None:
        """See :class:`~machtrace.unwinder.step_budget.DrawsOnBudgets`."""
        if isinstance(self.inner, DrawsOnBudgets):
            self.inner.draw_on(budgets)

    def rule_for(self, lookup: Svma, /, *, interrupted: bool) -> UnwindRule | None:
        """See :meth:`RuleSource.rule_for`."""
        rule = self.inner.rule_for(lookup, interrupted=interrupted)
        if rule is None or not interrupted:
            return rule
        bounds = self._function_at(lookup)
        stored = None if bounds is None else self._stored_behind(*bounds)
        if bounds is None or stored is None:
            return rule
        fp = self._arch.registers.fp
        into = lookup - bounds[0]
        if into < stored:
            context = AsyncContext(InRegister(CONTEXT_REGISTERS[self._arch]), into)
        elif any(number == fp and isinstance(at, AtCfa) for number, at in rule.registers):
            return rule  # the record has the context
        else:
            context = AsyncContext(AtCfa(-3 * self._arch.pointer_size), None)
        return replace(rule, async_context=context)

    def _stored_behind(self, start: Svma, end: Svma) -> int | None:
        if start not in self._stored:
            size = min(end - start, _BEGINNING_SIZE)
            try:
                code = bytes(self._contents.read_svma(start, size))
            except MemoryReadError:
                code = b""
            find = _arm64_stored_behind if self._arch.is_arm64 else _x86_stored_behind
            self._stored[start] = find(code)
        return self._stored[start]


def _arm64_stored_behind(code: bytes) -> int | None:
    """Return the offset after the store of the context; None for ordinary functions."""
    words = unpack(f"<{len(code) // 4}I", code[: len(code) & -4])
    tagged = next((at for at, word in enumerate(words) if word in _ARM64_TAGGING), None)
    if tagged is None:
        return None
    for at, word in enumerate(words[tagged:], tagged + 1):
        if any(word & counts == bits for counts, bits in _ARM64_STORING):
            return 4 * at
        if word & _ARM64_NO_CONTEXT[0] == _ARM64_NO_CONTEXT[1]:
            return None
    return None


def _x86_stored_behind(code: bytes) -> int | None:
    """Return the same for x86-64."""
    tagged = next((at for tag in _X86_TAGGING if (at := code.find(tag)) >= 0), None)
    if tagged is None:
        return None
    stored = code.find(_X86_STORING, tagged)
    return None if stored < 0 else stored + len(_X86_STORING)
