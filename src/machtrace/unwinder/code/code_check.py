"""Checks whether a function's code confirms what tables state of a call in it.

Unwind tables can be stale, hand-written or damaged, and nothing in them shows it. The code made the
frame, so it is analysed, too: first the function's first instructions, which suffice for nearly
every function, then all paths from its start to the call.

Two shortcuts make this cheap. Most functions begin by making a frame record; between that and the
epilogue the frame pointer leads to the caller. And compilers' tables ignore assembly inside of a
function, which may push and call or make another frame record: only a function whose code contains
such an instruction before the call is followed.
"""

from __future__ import annotations

from struct import unpack
from typing import Protocol

from machtrace.errors import FormatError, MemoryReadError
from machtrace.model.address import Svma
from machtrace.model.arch import Arch
from machtrace.model.memory import ImageContents
from machtrace.model.stack import FrameTrust
from machtrace.unwinder.code.calling_convention import CallerValue, FromCfa
from machtrace.unwinder.code.frame_state import FrameState
from machtrace.unwinder.rules import (
    AtCfa,
    HasFunctions,
    InRegister,
    Objection,
    RegisterOffset,
    UnwindRule,
)

BEGINNING_SIZE = 64
"""Bytes at a function's start: seven pairs of registers and signing precede the frame record."""
BEGINNING_INSTRUCTIONS = 24
"""Instructions at a function's start that are followed on their own: ten pairs of registers, and
the allocation of the frame."""
SIZE_BEFORE_CALL = 128
"""Bytes before a call that are searched for instructions that move the frame."""
CHECKED_SIZE = 1 << 11
"""Bytes of the largest function that is followed to check a table; interpreters' would delay the
first stack."""
EXPLAINED_SIZE = 1 << 16
"""Bytes of the largest function that is followed if its own rule is needed: to explain a frame, or
because a table's depends on a register that was lost."""
CACHED_FUNCTIONS = 1 << 14
"""Functions whose frame records are cached; a full cache is cleared."""

# AArch64: a mask, and the bits under it.
_PAIR_MASK = 0xFFC07FFF
_PAIR_AT, _PAIR_BELOW = 0xA9007BFD, 0xA9807BFD
"""``stp x29, x30, [sp, #n]``; ``stp x29, x30, [sp, #-n]!``, which makes sp the pair's address."""
_LOWERS_SP_MASK, _LOWERS_SP = 0xFF8003FF, 0xD10003FF
"""``sub sp, sp, #n``."""
_SETS_FP_MASK, _SETS_FP = 0xFFC003FF, 0x910003FD
"""``add x29, sp, #n``, which is ``mov x29, sp`` if n is 0."""
_PUSH_MASK, _PUSH = 0x3B200FE0, 0x38000FE0 & 0x3B200FE0
"""``str [sp, #-n]!`` of any size; loads match, too."""
_PUSHES_PAIR_MASK, _PUSHES_PAIR = 0x3B8003E0, 0x298003E0
"""``stp [sp, #-n]!``; loads match, too."""
_BRANCH_MASK, _BRANCH = 0x1C000000, 0x14000000
"""Branches, calls and returns, traps and system instructions."""
_HINT_MASK, _HINT = 0xFFFFF01F, 0xD503201F
"""The system instructions that functions begin with: signing, landing pads."""

_ALLOCATES_MASK, _ALLOCATES = 0xFFE0E3FF, 0xCB2063FF
"""``sub sp, sp, xN, uxtx #n``."""
_WORD = 4
_X86_ALLOCATES = b"\x48\x29\xc4"
"""``sub rsp, rax``."""
_X86_CALL_SIZE = 5
_X86_RECORD = {
    Arch.X86_64: (b"\x55\x48\x89\xe5", b"\x55\x48\x8b\xec"),
    Arch.X86_64H: (b"\x55\x48\x89\xe5", b"\x55\x48\x8b\xec"),
    Arch.I386: (b"\x55\x89\xe5", b"\x55\x8b\xec"),
}
"""``push rbp`` and ``mov rbp, rsp``, which has two encodings; on i386 ``ebp`` and ``esp``."""
_X86_SETS_FP = (b"\x89\xe5", b"\x8b\xec")
"""``mov ebp, esp``, in two encodings; on x86-64 a prefix precedes them."""


def follows_record(rule: UnwindRule, arch: Arch) -> bool:
    """Return whether ``rule`` is that of a frame record, whatever else it restores."""
    cfa, word, fp = rule.cfa, arch.saved_register_size, arch.registers.fp
    return (
        isinstance(cfa, RegisterOffset)
        and (cfa.register, cfa.offset) == (fp, 2 * word)
        and rule.return_address == AtCfa(-word)
        and (fp, AtCfa(-2 * word)) in rule.registers
    )


def record_end(code: bytes | memoryview, arch: Arch) -> int | None:
    """Return the offset after the instructions that make a function's frame record.

    ``code`` is the function's first :data:`BEGINNING_SIZE` bytes or less. None if no record is
    recognised, which does not mean that there is none.
    """
    if arch.is_arm64:
        return _arm64_record_end(code)
    beginning = bytes(code[:4])
    for record in _X86_RECORD.get(arch, ()):
        if beginning.startswith(record):
            return len(record)
    return None


def _arm64_record_end(code: bytes | memoryview) -> int | None:
    pair_offset: int | None = None
    """From sp to the stored pair."""
    for index, word in enumerate(_words(code)):
        if word & _BRANCH_MASK == _BRANCH and word & _HINT_MASK != _HINT:
            return None
        pair = word & _PAIR_MASK
        if pair == _PAIR_AT:
            pair_offset = (word >> 15 & 0x7F) * 8
        elif pair == _PAIR_BELOW:
            pair_offset = 0
        elif word & _LOWERS_SP_MASK == _LOWERS_SP:
            pair_offset = None
        elif word & _SETS_FP_MASK == _SETS_FP:
            return 4 * index + 4 if pair_offset == word >> 10 & 0xFFF else None
    return None


def may_move_frame(code: bytes | memoryview, rule: UnwindRule, arch: Arch) -> bool:
    """Return whether ``code``, which leads to a call, may move the register that the CFA is from.

    On arm64, ``code`` must consist of whole instructions. True for all x86 code with a CFA from sp.
    """
    cfa, registers = rule.cfa, arch.registers
    if not isinstance(cfa, RegisterOffset):
        return False
    if cfa.register == registers.fp:
        if arch.is_arm64:
            return any(word & _SETS_FP_MASK == _SETS_FP for word in _words(code))
        return any(move in bytes(code) for move in _X86_SETS_FP)
    if cfa.register != registers.sp:
        return False
    return not arch.is_arm64 or any(_moves_sp(word) for word in _words(code))


def _words(code: bytes | memoryview) -> tuple[int, ...]:
    count = len(code) // 4
    return unpack(f"<{count}I", code[: 4 * count])


def _moves_sp(word: int) -> bool:
    return (
        word & _LOWERS_SP_MASK == _LOWERS_SP
        or word & _PUSH_MASK == _PUSH
        or word & _PUSHES_PAIR_MASK == _PUSHES_PAIR
    )


class CodeAnalysis(HasFunctions, Protocol):
    """Instruction analysis that can check calls.

    Its methods raise MemoryReadError if the function's instructions were not captured.
    """

    def state_behind_start(self, lookup: Svma, count: int, /) -> FrameState | None:
        """Return the state after a function's first straight run of at most ``count`` instructions.

        The function is the one that holds ``lookup``; None if ``lookup`` is in that run.
        """
        ...

    def state_in_call(self, lookup: Svma, most: int, /) -> FrameState | None:
        """Return the state while the call that holds ``lookup`` is in progress.

        None if it is unknown, if the function has more than ``most`` bytes, or if some path leaves
        it with its caller's frame changed.
        """
        ...


class CodeCheck:
    """Checks the rules that tables have for calls in an image.

    A :class:`~machtrace.unwinder.rules.TableCheck`.
    """

    __slots__ = ("_analysis", "_arch", "_contents", "_record_ends")

    trust = FrameTrust.PROLOGUE

    def __init__(self, analysis: CodeAnalysis, contents: ImageContents, arch: Arch) -> None:
        """``analysis`` is of ``contents``, an image of ``arch``."""
        self._analysis = analysis
        self._contents = contents
        self._arch = arch
        self._record_ends: dict[Svma, int | None] = {}
        """:func:`record_end` by function start."""

    def objection(self, lookup: Svma, rule: UnwindRule, /) -> Objection | None:
        """See :meth:`~machtrace.unwinder.rules.TableCheck.objection`."""
        try:
            is_confirmed = self._is_confirmed_at_start(lookup, rule)
            if is_confirmed and not self._may_move_later(lookup, rule):
                return None
            is_unfinished = not is_confirmed and self._allocates_behind(lookup)
            if is_unfinished:
                state = self._state_in_first_call(lookup)
            else:
                state = self._analysis.state_in_call(lookup, CHECKED_SIZE)
        except (FormatError, MemoryReadError):
            return None
        if state is None or verdict(state, rule) is not False:
            return None
        own = state.rule()
        return None if own is None else Objection(own, is_confirmed or is_unfinished)

    def _allocates_behind(self, lookup: Svma) -> bool:
        """Return whether a direct call probes the stack for a frame that is allocated next."""
        length = _WORD if self._arch.is_arm64 else len(_X86_ALLOCATES)
        code = bytes(self._contents.read_svma(Svma(self._call_at(lookup, end=True)), length))
        if self._arch.is_arm64:
            return int.from_bytes(code, "little") & _ALLOCATES_MASK == _ALLOCATES
        return code == _X86_ALLOCATES

    def _state_in_first_call(self, lookup: Svma) -> FrameState | None:
        """Return the state in a call that nothing but straight code precedes; else None."""
        behind_start = self._analysis.state_behind_start
        before = Svma(self._call_at(lookup, end=False) - 1)
        if behind_start(before, BEGINNING_INSTRUCTIONS) is not None:
            return None
        return behind_start(lookup, BEGINNING_INSTRUCTIONS)

    def _call_at(self, lookup: Svma, *, end: bool) -> int:
        """Return the start, or the end, of the direct call that holds ``lookup``, its last byte."""
        if self._arch.is_arm64:
            return (lookup & -_WORD) + _WORD * end
        return lookup + 1 if end else lookup + 1 - _X86_CALL_SIZE

    def _is_confirmed_at_start(self, lookup: Svma, rule: UnwindRule) -> bool:
        if follows_record(rule, self._arch) and self._has_record(lookup):
            return True
        state = self._analysis.state_behind_start(lookup, BEGINNING_INSTRUCTIONS)
        return state is not None and bool(verdict(state, rule))

    def _may_move_later(self, lookup: Svma, rule: UnwindRule) -> bool:
        """Return whether assembly between start and call may move the CFA's register."""
        bounds = self._analysis.function_at(lookup)
        if bounds is None or bounds[1] - bounds[0] > CHECKED_SIZE:
            return False
        start = bounds[0] + (self._record_ends.get(bounds[0]) or 0)
        start = max(start, lookup - SIZE_BEFORE_CALL)
        start += (bounds[0] - start) % 4 if self._arch.is_arm64 else 0
        code = self._contents.read_svma(Svma(start), max(0, lookup - start))
        return may_move_frame(code, rule, self._arch)

    def rule_at(self, lookup: Svma, /) -> UnwindRule | None:
        """See :meth:`~machtrace.unwinder.rules.TableCheck.rule_at`."""
        try:
            state = self._analysis.state_in_call(lookup, EXPLAINED_SIZE)
        except (FormatError, MemoryReadError):
            return None
        return None if state is None else state.rule()

    def origin(self, lookup: Svma, /) -> str:
        """See :meth:`~machtrace.unwinder.rules.TableCheck.origin`."""
        return origin_in_code(self._analysis, lookup)

    def _has_record(self, lookup: Svma) -> bool:
        bounds = self._analysis.function_at(lookup)
        if bounds is None:
            return False
        start, end = bounds
        if start not in self._record_ends:
            if len(self._record_ends) >= CACHED_FUNCTIONS:
                self._record_ends.clear()
            code = self._contents.read_svma(start, min(BEGINNING_SIZE, end - start))
            self._record_ends[start] = record_end(code, self._arch)
        made_at = self._record_ends[start]
        return made_at is not None and lookup - start >= made_at


def verdict(state: FrameState, rule: UnwindRule) -> bool | None:
    """Return whether ``rule`` recovers the caller of ``state``; None if inconclusive."""
    if not isinstance(rule.cfa, RegisterOffset):
        return None
    base, recovery = state.value(rule.cfa.register), rule.return_address
    if not isinstance(base, FromCfa) or base.offset != -rule.cfa.offset:
        return False if isinstance(base, FromCfa | CallerValue) else None
    if isinstance(recovery, AtCfa):
        return_address = state.slots.get(recovery.offset)
    elif isinstance(recovery, InRegister) and not recovery.offset:
        return_address = state.value(recovery.register)
    else:
        return None
    if return_address == state.machine.return_address:
        return True
    return None if state.return_address is None else False


def origin_in_code(analysis: HasFunctions, lookup: Svma) -> str:
    """Describe the function that holds ``lookup``, and the offset in it; empty if unknown."""
    bounds = analysis.function_at(lookup)
    if bounds is None:
        return ""
    start, end = bounds
    return f"code of the function at {start:#x}, {lookup - start:#x} of its {end - start:#x} bytes"
